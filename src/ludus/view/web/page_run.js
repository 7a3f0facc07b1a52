// A run: its first screen answers what a reader asks first; below are curves, failures, costs and what happens now.
import { findProblems, showAnswers } from "./answers.js";
import { getJson, getSession, isReport, postJson } from "./api.js";
import { barTable } from "./charts.js";
import { showCurves } from "./curves.js";
import { badge, button, card, el, facts, fill, fold, grid, link, nothing } from "./dom.js";
import {
  formatAge,
  formatCount,
  formatDollars,
  formatNumber,
  formatPercent,
  formatRange,
  formatScore,
  formatSeconds,
  formatTime,
  plural,
} from "./format.js";
import { focusFilter } from "./keys.js";
import { refill, watchChanges } from "./live.js";
import { editNotes } from "./page_runs.js";
import { go, makeHref } from "./router.js";
import { attempt, crumbs, outcomeBadge, rolloutHref, runHref, runTabs, shortModel, stateBadge } from "./shared.js";
import { ask, copyText, toast } from "./toasts.js";

/** @typedef {import("./model.js").RunOverview} RunOverview */

/**
 * The head of every page of a run.
 * @param {RunOverview} run
 * @param {string} tab
 */
export function showRunHead(run, tab) {
  const { card: about } = run;
  return [
    crumbs([
      [makeHref(["runs"]), "Runs"],
      tab ? [runHref(about.id), about.id] : ["", about.id],
      ...(tab ? [/** @type {[string, string]} */ (["", tab])] : []),
    ]),
    el(
      "div",
      { class: "titleline" },
      el("h1", null, about.id),
      stateBadge(about),
      run.live?.paused ? badge("paused", "warn") : null,
      about.tags.map((tag) => badge(tag, "plain")),
    ),
    el(
      "p",
      { class: "soft nums" },
      [
        about.kind,
        about.env,
        shortModel(about.model),
        about.started ? `started ${formatAge(about.started)}` : "",
        about.ended ? `took ${formatSeconds(about.ended - about.started)}` : "",
      ]
        .filter(Boolean)
        .join(" · "),
    ),
    about.note ? el("p", { class: "note" }, about.note) : null,
    runTabs(about.id, tab, run),
  ];
}

/**
 * @param {HTMLElement} root
 * @param {string} id
 * @returns {Promise<import("./shared.js").ShownPage>}
 */
export async function showRun(root, id) {
  const session = await getSession();
  const get = async () => /** @type {RunOverview} */ (await getJson(["runs", id]));
  const parts = {
    head: el("header", { class: "pagehead" }),
    actions: el("div", { class: "actions" }),
    answers: el("div"),
    live: el("div"),
    curves: el("div", { class: "charts" }),
    rest: el("div", { class: "columns" }),
  };
  const paint = (/** @type {RunOverview} */ run) => {
    refill(parts.head, [run.card, run.live?.paused], () => showRunHead(run, ""));
    refill(
      parts.actions,
      [run.can_control, run.live?.paused, run.live?.stopping, run.live?.concurrency, run.card.state],
      () => showActions(run, session, refresh),
    );
    refill(parts.answers, [run.card, run.failures, run.phases, run.costs, run.curves, findProblems(run)], () => [
      showAnswers(run),
    ]);
    refill(parts.live, [run.live, run.recent, run.events], () => showNow(run));
    refill(parts.curves, run.curves, () =>
      run.curves.length ? showCurves(run.curves, { href: (ref) => hrefOfRef(run, ref) }) : [],
    );
    refill(
      parts.rest,
      [run.failures, run.reasons, run.stops, run.tools, run.costs, run.kinds, run.turns, run.seconds],
      () => showRest(run),
    );
  };
  const refresh = () => void attempt(async () => paint(await get()));
  const run = await get();
  fill(
    root,
    parts.head,
    parts.actions,
    parts.answers,
    run.card.state === "running" ? [parts.live, parts.curves] : [parts.curves, parts.live],
    parts.rest,
  );
  paint(run);
  watchChanges([id], refresh);
  return {
    title: id,
    keys: [
      { key: "/", text: "filter the rollouts", run: () => (go(runHref(id, "rollouts")), setTimeout(focusFilter, 300)) },
      { key: "t", text: "tasks", run: () => go(runHref(id, "tasks")) },
      { key: "r", text: "rollouts", run: () => go(runHref(id, "rollouts")) },
      ...(run.has_skill ? [{ key: "s", text: "skill", run: () => go(runHref(id, "skill")) }] : []),
      ...(run.has_weights ? [{ key: "w", text: "RL", run: () => go(runHref(id, "rl")) }] : []),
    ],
  };
}

