// The turns of a rollout. Pages of turns are fetched when they come near, and those far away are taken out again, so a rollout of
// 5,000 turns costs the browser as much as one of 300.
import { getJson } from "./api.js";
import { badge, button, el, fill, fold } from "./dom.js";
import { formatCount, formatSeconds, plural, showControls } from "./format.js";
import { showImages, showText } from "./texts.js";

/** @typedef {import("./model.js").ShownTurn} ShownTurn */
/** @typedef {import("./model.js").ShownCall} ShownCall */
/** @typedef {import("./model.js").ShownMessage} ShownMessage */
/** @typedef {import("./model.js").TurnPage} TurnPage */
/** @typedef {{text: string, hide: Set<string>}} TurnFilter what must occur, and kinds of content that are hidden */

const PER_PAGE = 20;
const KEPT = 300;

/** Parts of a transcript that can be hidden. */
export const TRANSCRIPT_PARTS = /** @type {const} */ ([
  ["reasoning", "Reasoning"],
  ["text", "Text"],
  ["calls", "Calls"],
  ["results", "Results"],
  ["notices", "Messages"],
]);

export class Transcript {
  /**
   * @param {string} run
   * @param {number} id
   * @param {TurnPage} page the first turns that are shown
   * @param {{prefix?: string, onseen?: (turn: number) => void}} [options]
   */
  constructor(run, id, page, { prefix = "", onseen } = {}) {
    this.run = run;
    this.id = id;
    this.prefix = prefix;
    this.onseen = onseen;
    this.total = page.total;
    this.first = page.turns[0]?.number ?? 1;
    this.last = page.turns.at(-1)?.number ?? 0;
    /** @type {TurnFilter} */
    this.filter = { text: "", hide: new Set() };
    this.busy = false;
    this.list = el("div", { class: "turns" });
    this.above = button("", () => void this.loadBefore(), { class: "more" });
    this.below = button("", () => void this.loadAfter(), { class: "more" });
    this.note = el("p", { class: "soft", role: "status" });
    this.node = el("div", { class: "transcript" }, this.above, this.list, this.note, this.below);
    this.list.append(...page.turns.map((turn) => this.makeTurn(turn)));
    this.watcher = new IntersectionObserver(
      (seen) => {
        if (seen.some((one) => one.isIntersecting) && !this.filter.text) void this.loadAfter();
      },
      { rootMargin: "600px" },
    );
    this.watcher.observe(this.below);
    this.update();
  }

  /** @param {ShownTurn} turn */
  makeTurn(turn) {
    const node = showTurn(this.run, this.id, turn, this.prefix);
    this.applyFilter(node);
    return node;
  }

  /** @param {number} first */
  async fetch(first) {
    return /** @type {TurnPage} */ (
      await getJson(["runs", this.run, "rollouts", this.id, "turns"], { first, limit: PER_PAGE })
    );
  }

  async loadAfter() {
    if (this.busy || this.last >= this.total) return;
    this.busy = true;
    try {
      const page = await this.fetch(this.last + 1);
      this.total = page.total;
      this.list.append(...page.turns.map((turn) => this.makeTurn(turn)));
      this.last = page.turns.at(-1)?.number ?? this.total;
      while (this.list.childElementCount > KEPT) this.list.firstElementChild?.remove();
      this.first = numberOf(this.list.firstElementChild);
    } finally {
      this.busy = false;
    }
    this.update();
  }

  async loadBefore() {
    if (this.busy || this.first <= 1) return;
    this.busy = true;
    try {
      const from = Math.max(1, this.first - PER_PAGE);
      const page = await this.fetch(from);
      const turns = page.turns.filter((turn) => turn.number < this.first);
      const anchor = this.list.firstElementChild;
      const top = anchor?.getBoundingClientRect().top ?? 0;
      this.list.prepend(...turns.map((turn) => this.makeTurn(turn)));
      if (anchor) window.scrollBy(0, anchor.getBoundingClientRect().top - top);
      this.first = from;
      while (this.list.childElementCount > KEPT) this.list.lastElementChild?.remove();
      this.last = numberOf(this.list.lastElementChild);
    } finally {
      this.busy = false;
    }
    this.update();
  }

  /** Show a turn, wherever it is. @param {number} turn */
  async goTo(turn) {
    const wanted = Math.max(1, Math.min(this.total, turn));
    if (wanted < this.first || wanted > this.last) {
      const page = await this.fetch(Math.max(1, wanted - 2));
      fill(
        this.list,
        page.turns.map((one) => this.makeTurn(one)),
      );
      this.first = page.turns[0]?.number ?? 1;
      this.last = page.turns.at(-1)?.number ?? this.first;
      this.update();
    }
    const node = document.getElementById(`${this.prefix}turn-${wanted}`);
    if (!node) return;
    for (const other of this.list.querySelectorAll(".turn.current")) other.classList.remove("current");
    node.classList.add("current");
    node.scrollIntoView({ block: "start" });
    node.focus({ preventScroll: true });
    this.onseen?.(wanted);
  }

  /** The turn that is read now: the chosen one, or the first on the screen. */
  current() {
    const chosen = this.list.querySelector(".turn.current");
    if (chosen && isOnScreen(chosen)) return numberOf(chosen);
    return numberOf([...this.list.children].find((node) => isOnScreen(node)) ?? null) || this.first;
  }

