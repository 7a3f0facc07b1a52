// What a reader asks of a run first: is it learning, what changed, where does the time go, what did it cost, is anything wrong.
import { shareBar } from "./charts.js";
import { badge, el, link } from "./dom.js";
import {
  formatCount,
  formatDollars,
  formatPercent,
  formatRange,
  formatScore,
  formatSeconds,
  formatSigned,
  plural,
} from "./format.js";
import { runHref } from "./shared.js";

/** @typedef {import("./model.js").RunOverview} RunOverview */
/** @typedef {import("./model.js").ChartPoint} CurvePoint */
/** @typedef {{tone: "bad" | "warn" | "info", text: string, href?: string}} Problem */

const TRAINING = new Set(["train", "rl"]);

/** @param {RunOverview} run */
export function showAnswers(run) {
  return el(
    "div",
    { class: "answers" },
    answerScore(run),
    answerChanges(run),
    answerTime(run),
    answerCost(run),
    answerProblems(run),
  );
}

/**
 * @param {string} question
 * @param {...(import("./dom.js").Child | import("./dom.js").Child[])} children
 */
function answer(question, ...children) {
  return el("section", { class: "answer", "aria-label": question }, el("h2", null, question), ...children);
}

/** @param {RunOverview} run */
function answerScore(run) {
  const { card } = run;
  const question = TRAINING.has(card.kind) ? "Is it learning?" : "How good is it?";
  if (card.score === null)
    return answer(
      question,
      el("p", { class: "big" }, "no score yet"),
      el("p", { class: "soft" }, `${plural(card.rollouts, "rollout")} so far`),
    );
  const trend = findTrend(run);
  const passes = run.pass_at
    .filter((one) => one.k > 1)
    .slice(0, 2)
    .map((one) => `pass@${one.k} ${formatPercent(one.value)}`);
  return answer(
    question,
    el("p", { class: "big" }, formatScore(card.score), el("small", null, ` ${card.measure || "mean"}`)),
    card.interval
      ? el("p", { class: "nums" }, `95 %: ${formatRange(card.interval)}`)
      : el("p", { class: "soft" }, "no interval: too few tasks"),
    trend
      ? el(
          "p",
          { class: "nums" },
          badge(
            formatSigned(trend.last - trend.first),
            trend.last > trend.first ? "good" : trend.last < trend.first ? "bad" : "plain",
          ),
          ` ${trend.name}: ${formatScore(trend.first)} → ${formatScore(trend.last)}`,
        )
      : null,
    run.claim ? el("p", { class: "soft" }, run.claim) : null,
    el(
      "p",
      { class: "soft nums" },
      [plural(run.tasks, "task"), plural(card.scored, "scored rollout"), ...passes].join(" · "),
    ),
  );
}

/** How the first curve of scores goes, from its first point to its last. @param {RunOverview} run */
function findTrend(run) {
  if (!TRAINING.has(run.card.kind)) return null;
  const curve = run.curves.find((one) => (one.group === "score" || one.group === "reward") && one.points.length > 1);
  const [first, last] = [curve?.points[0], curve?.points.at(-1)];
  return curve && first && last ? { name: curve.label, first: first.y, last: last.y } : null;
}

/** @param {RunOverview} run */
function answerChanges(run) {
  const id = run.card.id;
  const decided = run.curves.flatMap((curve) =>
    curve.points.filter((point) => point.kind === "accepted" || point.kind === "rejected"),
  );
  if (run.has_skill) {
    const accepted = decided.filter((point) => point.kind === "accepted");
    const last = accepted.at(-1);
    return answer(
      "What changed, and why?",
      el("p", { class: "big" }, plural(accepted.length, "change")),
      el("p", { class: "nums" }, `accepted; ${decided.length - accepted.length} rejected`),
      last
        ? el(
            "p",
            null,
            "last: ",
            link(runHref(id, "skill"), last.label || `step ${last.x}`),
            el("span", { class: "nums" }, ` at ${formatScore(last.y)}`),
          )
        : el("p", { class: "soft" }, "nothing was accepted so far"),
      el("p", null, link(runHref(id, "skill"), "Lines, evidence and who wrote them")),
    );
  }
  if (run.has_weights) {
    const steps = Math.max(0, ...run.curves.map((curve) => curve.points.at(-1)?.x ?? 0));
    return answer(
      "What changed, and why?",
      el("p", { class: "big" }, plural(steps, "step"), el("small", null, " of the weights")),
      el("p", null, link(runHref(id, "rl"), "Groups, advantages and the policy")),
    );
  }
  return answer(
    "What was run?",
    el("p", { class: "commandline" }, el("code", null, run.command || "not recorded")),
    run.card.parent ? el("p", { class: "soft" }, `made of ${run.card.parent}`) : null,
    el("p", null, link(runHref(id, "settings"), "All settings")),
  );
}

