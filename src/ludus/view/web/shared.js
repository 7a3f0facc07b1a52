// Parts that several pages have: the head of a run, states, outcomes, scores with intervals.
import { badge, el, link } from "./dom.js";
import { makeHref } from "./router.js";
import { toast } from "./toasts.js";

/** @typedef {import("./model.js").RunCard} RunCard */
/** @typedef {import("./model.js").RolloutCard} RolloutCard */
/** @typedef {import("./model.js").RolloutRef} RolloutRef */
/** @typedef {{title: string, keys?: import("./keys.js").KeyBinding[], leave?: () => void}} ShownPage */

const STATE_TONES = /** @type {Record<string, string>} */ ({
  running: "info",
  finished: "good",
  drained: "warn",
  failed: "bad",
  killed: "bad",
  damaged: "bad",
});
const STATE_HINTS = /** @type {Record<string, string>} */ ({
  running: "its process is at work",
  finished: "it is complete",
  drained: "it was stopped, and can be resumed",
  failed: "it ended with an error",
  killed: "its process ended without a word; it can be resumed",
  damaged: "it cannot be read",
});

/** @param {{state: string, message: string}} card */
export function stateBadge(card) {
  return badge(
    card.state || "unknown",
    STATE_TONES[card.state] ?? "plain",
    card.message || STATE_HINTS[card.state] || "",
  );
}

/** What became of a rollout, in a word. @param {RolloutCard} row */
export function outcomeOf(row) {
  if (row.failure) return { word: `no score: ${row.failure}`, tone: "lost" };
  if (row.score === null) return { word: "not judged", tone: "plain" };
  if (row.suspect) return { word: "suspect", tone: "warn" };
  return row.passed ? { word: "passed", tone: "good" } : { word: "not passed", tone: "bad" };
}

/** @param {RolloutCard} row */
export function outcomeBadge(row) {
  const { word, tone } = outcomeOf(row);
  return badge(word, tone);
}

/** @param {string} run @param {number} id @param {Record<string, string | number>} [query] */
export function rolloutHref(run, id, query = {}) {
  return makeHref(["run", run, "rollout", id], query);
}

/** @param {string} run @param {string} [tab] @param {Record<string, string | number>} [query] */
export function runHref(run, tab = "", query = {}) {
  return makeHref(tab ? ["run", run, tab] : ["run", run], query);
}

/** Links to rollouts behind something. @param {string} run @param {RolloutRef[]} refs */
export function rolloutLinks(run, refs) {
  return el(
    "span",
    { class: "refs" },
    refs.map((ref) =>
      ref.id === null
        ? el("span", { class: "soft", title: "not stored any more" }, ref.task)
        : link(rolloutHref(run, ref.id), `${ref.task} (step ${ref.step})`),
    ),
  );
}

/**
 * Do something, and say why it did not work.
 * @param {() => Promise<void>} work
 */
export async function attempt(work) {
  try {
    await work();
  } catch (error) {
    toast(error instanceof Error ? error.message : String(error), "bad");
  }
}

/**
 * The tabs of a run.
 * @param {string} run
 * @param {string} current
 * @param {{has_skill: boolean, has_weights: boolean}} has
 */
export function runTabs(run, current, has) {
  const tabs = [
    ["", "Overview"],
    ["tasks", "Tasks"],
    ["rollouts", "Rollouts"],
    has.has_skill && ["skill", "Skill"],
    has.has_weights && ["rl", "RL"],
    ["settings", "Settings"],
  ];
  return el(
    "nav",
    { class: "tabs", "aria-label": "Pages of the run" },
    tabs
      .filter((tab) => Array.isArray(tab))
      .map(([name = "", text = ""]) =>
        link(runHref(run, name), text, { "aria-current": name === current ? "page" : null }),
      ),
  );
}

/**
 * The path to a page, as links.
 * @param {[string, string][]} steps
 */
export function crumbs(steps) {
  return el(
    "nav",
    { class: "crumbs", "aria-label": "Where you are" },
    steps.flatMap(([href, text], at) => [
      at ? el("span", { "aria-hidden": "true" }, " / ") : null,
      href ? link(href, text) : el("span", { "aria-current": "page" }, text),
    ]),
  );
}

/**
 * Call after a pause in typing.
 * @param {() => void} call
 * @param {number} [wait]
 */
export function afterTyping(call, wait = 200) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = window.setTimeout(call, wait);
  };
}

/** The last part of a model's name, which tells most. @param {string} model */
export function shortModel(model) {
  return model.split("/").at(-1) ?? model;
}
