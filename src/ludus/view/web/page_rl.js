// The training of weights: reward, staleness, the policy's drift, groups with their advantages, and the trajectory server.
import { getJson } from "./api.js";
import { barTable } from "./charts.js";
import { showCurves } from "./curves.js";
import { badge, card, el, facts, fill, fold, grid, link, nothing } from "./dom.js";
import {
  formatCount,
  formatNumber,
  formatPercent,
  formatRange,
  formatScore,
  formatSeconds,
  formatSigned,
  plural,
} from "./format.js";
import { focusFilter } from "./keys.js";
import { refill, watchChanges } from "./live.js";
import { showRunHead } from "./page_run.js";
import { afterTyping, attempt, rolloutHref } from "./shared.js";
import { LongTable } from "./table.js";

/** @typedef {import("./model.js").WeightsPage} WeightsPage */
/** @typedef {import("./model.js").WeightGroup} WeightGroup */
/** @typedef {import("./model.js").WeightStep} WeightStep */

/**
 * @param {HTMLElement} root
 * @param {string} run
 * @returns {Promise<import("./shared.js").ShownPage>}
 */
export async function showRl(root, run) {
  const get = async () =>
    /** @type {WeightsPage} */ (await getJson(["runs", run, "rl"], { sort: "-step", limit: 100 }));
  /** @type {[import("./model.js").RunOverview, WeightsPage]} */
  const [overview, page] = await Promise.all([getJson(["runs", run]), get()]);
  const wanted = { sort: "-spread", q: "" };
  /** @type {LongTable<WeightGroup>} */
  const groups = new LongTable({
    label: "Groups",
    noun: "group",
    columns: makeGroupColumns(run),
    sort: wanted.sort,
    empty: "no group yet",
    fetch: (offset, limit) => getJson(["runs", run, "groups"], { ...wanted, offset, limit }),
    onsort: (sort) => change({ sort }),
  });
  const change = (/** @type {Partial<typeof wanted>} */ changes) => {
    Object.assign(wanted, changes);
    groups.paintHead(wanted.sort);
    groups.box.scrollTop = 0;
    void attempt(() => groups.reload());
  };
  const search = el("input", { type: "search", placeholder: "Search tasks", "aria-label": "Search groups by task" });
  search.addEventListener(
    "input",
    afterTyping(() => change({ q: search.value })),
  );
  const parts = { curves: el("div", { class: "charts" }), steps: el("div"), side: el("div", { class: "columns" }) };
  const paint = (/** @type {WeightsPage} */ fresh) => {
    refill(parts.curves, fresh.curves, () => showCurves(fresh.curves, { height: 170 }));
    refill(parts.steps, fresh.steps, () => [showSteps(fresh)]);
    refill(parts.side, [fresh.trained_by_duration, fresh.server, fresh.server_problem], () => [
      showDurations(fresh),
      showServer(fresh),
    ]);
  };
  const head = el("header", { class: "pagehead" }, showRunHead(overview, "rl"));
  fill(
    root,
    head,
    parts.curves,
    card(
      "Groups",
      {},
      el(
        "p",
        { class: "soft" },
        "Rollouts of one task under one version of the policy. A group without spread teaches nothing. Each score has the colour of its advantage; click one for its rollout.",
      ),
      el("div", { class: "bar" }, search),
      groups.node,
    ),
    parts.steps,
    parts.side,
  );
  paint(page);
  watchChanges(
    [run],
    () =>
      void attempt(async () => {
        paint(await get());
        await groups.reload();
      }),
  );
  return { title: `${run}: RL`, keys: [{ key: "/", text: "search groups", run: focusFilter }] };
}

/** @param {string} run @returns {import("./table.js").Column<WeightGroup>[]} */
function makeGroupColumns(run) {
  return [
    { key: "task", title: "Task", sort: "task", kind: "main", cell: (row) => row.task },
    {
      key: "role",
      title: "",
      width: "92px",
      kind: "mid",
      cell: (row) =>
        row.dropped
          ? badge("dropped", "warn", row.dropped)
          : row.role === "train"
            ? badge("trained", "good")
            : badge(row.role || "waiting", "plain"),
    },
    { key: "step", title: "Step", kind: "num mid", width: "64px", cell: (row) => (row.step === null ? "–" : row.step) },
    {
      key: "version",
      title: "Version",
      kind: "num wide",
      width: "80px",
      cell: (row) => (row.version === null ? "–" : row.version),
    },
    {
      key: "staleness",
      title: "Stale",
      kind: "num wide",
      width: "70px",
      cell: (row) => (row.staleness === null ? "–" : row.staleness),
    },
    {
      key: "advantages",
      title: "Scores and advantages",
      kind: "advantages",
      width: "38%",
      cell: (row) => showAdvantages(run, row),
    },
    {
      key: "spread",
      title: "Spread",
      sort: "spread",
      kind: "num",
      width: "82px",
      cell: (row) => formatNumber(row.spread, 3),
    },
    {
      key: "seconds",
      title: "Time",
      sort: "seconds",
      kind: "num wide",
      width: "86px",
      cell: (row) => formatSeconds(row.seconds),
    },
  ];
}

