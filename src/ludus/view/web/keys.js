// Keys of a page. A page says which it has; `?` shows them.
import { el } from "./dom.js";
import { showDialog } from "./toasts.js";

/** @typedef {{key: string, text: string, run: () => void}} KeyBinding */

/** @type {KeyBinding[]} */
let pageKeys = [];

/** @param {KeyBinding[]} bindings the keys of the page that is shown */
export function setPageKeys(bindings) {
  pageKeys = bindings;
}

/** Listen to keys. @param {KeyBinding[]} everywhere */
export function listenToKeys(everywhere) {
  document.addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (target.matches("input, textarea, select")) {
      if (event.key === "Escape") target.blur();
      return;
    }
    if (event.key === "?") {
      event.preventDefault();
      showKeys(everywhere);
      return;
    }
    const found = [...pageKeys, ...everywhere].find((binding) => binding.key === event.key);
    if (found) {
      event.preventDefault();
      found.run();
    }
  });
}

/** @param {KeyBinding[]} everywhere */
export function showKeys(everywhere) {
  const rows = [
    ...pageKeys,
    ...everywhere,
    { key: "?", text: "this list" },
    { key: "Esc", text: "close, leave a field" },
  ];
  showDialog("Keys", [
    el(
      "dl",
      { class: "keys" },
      rows.map((row) => el("div", null, el("dt", null, el("kbd", null, row.key)), el("dd", null, row.text))),
    ),
  ]);
}

/** Go to the field that filters the page. */
export function focusFilter() {
  const input = document.querySelector("main input[type=search]");
  if (input instanceof HTMLInputElement) {
    input.focus();
    input.select();
  }
}
