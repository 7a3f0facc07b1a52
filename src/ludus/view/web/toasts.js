// Short messages at the edge of the page. They are read out, cover nothing important and go by themselves.
import { button, el } from "./dom.js";

const SHOWN_SECONDS = 6;

/**
 * @param {string} text
 * @param {"good" | "bad" | "info"} [tone]
 */
export function toast(text, tone = "info") {
  const place = document.getElementById("toasts");
  if (!place) return;
  const node = el(
    "div",
    { class: `toast ${tone}` },
    el("span", null, text),
    button("×", () => node.remove(), { "aria-label": "Close" }),
  );
  place.append(node);
  if (tone !== "bad") setTimeout(() => node.remove(), SHOWN_SECONDS * 1000);
}

/**
 * Put a text on the clipboard, and say so.
 * @param {string} text
 * @param {string} what
 */
export async function copyText(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    toast(`${what} copied`, "good");
  } catch {
    const area = el("textarea", { readonly: true, "aria-label": what });
    area.value = text;
    showDialog(what, [el("p", null, "The browser does not allow copying here. Copy it by hand:"), area]);
    area.select();
  }
}

/**
 * A dialog that Escape closes. Returns what closes it.
 * @param {string} title
 * @param {(Node | string)[]} children
 */
export function showDialog(title, children) {
  const node = el("dialog", { "aria-label": title });
  const close = () => node.close();
  node.append(
    el("header", null, el("h2", null, title), button("×", close, { "aria-label": "Close", class: "plain" })),
    ...children,
  );
  node.addEventListener("close", () => node.remove());
  node.addEventListener("click", (event) => {
    if (event.target === node) close();
  });
  document.body.append(node);
  node.showModal();
  return close;
}

/**
 * Ask before something is done. The answer is what was typed, or null.
 * @param {string} title
 * @param {string} text
 * @param {{confirm: string, danger?: boolean, label?: string, value?: string, required?: boolean}} options
 * @returns {Promise<string | null>}
 */
export function ask(title, text, { confirm, danger = false, label = "", value = "", required = false }) {
  return new Promise((resolve) => {
    let answer = /** @type {string | null} */ (null);
    const input = el("input", { type: "text", value, required, "aria-label": label || title });
    const form = el(
      "form",
      { method: "dialog", class: "ask" },
      text && el("p", null, text),
      label ? el("label", { class: "field" }, el("span", null, label), input) : null,
      el(
        "menu",
        null,
        button("Cancel", () => close()),
        el("button", { type: "submit", class: danger ? "danger" : "primary" }, confirm),
      ),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      answer = label ? input.value : "";
      close();
    });
    const close = showDialog(title, [form]);
    form.closest("dialog")?.addEventListener("close", () => resolve(answer));
  });
}