/** @param {string} run @param {WeightGroup} row */
function showAdvantages(run, row) {
  return el(
    "span",
    { class: "chips" },
    row.scores.map((score, at) => {
      const advantage = row.advantages[at] ?? null;
      const tone =
        score === null ? "lost" : advantage === null || advantage === 0 ? "plain" : advantage > 0 ? "good" : "bad";
      const text = score === null ? "none" : formatNumber(score, 2);
      const title =
        score === null
          ? "no score"
          : `score ${formatScore(score)}, advantage ${advantage === null ? "none" : formatSigned(advantage)}`;
      const rollout = row.rollouts[at];
      return rollout === undefined
        ? el("span", { class: `chip ${tone}`, title }, text)
        : link(rolloutHref(run, rollout), text, { class: `chip ${tone}`, title });
    }),
  );
}

/** @param {WeightsPage} page */
function showSteps(page) {
  if (!page.steps.length) return card("Steps", {}, nothing("No step has ended."));
  const small = (/** @type {number | null} */ value, digits = 4) => formatNumber(value, digits);
  const rows = page.steps.map((step) => [
    String(step.step),
    String(step.version),
    formatScore(step.reward),
    step.passed === null ? "–" : formatPercent(step.passed),
    step.held_out === null ? "–" : `${formatScore(step.held_out)} (${formatRange(step.held_out_interval)})`,
    formatCount(step.rows),
    `${formatCount(step.groups)}${dropNote(step)}`,
    `${formatNumber(step.staleness, 2)}, most ${step.stalest}`,
    step.trained_fast === null ? "–" : `${formatPercent(step.trained_fast)} / ${formatPercent(step.trained_slow)}`,
    small(step.kl),
    small(step.reference_kl),
    small(step.entropy, 3),
    small(step.clipped, 3),
    small(step.gradient, 3),
    formatSeconds(Object.values(step.seconds).reduce((sum, value) => sum + value, 0)),
  ]);
  return card(
    "Steps",
    {},
    grid(
      "Steps",
      [
        "step",
        "version",
        "reward",
        "passed",
        "held out",
        "rows",
        "groups",
        "staleness",
        "trained fast / slow",
        "KL",
        "KL to reference",
        "entropy",
        "clipped",
        "gradient",
        "time",
      ],
      rows,
      Array(15).fill("num"),
    ),
    page.total > page.steps.length
      ? el("p", { class: "soft" }, `the last ${page.steps.length} of ${plural(page.total, "step")}`)
      : null,
  );
}

/** @param {WeightStep} step */
function dropNote(step) {
  const dropped = Object.values(step.dropped).reduce((sum, count) => sum + count, 0);
  return dropped ? `, ${dropped} dropped` : "";
}

/** @param {WeightsPage} page */
function showDurations(page) {
  if (!page.trained_by_duration.length) return null;
  const bars = page.trained_by_duration.map((one) => ({
    name: `${formatSeconds(one.low)} to ${formatSeconds(one.high)}`,
    value: one.groups ? one.trained / one.groups : 0,
    text: `${one.trained} of ${one.groups}`,
  }));
  return card(
    "Trained share by duration",
    {},
    el("p", { class: "soft" }, "If long groups are trained on less than short ones, the policy learns to be short."),
    barTable("Groups that were trained on, by their duration", bars, { most: 1 }),
  );
}

/** @param {WeightsPage} page */
function showServer(page) {
  const { server } = page;
  if (!server)
    return page.server_problem ? card("Trajectory server", {}, el("p", { class: "soft" }, page.server_problem)) : null;
  return card(
    "Trajectory server",
    {},
    facts([
      ["address", el("code", null, server.url)],
      ["step", formatCount(server.step)],
      ["queued", formatCount(server.queued)],
    ]),
    server.environments.length
      ? el(
          "ul",
          null,
          server.environments.map((env) => el("li", null, el("code", { class: "wrap" }, JSON.stringify(env)))),
        )
      : nothing("No environment is connected."),
    fold(
      "All that it says",
      { "data-key": "server" },
      facts(
        Object.entries(server.facts).map(([name, value]) => [
          name,
          el("code", { class: "wrap" }, JSON.stringify(value)),
        ]),
      ),
    ),
  );
}