/** @param {RunOverview} run @param {string} ref */
function hrefOfRef(run, ref) {
  return /^\d+$/.test(ref) ? rolloutHref(run.card.id, Number(ref)) : runHref(run.card.id, "skill", { version: ref });
}

// ---- actions ----

/**
 * @param {RunOverview} run
 * @param {import("./model.js").ViewSession} session
 * @param {() => void} refresh
 */
function showActions(run, session, refresh) {
  const id = run.card.id;
  if (isReport) return [];
  if (!session.may_act)
    return [el("p", { class: "soft" }, `Looking only: ${session.why_not || "this page is read-only"}`)];
  const control = (/** @type {object} */ body) =>
    attempt(async () => {
      /** @type {import("./model.js").ActionReply} */
      const reply = await postJson(["runs", id, "control"], body);
      toast(reply.text, reply.ok ? "good" : "bad");
      refresh();
    });
  const notes = button("Tags and note", () => editNotes(run.card, refresh), { id: "act-notes" });
  if (!run.can_control || !run.live) return [notes];
  const { live } = run;
  return [
    live.paused
      ? button("▶ Resume", () => void control({ do: "resume" }), { id: "act-resume", class: "primary" })
      : button("❚❚ Pause", () => void control({ do: "pause" }), { id: "act-pause", disabled: live.stopping }),
    button("■ Stop", () => void stopRun(id, control), { id: "act-stop", class: "danger", disabled: live.stopping }),
    button(`At a time: ${live.concurrency}`, () => void changeConcurrency(live.concurrency, control), {
      id: "act-concurrency",
    }),
    button("Run again…", () => void requeue(control), {
      id: "act-requeue",
      title: "run rollouts again that have no score",
    }),
    notes,
  ];
}

/** @param {string} id @param {(body: object) => Promise<void>} control */
async function stopRun(id, control) {
  const answer = await ask(
    `Stop ${id}?`,
    "What runs is finished and recorded, nothing new is started. The run can be resumed.",
    { confirm: "Stop", danger: true },
  );
  if (answer !== null) await control({ do: "stop" });
}

/** @param {number} now @param {(body: object) => Promise<void>} control */
async function changeConcurrency(now, control) {
  const answer = await ask("Rollouts at a time", "", {
    confirm: "Set",
    label: "At most this many",
    value: String(now),
    required: true,
  });
  if (answer === null) return;
  const concurrency = Number(answer);
  if (!Number.isInteger(concurrency) || concurrency < 1) toast(`“${answer}” is not a whole number of 1 or more`, "bad");
  else await control({ do: "set", concurrency });
}

/** @param {(body: object) => Promise<void>} control */
async function requeue(control) {
  const answer = await ask(
    "Run rollouts again",
    "Rollouts without a score, as TASK, TASK#2 or a content address, with spaces between them.",
    { confirm: "Run again", label: "Rollouts", required: true },
  );
  const ids = (answer ?? "").split(/\s+/).filter(Boolean);
  if (ids.length) await control({ do: "requeue", ids });
}

// ---- what happens now ----

/** @param {RunOverview} run */
function showNow(run) {
  const [activity, events] = [showActivity(run), showEvents(run)];
  const title = run.card.state === "running" ? "Now" : "What happened last";
  const left = activity || events ? el("div", null, activity, events) : null;
  return [card(title, { class: "now" }, el("div", { class: "nowgrid" }, left, showRecent(run)))];
}

/** What is under way, and how far the run is. @param {RunOverview} run */
function showActivity(run) {
  const { live } = run;
  if (!live) return null;
  const { phases } = live.activity;
  const nodes = new Set(phases.flatMap((phase) => (phase.node ? [phase.node] : [])));
  const busy = phases.reduce((sum, phase) => sum + phase.count, 0);
  const bars = phases.map((phase) => ({
    name: phase.node ? `${phase.phase}, ${phase.node}` : phase.phase,
    value: phase.count,
    text: `${phase.count} · ${formatSeconds(phase.oldest)}`,
    tone: `phase-${phase.phase.replace(/\W/g, "")}`,
    title: `${phase.who} has been in it for ${formatSeconds(phase.oldest)}`,
  }));
  const label = "share of the rollouts that are stored";
  return el(
    "div",
    null,
    el(
      "p",
      { class: "nums" },
      el("b", null, formatCount(live.stored)),
      live.planned ? ` of ${formatCount(live.planned)} rollouts` : " rollouts",
      ` · ${formatCount(busy)} of ${formatCount(live.concurrency)} slots busy`,
      nodes.size ? ` · ${plural(nodes.size, "node")}` : "",
    ),
    live.planned ? el("progress", { max: 1, value: live.stored / live.planned, "aria-label": label }) : null,
    bars.length ? barTable("Under way", bars) : el("p", { class: "soft" }, "nothing is under way"),
  );
}

