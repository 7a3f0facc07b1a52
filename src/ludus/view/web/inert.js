// HTML of the server's renderer (Markdown, highlighted code), copied element by element. The renderer escapes what models
// wrote; this is the second lock: only known elements are copied, and of attributes only `class` and safe links.
import { el } from "./dom.js";
import { showControls } from "./format.js";

const COPIED = new Set(
  "p br hr em strong del s code pre span div blockquote ul ol li h1 h2 h3 h4 h5 h6 table thead tbody tr th td a".split(
    " ",
  ),
);
const LINKS = /^(https?:\/\/|mailto:|#)/i;

/**
 * The elements of a rendered text.
 * @param {string} html
 * @param {string} [className]
 */
export function renderInert(html, className = "prose") {
  const parsed = new DOMParser().parseFromString(html, "text/html");
  const node = el("div", { class: className });
  copyChildren(parsed.body, node);
  return node;
}

/**
 * @param {Node} from
 * @param {Element} to
 */
function copyChildren(from, to) {
  for (const child of from.childNodes) {
    if (child instanceof Text) to.append(showControls(child.data));
    else if (child instanceof Element) copyElement(child, to);
  }
}

/**
 * @param {Element} child
 * @param {Element} to
 */
function copyElement(child, to) {
  const tag = child.localName;
  if (!COPIED.has(tag)) {
    if (tag !== "script" && tag !== "style") copyChildren(child, to);
    return;
  }
  const copy = document.createElement(/^h[1-6]$/.test(tag) ? "p" : tag);
  if (/^h[1-6]$/.test(tag))
    copy.className = `heading ${tag}`; // the headings of a page are its own
  else if (child.className) copy.className = String(child.className).replace(/[^\w -]/g, "");
  const target = child.getAttribute("href") ?? "";
  if (tag === "a" && LINKS.test(target)) {
    copy.setAttribute("href", target);
    copy.setAttribute("rel", "noopener noreferrer nofollow");
    copy.setAttribute("target", "_blank");
  }
  copyChildren(child, copy);
  to.append(copy);
}
