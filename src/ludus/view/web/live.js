// Changes, pushed by the server. A page says what it shows; it is told at most twice a second that this has changed.
import { forgetSession, isReport } from "./api.js";
import { fill } from "./dom.js";

/** @typedef {import("./model.js").ChangeEvent} ChangeEvent */

const PAUSE_MS = 500;

/** @type {(() => void) | null} */
let stopWatching = null;

/** @param {"live" | "waiting" | "report" | "off"} state */
function showConnection(state) {
  const node = document.getElementById("connection");
  if (!node) return;
  node.dataset.state = state;
  fillConnection({ live: "live", waiting: "connecting…", report: "report", off: "not connected" }[state]);
  node.title = state === "off" ? "The server does not answer; the page tries again" : "";
}

/** @param {string} text */
function fillConnection(text) {
  const node = document.getElementById("connection");
  if (node && node.textContent !== text) fill(node, text);
}

/**
 * Watch runs, or all of them. Another call, and another page, ends it.
 * @param {readonly string[]} runs
 * @param {(change: ChangeEvent) => void} onchange
 */
export function watchChanges(runs, onchange) {
  stopChanges();
  if (isReport) {
    showConnection("report");
    return;
  }
  const query = new URLSearchParams(runs.map((run) => ["run", run])).toString();
  const source = new EventSource(`/api/events${query ? `?${query}` : ""}`);
  /** @type {ChangeEvent | null} */
  let gathered = null;
  let timer = 0;
  let lost = false;
  const tell = () => {
    timer = 0;
    const change = gathered;
    gathered = null;
    if (change) onchange(change);
  };
  showConnection("waiting");
  source.addEventListener("open", () => {
    showConnection("live");
    if (lost) onchange({ runs: [...runs], what: ["info", "store", "events", "list"], stored: {} });
    lost = false;
  });
  source.addEventListener("error", () => {
    showConnection("off");
    lost = true;
    forgetSession();
  });
  source.addEventListener("change", (event) => {
    gathered = mergeChanges(gathered, JSON.parse(/** @type {MessageEvent} */ (event).data));
    if (!timer) timer = window.setTimeout(tell, PAUSE_MS);
  });
  stopWatching = () => {
    source.close();
    clearTimeout(timer);
  };
}

export function stopChanges() {
  stopWatching?.();
  stopWatching = null;
  fillConnection("");
}

/**
 * @param {ChangeEvent | null} first
 * @param {ChangeEvent} second
 * @returns {ChangeEvent}
 */
function mergeChanges(first, second) {
  if (!first) return second;
  return {
    runs: [...new Set([...first.runs, ...second.runs])],
    what: [...new Set([...first.what, ...second.what])],
    stored: { ...first.stored, ...second.stored },
  };
}

/**
 * Build a part of a page again, if its data have changed. What was open stays open, and the focus stays.
 * @param {Element & {shown?: string}} node
 * @param {unknown} data
 * @param {() => (import("./dom.js").Child | import("./dom.js").Child[])[]} build
 */
export function refill(node, data, build) {
  const text = JSON.stringify(data);
  if (node.shown === text) return;
  node.shown = text;
  const open = new Set(
    [...node.querySelectorAll("details[open][data-key]")].map((one) => one.getAttribute("data-key")),
  );
  const shut = new Set(
    [...node.querySelectorAll("details:not([open])[data-key]")].map((one) => one.getAttribute("data-key")),
  );
  const held = node.contains(document.activeElement) ? document.activeElement?.id : "";
  fill(node, ...build());
  for (const one of node.querySelectorAll("details[data-key]")) {
    const key = one.getAttribute("data-key");
    if (open.has(key)) one.setAttribute("open", "");
    else if (shut.has(key)) one.removeAttribute("open");
  }
  if (held) document.getElementById(held)?.focus({ preventScroll: true });
}