/** The rollouts that ended last. @param {RunOverview} run */
function showRecent(run) {
  if (!run.recent.length) return nothing("No rollout has ended.");
  const rows = run.recent
    .slice(0, 12)
    .map((row) => [
      link(rolloutHref(run.card.id, row.id), `${row.task}#${row.replicate}`),
      outcomeBadge(row),
      formatScore(row.score),
      formatCount(row.turns),
      formatSeconds(row.seconds),
      row.began ? formatAge(row.began + row.seconds) : "–",
    ]);
  const head = ["rollout", "result", "score", "turns", "took", "ended"];
  return grid("Rollouts that ended last", head, rows, ["main", "", "num", "num", "num", "num"]);
}

/** What happened to the run, the newest first. @param {RunOverview} run */
function showEvents(run) {
  if (!run.events.length) return null;
  const lines = [...run.events]
    .reverse()
    .slice(0, 12)
    .map((event) =>
      el(
        "li",
        null,
        el("time", { class: "soft nums", title: formatTime(event.time) }, formatAge(event.time)),
        ` ${event.text}`,
        event.who ? el("span", { class: "soft" }, ` (${event.who})`) : null,
      ),
    );
  return el("ol", { class: "events", tabindex: 0, "aria-label": "What happened to the run" }, lines);
}

// ---- failures, tools, costs ----

/** @param {RunOverview} run */
function showRest(run) {
  return [showFailures(run), showTools(run), showCosts(run), showKinds(run), showSpreads(run)].filter(
    (part) => part !== null,
  );
}

/** @param {RunOverview} run */
function showFailures(run) {
  const { failures: lost, card: about } = run;
  const causes = Object.entries(lost.causes).map(([cause, count]) => ({
    name: cause,
    value: count,
    text: formatCount(count),
    tone: "lost",
    href: runHref(about.id, "rollouts", { result: "unscored" }),
  }));
  return card(
    "Failures of the world",
    {},
    lost.lost
      ? barTable("Rollouts without a score, by cause", causes)
      : el("p", { class: "soft" }, `All of ${plural(lost.rollouts, "rollout")} have a score.`),
    lost.lost
      ? el(
          "p",
          { class: "nums" },
          `They are in no mean. The mean is ${formatScore(lost.mean)}; it would be between ${formatScore(lost.lowest)} and ${formatScore(lost.highest)} with them.`,
        )
      : null,
    lost.broken
      ? el("p", null, `${plural(lost.broken, "rollout")} broken by the agent itself: their score is 0.`)
      : null,
    run.reasons.map((reason) => el("pre", { class: "plain reason", tabindex: 0 }, reason)),
    Object.keys(run.stops).length
      ? barTable(
          "Why rollouts ended",
          Object.entries(run.stops)
            .sort((a, b) => b[1] - a[1])
            .map(([stop, count]) => ({
              name: stop,
              value: count,
              text: formatCount(count),
              href: runHref(about.id, "rollouts", { stop }),
            })),
        )
      : null,
  );
}

/** @param {RunOverview} run */
function showTools(run) {
  if (!run.tools.length) return null;
  const rows = run.tools.map((tool) => [
    el("code", null, tool.tool),
    formatCount(tool.calls),
    formatCount(tool.errors),
    formatPercent(tool.calls ? tool.errors / tool.calls : 0),
  ]);
  return card(
    "Tools",
    {},
    grid("Tools", ["tool", "calls", "errors", "share"], rows, ["main", "num", "num", "num"]),
    el("p", null, link(runHref(run.card.id, "rollouts", { errors: 1 }), "Rollouts with tool errors")),
  );
}

