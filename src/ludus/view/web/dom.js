// Elements without markup: every text becomes a text node, so nothing that a model wrote can become an element.

/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {Record<string, string | number | boolean | null | undefined | ((event: any) => void)>} Props */

const SVG_SPACE = "http://www.w3.org/2000/svg";

/**
 * Set attributes; a function is a listener of the event that its name says after `on`.
 * @param {Element} node
 * @param {Props | null} props
 */
function setProps(node, props) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
}

/**
 * An HTML element.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Props | null} [props]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function el(tag, props = null, ...children) {
  const node = document.createElement(tag);
  setProps(node, props);
  addChildren(node, children);
  return node;
}

/**
 * An SVG element.
 * @param {string} tag
 * @param {Props | null} [props]
 * @param {...(Child | Child[])} children
 * @returns {SVGElement}
 */
export function svg(tag, props = null, ...children) {
  const node = /** @type {SVGElement} */ (document.createElementNS(SVG_SPACE, tag));
  setProps(node, props);
  addChildren(node, children);
  return node;
}

/**
 * @param {Element} node
 * @param {(Child | Child[])[]} children
 */
function addChildren(node, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false || child === "") continue;
    node.append(child instanceof Node ? child : String(child));
  }
}

/**
 * Put other children into an element.
 * @param {Element} node
 * @param {...(Child | Child[])} children
 */
export function fill(node, ...children) {
  node.replaceChildren();
  addChildren(node, children);
}

/**
 * A link within the pages.
 * @param {string} href
 * @param {Child | Child[]} text
 * @param {Props} [props]
 */
export function link(href, text, props = {}) {
  return el("a", { href, ...props }, text);
}

/**
 * A button.
 * @param {Child | Child[]} text
 * @param {(event: MouseEvent) => void} onclick
 * @param {Props} [props]
 */
export function button(text, onclick, props = {}) {
  return el("button", { type: "button", onclick, ...props }, text);
}

/**
 * A field with its label.
 * @param {string} label
 * @param {HTMLElement} input
 * @param {Props} [props]
 */
export function field(label, input, props = {}) {
  return el("label", { class: "field", ...props }, el("span", null, label), input);
}

/**
 * A choice.
 * @param {string} label
 * @param {readonly (readonly [string, string])[]} options
 * @param {string} value
 * @param {(value: string) => void} onpick
 */
export function picker(label, options, value, onpick) {
  const node = el("select", { "aria-label": label, onchange: () => onpick(node.value) });
  for (const [key, text] of options) node.append(el("option", { value: key, selected: key === value }, text));
  return node;
}

/**
 * A part of a page with a heading.
 * @param {Child | Child[]} title
 * @param {Props} props
 * @param {...(Child | Child[])} children
 */
export function card(title, props, ...children) {
  const { aside, ...rest } = props;
  const id = `h-${String(props.id ?? "") || Math.random().toString(36).slice(2, 9)}`;
  return el(
    "section",
    { ...rest, class: `card ${props.class ?? ""}`, "aria-labelledby": id },
    el("h2", { id }, title),
    ...children,
  );
}

/**
 * Something folded.
 * @param {Child | Child[]} summary
 * @param {Props} props
 * @param {...(Child | Child[])} children
 */
export function fold(summary, props, ...children) {
  return el("details", props, el("summary", null, summary), ...children);
}

/**
 * A badge: a word with a tone (`good`, `bad`, `warn`, `info`, `plain`).
 * @param {Child} text
 * @param {string} tone
 * @param {string} [title]
 */
export function badge(text, tone, title = "") {
  return el("span", { class: `badge ${tone}`, title: title || null }, text);
}

/**
 * A small table of facts. Rows without a value are left out.
 * @param {readonly (readonly [string, Child | Child[]])[]} rows
 */
export function facts(rows) {
  const shown = rows.filter(([, value]) => value !== null && value !== undefined && value !== false && value !== "");
  return el(
    "dl",
    { class: "facts" },
    shown.map(([name, value]) => el("div", null, el("dt", null, name), el("dd", null, value))),
  );
}

/**
 * A plain table. Cells of numbers are aligned to the right by class `num` in `kinds`.
 * @param {string} caption
 * @param {string[]} head
 * @param {(Child | Child[])[][]} rows
 * @param {string[]} [kinds] a class for each column
 */
export function grid(caption, head, rows, kinds = []) {
  const cell = (/** @type {"td" | "th"} */ tag, /** @type {Child | Child[]} */ child, /** @type {number} */ at) =>
    el(tag, { class: kinds[at] || null, scope: tag === "th" ? "col" : null }, child);
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el(
      "table",
      null,
      el("caption", { class: "unseen" }, caption),
      el(
        "thead",
        null,
        el(
          "tr",
          null,
          head.map((text, at) => cell("th", text, at)),
        ),
      ),
      el(
        "tbody",
        null,
        rows.map((row) =>
          el(
            "tr",
            null,
            row.map((child, at) => cell("td", child, at)),
          ),
        ),
      ),
    ),
  );
}

/**
 * A line that says that there is nothing, and why.
 * @param {Child | Child[]} text
 */
export function nothing(text) {
  return el("p", { class: "nothing" }, text);
}