  /** @param {TurnFilter} filter */
  setFilter(filter) {
    this.filter = filter;
    for (const node of this.list.children) this.applyFilter(node);
    this.update();
    if (filter.text) void this.searchOn();
  }

  /** Go on loading until something is found or a few pages were searched. */
  async searchOn() {
    const { text } = this.filter;
    for (
      let pages = 0;
      pages < 10 &&
      this.last < this.total &&
      this.filter.text === text &&
      !this.list.querySelector(":scope > :not([hidden])");
      pages++
    )
      await this.loadAfter();
    this.update();
  }

  /** @param {Element} node */
  applyFilter(node) {
    const { text, hide } = this.filter;
    for (const [part] of TRANSCRIPT_PARTS)
      for (const one of node.querySelectorAll(`[data-part="${part}"]`)) one.toggleAttribute("hidden", hide.has(part));
    node.toggleAttribute("hidden", text !== "" && !(node.textContent ?? "").toLowerCase().includes(text.toLowerCase()));
  }

  update() {
    this.above.hidden = this.first <= 1;
    this.below.hidden = this.last >= this.total;
    fill(this.above, `Turns before ${this.first}`);
    fill(this.below, `Turns after ${this.last} of ${formatCount(this.total)}`);
    const shown = this.list.querySelectorAll(":scope > :not([hidden])").length;
    fill(
      this.note,
      this.filter.text
        ? `${plural(shown, "turn")} with “${this.filter.text}” in turns ${this.first} to ${this.last} of ${formatCount(this.total)}`
        : "",
    );
    this.note.hidden = !this.filter.text;
  }

  leave() {
    this.watcher.disconnect();
  }
}

/** @param {Element | null} node */
function numberOf(node) {
  return Number(node?.getAttribute("data-turn") ?? 0);
}

/** @param {Element} node */
function isOnScreen(node) {
  const box = node.getBoundingClientRect();
  return box.bottom > 120 && box.top < window.innerHeight && box.height > 0;
}

/**
 * @param {string} run
 * @param {number} id
 * @param {ShownTurn} turn
 * @param {string} prefix
 */
function showTurn(run, id, turn, prefix) {
  const usage = turn.usage ?? {};
  const notes = [
    turn.model_seconds ? `model ${formatSeconds(turn.model_seconds)}` : "",
    turn.tool_seconds ? `tools ${formatSeconds(turn.tool_seconds)}` : "",
    usage.prompt_tokens ? `${formatCount(usage.prompt_tokens)} in` : "",
    usage.completion_tokens ? `${formatCount(usage.completion_tokens)} out` : "",
  ].filter(Boolean);
  const text = turn.text.text ? el("div", { "data-part": "text" }, showText(run, id, turn.text)) : null;
  return el(
    "article",
    {
      class: "turn",
      id: `${prefix}turn-${turn.number}`,
      "data-turn": turn.number,
      tabindex: -1,
      "aria-label": `Turn ${turn.number}`,
    },
    showBranch(turn),
    el(
      "header",
      null,
      el("span", { class: "role" }, `Turn ${turn.number}`),
      el("span", { class: "soft nums" }, notes.join(" · ")),
      turn.guided ? badge("guided", "plain", "sampled under guided decoding, or played from a record") : null,
      turn.finish && !["stop", "tool_calls"].includes(turn.finish) ? badge(turn.finish, "warn") : null,
    ),
    turn.reasoning
      ? fold("Reasoning", { class: "thinking", "data-part": "reasoning" }, showText(run, id, turn.reasoning))
      : null,
    text,
    showImages(turn.images),
    (turn.calls ?? []).map((call) => showCall(run, id, call)),
    (turn.notices ?? []).map((message) => showMessage(run, id, message)),
    turn.stop ? el("p", { class: "stop" }, `The rollout ended here: ${turn.stop}`) : null,
  );
}

/** @param {ShownTurn} turn */
function showBranch(turn) {
  if (turn.branch === undefined || turn.branch === null) return null;
  return el(
    "p",
    { class: "branch" },
    turn.branch === 0
      ? "↳ A conversation of its own begins here"
      : `↳ The history branched here: it continues turn ${turn.branch}`,
  );
}

/**
 * @param {string} run
 * @param {number} id
 * @param {ShownCall} call
 */
function showCall(run, id, call) {
  const seconds = call.seconds ? el("span", { class: "soft nums" }, formatSeconds(call.seconds)) : null;
  return el(
    "div",
    { class: `call ${call.error ? "error" : ""}`, "data-part": "calls" },
    el(
      "div",
      { class: "asked" },
      el("p", { class: "callname" }, el("code", null, showControls(call.name ?? "")), seconds),
      showText(run, id, call.arguments),
    ),
    el(
      "div",
      { class: "answered", "data-part": "results" },
      call.error ? el("p", { class: "callerror" }, `Tool error: ${showControls(call.error)}`) : null,
      call.result ? showText(run, id, call.result) : el("p", { class: "soft" }, "not answered"),
      call.spilled
        ? el("p", { class: "soft" }, "the whole result is in the slot: ", el("code", null, call.spilled))
        : null,
      showImages(call.images),
    ),
  );
}

/**
 * @param {string} run
 * @param {number} id
 * @param {ShownMessage} message
 */
export function showMessage(run, id, message) {
  return el(
    "div",
    { class: `message ${message.role}`, "data-part": "notices" },
    el("p", { class: "role" }, message.role),
    showText(run, id, message.text),
    showImages(message.images),
  );
}