/** @param {RunOverview} run */
function showCosts(run) {
  if (!run.costs.length) return null;
  const limit = (/** @type {import("./model.js").BudgetLine} */ line) =>
    [
      line.limit_dollars !== null ? formatDollars(line.limit_dollars) : "",
      line.limit_tokens !== null ? `${formatCount(line.limit_tokens)} tokens` : "",
      line.limit_calls !== null ? `${formatCount(line.limit_calls)} calls` : "",
    ]
      .filter(Boolean)
      .join(", ") || "–";
  const rows = run.costs.map((line) => [
    line.role,
    formatCount(line.calls),
    formatCount(line.failed),
    formatCount(line.usage.prompt_tokens ?? 0),
    formatCount(line.usage.completion_tokens ?? 0),
    formatDollars(line.usage.dollars ?? 0),
    limit(line),
  ]);
  return card(
    "Cost by role",
    {},
    grid("Cost by role", ["role", "calls", "failed", "tokens in", "out", "dollars", "limit"], rows, [
      "main",
      "num",
      "num",
      "num",
      "num",
      "num",
      "num",
    ]),
  );
}

/** @param {RunOverview} run */
function showKinds(run) {
  const kinds = Object.entries(run.kinds);
  if (!kinds.length) return null;
  const rows = kinds.map(([kind, one]) => [
    kind || "none",
    formatCount(one.tasks),
    formatCount(one.scored),
    formatCount(one.passed),
    formatScore(one.mean),
    formatRange(one.interval),
  ]);
  return card(
    "Kinds of tasks",
    {},
    grid("Kinds of tasks", ["kind", "tasks", "scored", "passed", "mean", "95 %"], rows, [
      "main",
      "num",
      "num",
      "num",
      "num",
      "num",
    ]),
  );
}

/** @param {RunOverview} run */
function showSpreads(run) {
  const line = (
    /** @type {import("./model.js").Spread | null} */ spread,
    /** @type {(value: number) => string} */ show,
  ) =>
    spread
      ? `mean ${show(spread.mean)}, median ${show(spread.median)}, 95 % below ${show(spread.p95)}, most ${show(spread.most)}`
      : "";
  return card(
    "Numbers",
    {},
    facts([
      ["tasks", formatCount(run.tasks)],
      ["flaky tasks", run.flaky ? link(runHref(run.card.id, "tasks", { flaky: 1 }), formatCount(run.flaky)) : "0"],
      ["passed rollouts", formatCount(run.passed)],
      ["turns", line(run.turns, (value) => formatNumber(value, 1))],
      ["time", line(run.seconds, formatSeconds)],
      ...run.pass_at.map(
        (one) =>
          /** @type {[string, string]} */ ([
            `pass@${one.k}`,
            `${formatPercent(one.value)} (${plural(one.tasks, "task")})`,
          ]),
      ),
      ["mean with zeros", run.mean_with_zeros === null ? "" : formatScore(run.mean_with_zeros)],
      ["mean without suspects", run.mean_without_suspects === null ? "" : formatScore(run.mean_without_suspects)],
      [
        "command",
        run.command
          ? [
              el("code", { class: "wrap" }, run.command),
              " ",
              button("Copy", () => void copyText(run.command, "The command"), { class: "plain" }),
            ]
          : "",
      ],
      ["folder", el("code", { class: "wrap" }, run.card.path)],
      ["version", run.card.version],
    ]),
  );
}

// ---- settings ----

/**
 * @param {HTMLElement} root
 * @param {string} id
 * @returns {Promise<import("./shared.js").ShownPage>}
 */
export async function showSettings(root, id) {
  /** @type {[RunOverview, import("./model.js").RecordedSettings]} */
  const [run, recorded] = await Promise.all([getJson(["runs", id]), getJson(["runs", id, "settings"])]);
  const sections = Object.entries(recorded.settings).map(([name, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value)
      ? card(
          name,
          { class: "settings" },
          facts(Object.entries(value).map(([key, inner]) => [key, el("code", { class: "wrap" }, showValue(inner))])),
        )
      : card(name, { class: "settings" }, el("code", { class: "wrap" }, showValue(value))),
  );
  fill(
    root,
    el("header", { class: "pagehead" }, showRunHead(run, "settings")),
    card(
      "Command",
      {},
      el("p", null, el("code", { class: "wrap" }, run.command || "not recorded")),
      run.command ? button("Copy", () => void copyText(run.command, "The command")) : null,
    ),
    recorded.changes.length
      ? card(
          "Accepted changes of the environment",
          {},
          el(
            "ul",
            null,
            recorded.changes.map((change) => el("li", null, change)),
          ),
        )
      : null,
    el("div", { class: "columns" }, sections),
    Object.keys(recorded.code).length
      ? fold(
          "Files of the environment",
          {},
          facts(Object.entries(recorded.code).map(([file, digest]) => [file, el("code", null, digest)])),
        )
      : null,
  );
  return { title: `${id}: settings` };
}

/** @param {unknown} value */
function showValue(value) {
  return typeof value === "string" ? value || "“”" : JSON.stringify(value, null, 1);
}