/** @param {RunOverview} run */
function answerTime(run) {
  const total = run.phases.reduce((sum, phase) => sum + phase.seconds, 0);
  const spent = (run.card.ended || Date.now() / 1000) - run.card.started;
  const parts = run.phases
    .filter((phase) => phase.seconds >= total / 200)
    .sort((a, b) => b.seconds - a.seconds)
    .slice(0, 6)
    .map((phase) => ({
      name: phase.phase,
      value: phase.seconds,
      text: formatPercent(phase.seconds / (total || 1)),
      tone: `phase-${phase.phase.replace(/\W/g, "")}`,
    }));
  return answer(
    "Where does the time go?",
    el(
      "p",
      { class: "big" },
      run.card.started ? formatSeconds(spent) : "–",
      el("small", null, run.card.state === "running" ? " so far" : " in all"),
    ),
    parts.length
      ? shareBar("Time of all rollouts", parts)
      : el("p", { class: "soft" }, "no rollout has recorded its phases"),
    run.seconds
      ? el(
          "p",
          { class: "soft nums" },
          `a rollout: median ${formatSeconds(run.seconds.median)}, 95 % below ${formatSeconds(run.seconds.p95)}`,
        )
      : null,
  );
}

/** @param {RunOverview} run */
function answerCost(run) {
  const { card } = run;
  const limit = card.budget_dollars;
  return answer(
    "What did it cost?",
    el(
      "p",
      { class: "big" },
      formatDollars(card.dollars),
      limit ? el("small", null, ` of ${formatDollars(limit)}`) : null,
    ),
    limit
      ? el("meter", {
          min: 0,
          max: limit,
          high: limit * 0.9,
          value: Math.min(card.dollars, limit),
          "aria-label": "share of the budget",
        })
      : null,
    el(
      "p",
      { class: "nums" },
      `${formatCount(card.tokens)} tokens`,
      card.rollouts ? ` · ${formatDollars(card.dollars / card.rollouts)} a rollout` : "",
    ),
    el(
      "p",
      { class: "soft nums" },
      run.costs
        .filter((line) => line.role !== "all" && line.calls > 0)
        .map((line) => `${line.role}: ${formatDollars(line.usage.dollars ?? 0)}, ${formatCount(line.calls)} calls`)
        .join(" · "),
    ),
  );
}

/** @param {RunOverview} run */
function answerProblems(run) {
  const problems = findProblems(run);
  const worst = problems[0]?.tone ?? "good";
  return answer(
    "Is anything wrong?",
    el(
      "p",
      { class: `big verdict-${worst}` },
      problems.length === 0
        ? "✓ Nothing seen"
        : worst === "bad"
          ? "✗ Yes"
          : worst === "warn"
            ? "! Look at this"
            : "Note",
    ),
    problems.length === 0
      ? el(
          "p",
          { class: "soft" },
          run.card.rollouts ? "every rollout has a score, and none is suspect" : "there are no rollouts yet",
        )
      : null,
    el(
      "ul",
      { class: "problems" },
      problems.map((problem) =>
        el("li", { class: problem.tone }, problem.href ? link(problem.href, problem.text) : problem.text),
      ),
    ),
  );
}

/**
 * What a reader should know before the numbers, the worst first.
 * @param {RunOverview} run
 * @returns {Problem[]}
 */
export function findProblems(run) {
  const { card, failures, live } = run;
  /** @type {(Problem | null | false | "" | undefined)[]} */
  const found = [
    ["failed", "killed", "damaged"].includes(card.state) && {
      tone: "bad",
      text: `The run is ${card.state}${card.message ? `: ${card.message}` : ""}`,
    },
    run.warning && { tone: "bad", text: run.warning },
    card.suspects > 0 && {
      tone: "bad",
      text: `${plural(card.suspects, "suspect rollout")}: the agent may have changed the verdict`,
      href: runHref(card.id, "rollouts", { suspect: 1 }),
    },
    failures.lost > 0 && {
      tone: "warn",
      text: `${plural(failures.lost, "rollout")} without a score (${Object.entries(failures.causes)
        .map(([cause, count]) => `${cause} ${count}`)
        .join(", ")})`,
      href: runHref(card.id, "rollouts", { result: "unscored" }),
    },
    card.state === "drained" && { tone: "warn", text: card.message || "The run was stopped before its end" },
    live &&
      live.activity.quiet > 120 && {
        tone: "warn",
        text: `Nothing has moved for ${formatSeconds(live.activity.quiet)}`,
      },
    live?.paused && { tone: "info", text: "The run is paused" },
    live?.stopping && { tone: "info", text: `The run is stopping${live.reason ? `: ${live.reason}` : ""}` },
    run.live_problem && { tone: "info", text: run.live_problem },
    run.indexing > 0 && {
      tone: "info",
      text: `${plural(run.indexing, "rollout")} are still being read; the numbers are of the others`,
    },
  ];
  const order = { bad: 0, warn: 1, info: 2 };
  return found.filter((one) => typeof one === "object" && one !== null).sort((a, b) => order[a.tone] - order[b.tone]);
}
