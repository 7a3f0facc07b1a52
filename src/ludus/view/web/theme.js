// Dark, light, or as the system says. The choice is kept by the browser.
import { button } from "./dom.js";

const THEME_KEY = "ludus-theme";
const THEMES = /** @type {const} */ (["auto", "light", "dark"]);

function readTheme() {
  try {
    return localStorage.getItem(THEME_KEY) ?? "auto";
  } catch {
    return "auto"; // a page from disk may have no storage
  }
}

/** @param {string} theme */
function applyTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

/** A button that goes through the themes. */
export function makeThemeSwitch() {
  const label = (/** @type {string} */ theme) =>
    ({ auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" })[theme] ?? theme;
  const node = button(
    label(readTheme()),
    () => {
      const next = THEMES[(THEMES.findIndex((theme) => theme === readTheme()) + 1) % THEMES.length] ?? "auto";
      try {
        localStorage.setItem(THEME_KEY, next);
      } catch {
        // it holds for this page only
      }
      applyTheme(next);
      node.textContent = label(next);
      node.setAttribute("aria-label", `Theme: ${next}`);
    },
    { class: "plain", "aria-label": `Theme: ${readTheme()}` },
  );
  applyTheme(readTheme());
  return node;
}
