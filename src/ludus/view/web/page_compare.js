// Runs beside each other: which is better, by how much, on which tasks, and what the better one cost.
import { getJson } from "./api.js";
import { intervalMark, lineChart } from "./charts.js";
import { groupCurves, titleOf, toSeries, unitFormat } from "./curves.js";
import { badge, card, el, fill, grid, link, nothing } from "./dom.js";
import {
  formatCount,
  formatDollars,
  formatNumber,
  formatRange,
  formatScore,
  formatSeconds,
  formatSigned,
  plural,
} from "./format.js";
import { focusFilter } from "./keys.js";
import { stopChanges } from "./live.js";
import { checkField } from "./page_lists.js";
import { compareHref } from "./page_runs.js";
import { go, makeHref, noteQuery, readPlace } from "./router.js";
import { afterTyping, attempt, crumbs, outcomeBadge, rolloutHref, runHref, shortModel } from "./shared.js";
import { LongTable } from "./table.js";
import { showText } from "./texts.js";
import { Transcript } from "./transcript.js";

/** @typedef {import("./model.js").Versus} Versus */
/** @typedef {import("./model.js").GridRow} GridRow */
/** @typedef {import("./model.js").GridCell} GridCell */
/** @typedef {import("./model.js").PairComparison} PairComparison */

/**
 * @param {HTMLElement} root
 * @param {import("./router.js").Place} place
 * @returns {Promise<import("./shared.js").ShownPage>}
 */
export async function showCompare(root, place) {
  const runs = place.query.getAll("run");
  stopChanges();
  if (runs.length < 2) {
    fill(
      root,
      el("h1", null, "Compare"),
      nothing(["Pick two or more runs in the ", link(makeHref(["runs"]), "list of runs"), "."]),
    );
    return { title: "Compare" };
  }
  /** @type {Record<string, string>} */
  const wanted = { sort: "-spread", q: "", differs: "", ...Object.fromEntries(place.query) };
  delete wanted.run;
  const get = async (/** @type {number} */ offset, /** @type {number} */ limit) =>
    /** @type {Versus} */ (await getJson(["compare"], { run: runs, ...wanted, offset, limit }));
  const versus = await get(0, 100);
  const names = versus.cards.map((one) => one.id);
  const pairs = versus.pairs.map((pair) => showPair(pair));
  const where = crumbs([
    [makeHref(["runs"]), "Runs"],
    ["", "compare"],
  ]);
  fill(
    root,
    el("header", { class: "pagehead" }, where, el("h1", null, `Compare ${names.length} runs`)),
    versus.problems.map((problem) => el("p", { class: "warning" }, problem)),
    card("Which is better?", {}, el("div", { class: "pairs" }, pairs)),
    card("Runs", {}, showComparedRuns(versus)),
    showTaskGrid(names, wanted, get),
    overlayCurves(versus),
    showSettingDifferences(versus, names),
  );
  return { title: `Compare ${names.join(", ")}`, keys: [{ key: "/", text: "search tasks", run: focusFilter }] };
}

/**
 * Tasks and runs as a grid of wins and losses.
 * @param {string[]} names
 * @param {Record<string, string>} wanted sort and filter, which are in the address
 * @param {(offset: number, limit: number) => Promise<Versus>} get
 */
function showTaskGrid(names, wanted, get) {
  /** @type {LongTable<GridRow>} */
  const table = new LongTable({
    label: "Tasks by run",
    noun: "task",
    columns: makeGridColumns(names),
    sort: wanted.sort ?? "",
    empty: "no task matches",
    fetch: async (offset, limit) => {
      const page = await get(offset, limit);
      return { total: page.total, rows: page.grid };
    },
    onsort: (sort) => change({ sort }),
  });
  const change = (/** @type {Record<string, string>} */ changes) => {
    Object.assign(wanted, changes);
    noteQuery(changes);
    table.paintHead(wanted.sort ?? "");
    table.box.scrollTop = 0;
    void attempt(() => table.reload());
  };
  const search = el("input", {
    type: "search",
    placeholder: "Search tasks",
    "aria-label": "Search tasks",
    value: wanted.q ?? "",
  });
  const searchSoon = afterTyping(() => change({ q: search.value }));
  search.addEventListener("input", searchSoon);
  const differs = checkField("only tasks that differ", wanted.differs === "1", (on) =>
    change({ differs: on ? "1" : "" }),
  );
  const hint = el("p", { class: "soft" }, "Click a cell for its transcript; “both” shows two of them side by side.");
  return card("Tasks", {}, hint, el("div", { class: "bar" }, search, differs), table.node);
}

/** @param {PairComparison} pair */
function showPair(pair) {
  const reach =
    Math.max(
      0.1,
      Math.abs(pair.interval?.low ?? 0),
      Math.abs(pair.interval?.high ?? 0),
      Math.abs(pair.difference ?? 0),
    ) * 1.1;
  return el(
    "article",
    { class: "pair" },
    el(
      "h3",
      null,
      link(runHref(pair.first), pair.first),
      el("span", { class: "soft" }, " minus "),
      link(runHref(pair.second), pair.second),
    ),
    pair.difference === null
      ? el("p", { class: "big" }, "no shared tasks")
      : [
          el(
            "p",
            { class: "big nums" },
            formatSigned(pair.difference),
            el("small", null, pair.interval ? ` 95 %: ${formatRange(pair.interval, formatSigned)}` : " no interval"),
          ),
          intervalMark(pair.difference, pair.interval, { low: -reach, high: reach, zero: 0 }),
          el(
            "p",
            { class: "pairscale", "aria-hidden": "true" },
            el("span", null, `${formatSigned(-reach)} ${pair.second} is better`),
            el("span", null, "0"),
            el("span", null, `${pair.first} is better ${formatSigned(reach)}`),
          ),
        ],
    el("p", null, pair.verdict),
    el(
      "p",
      { class: "soft nums" },
      `${plural(pair.tasks, "shared task")}: `,
      badge(`${pair.won} won`, "good"),
      " ",
      badge(`${pair.lost} lost`, "bad"),
      " ",
      badge(`${pair.tied} equal`, "plain"),
      pair.changed ? ` · ${plural(pair.changed, "task")} ask something else and are left out` : "",
    ),
    pair.difference_without_suspects !== null
      ? el("p", { class: "nums" }, `without suspects: ${formatSigned(pair.difference_without_suspects)}`)
      : null,
  );
}

/** @param {Versus} versus */
function showComparedRuns(versus) {
  const rows = versus.runs.map((run, at) => {
    const cost = versus.costs[at];
    return [
      link(runHref(versus.cards[at]?.id ?? run.name), run.name),
      shortModel(run.model),
      formatScore(run.mean),
      formatRange(run.interval),
      formatCount(run.tasks),
      formatCount(run.rollouts),
      formatCount(run.excluded),
      formatDollars(cost?.dollars),
      formatDollars(cost?.dollars_per_rollout),
      formatDollars(cost?.dollars_per_point),
      formatCount(
        cost?.tokens_per_point === null || cost?.tokens_per_point === undefined
          ? null
          : Math.round(cost.tokens_per_point),
      ),
      formatSeconds(run.median_seconds),
    ];
  });
  return grid(
    "Runs that are compared",
    [
      "run",
      "model",
      "mean",
      "95 %",
      "tasks",
      "rollouts",
      "no score",
      "cost",
      "a rollout",
      "a point",
      "tokens a point",
      "median time",
    ],
    rows,
    ["main", "", "num", "num", "num", "num", "num", "num", "num", "num", "num", "num"],
  );
}

/** @param {string[]} names @returns {import("./table.js").Column<GridRow>[]} */
function makeGridColumns(names) {
  return [
    {
      key: "task",
      title: "Task",
      sort: "task",
      kind: "main",
      cell: (row) => [
        row.task,
        row.same ? null : badge("other prompt", "warn", "the runs ask something else: not compared"),
      ],
    },
    ...names.map((name, at) => ({
      key: `run-${at}`,
      title: name,
      kind: "gridcell",
      width: `${Math.min(220, Math.round(640 / names.length))}px`,
      hint: name,
      cell: (/** @type {GridRow} */ row) => showGridCell(name, row.cells[at]),
    })),
    {
      key: "spread",
      title: "Spread",
      sort: "spread",
      kind: "num mid",
      width: "88px",
      cell: (row) => formatNumber(row.spread, 3),
    },
    { key: "both", title: "", width: "64px", kind: "mid", cell: (row) => sideLink(names, row) },
  ];
}

/** @param {string} run @param {GridCell | undefined} cell */
function showGridCell(run, cell) {
  if (!cell || cell.rollout === null) return el("span", { class: "soft" }, "–");
  const rate = cell.scored ? cell.passed / cell.scored : null;
  const tone = rate === null ? "lost" : rate === 1 ? "good" : rate === 0 ? "bad" : "warn";
  return link(
    rolloutHref(run, cell.rollout),
    [formatScore(cell.score), el("span", { class: "small" }, ` ${cell.passed}/${cell.scored}`)],
    { class: `chip ${tone}`, title: `${cell.passed} of ${cell.scored} scored rollouts passed` },
  );
}

/** @param {string[]} names @param {GridRow} row */
function sideLink(names, row) {
  const found = names
    .flatMap((name, at) => (typeof row.cells[at]?.rollout === "number" ? [`${row.cells[at]?.rollout}@${name}`] : []))
    .slice(0, 2);
  if (found.length < 2) return null;
  return link(
    `${makeHref(["beside"])}?${new URLSearchParams(found.map((one) => ["rollout", one])).toString()}`,
    "both",
  );
}

/** @param {Versus} versus */
function overlayCurves(versus) {
  const all = Object.entries(versus.curves).flatMap(([run, curves]) => curves.map((curve) => ({ run, curve })));
  const byName = groupCurves(all.map(({ curve }) => ({ ...curve, group: curve.name })));
  const charts = byName.flatMap((group) => {
    const first = group[0];
    if (!first) return [];
    const series = all
      .filter(({ curve }) => curve.name === first.name && curve.unit === first.unit && curve.points.length)
      .map(({ run, curve }) => toSeries(curve, run));
    return series.length
      ? [
          lineChart({
            title: first.label || titleOf(first),
            series,
            xLabel: first.x_label,
            showY: unitFormat(first.unit),
            height: 190,
          }),
        ]
      : [];
  });
  return charts.length ? card("Curves", {}, el("div", { class: "charts" }, charts)) : null;
}

/** @param {Versus} versus @param {string[]} names */
function showSettingDifferences(versus, names) {
  const rows = versus.settings.map((one) => [
    el("code", null, one.key),
    ...one.values.map((value) =>
      value === "" ? el("span", { class: "soft" }, "not set") : el("code", { class: "wrap" }, value),
    ),
  ]);
  return card(
    "Settings that differ",
    {},
    rows.length
      ? grid("Settings that differ", ["setting", ...names], rows, ["main"])
      : nothing("The settings are the same."),
  );
}

// ---- two transcripts beside each other ----

/**
 * @param {HTMLElement} root
 * @param {import("./router.js").Place} place
 * @returns {Promise<import("./shared.js").ShownPage>}
 */
export async function showBeside(root, place) {
  stopChanges();
  const asked = place.query
    .getAll("rollout")
    .slice(0, 2)
    .map((one) => ({ id: Number(one.split("@")[0]), run: one.slice(one.indexOf("@") + 1) }));
  const details = await Promise.all(
    asked.map(
      ({ run, id }) =>
        /** @type {Promise<import("./model.js").RolloutDetail>} */ (getJson(["runs", run, "rollouts", id])),
    ),
  );
  const runs = asked.map(({ run }) => run);
  const transcripts = details.map(
    (detail, at) => new Transcript(detail.run, detail.row.id, detail.page, { prefix: `side${at}-` }),
  );
  const first = details[0];
  const where = crumbs([
    [makeHref(["runs"]), "Runs"],
    [compareHref(runs), "compare"],
    ["", first?.row.task ?? ""],
  ]);
  const sides = details.map((detail, at) => showSide(detail, transcripts[at]?.node));
  fill(
    root,
    el("header", { class: "pagehead" }, where, el("h1", null, first?.row.task ?? "Rollouts")),
    first ? card("Task", {}, showText(first.run, first.row.id, first.prompt)) : null,
    el("div", { class: "sides" }, sides),
  );
  const move = (/** @type {number} */ by) => {
    const turn = Math.max(1, Number(readPlace().query.get("turn") ?? 0) + by);
    for (const transcript of transcripts) void transcript.goTo(turn);
    noteQuery({ turn });
  };
  return {
    title: first?.row.task ?? "Rollouts",
    leave: () => transcripts.forEach((transcript) => transcript.leave()),
    keys: [
      { key: "n", text: "next turn of both", run: () => move(1) },
      { key: "p", text: "turn before it", run: () => move(-1) },
      { key: "u", text: "back to the comparison", run: () => go(compareHref(runs)) },
    ],
  };
}

/**
 * @param {import("./model.js").RolloutDetail} detail
 * @param {Node | undefined} transcript
 */
function showSide(detail, transcript) {
  const { row } = detail;
  const numbers = [
    formatScore(row.score),
    plural(row.turns, "turn"),
    formatSeconds(row.seconds),
    formatDollars(row.dollars),
  ];
  return el(
    "section",
    { class: "side", "aria-label": detail.run },
    el(
      "h2",
      null,
      link(rolloutHref(detail.run, row.id), detail.run),
      " ",
      outcomeBadge(row),
      el("span", { class: "soft nums" }, ` ${numbers.join(" · ")}`),
    ),
    detail.score?.feedback.text
      ? el("div", { class: "card" }, showText(detail.run, row.id, detail.score.feedback))
      : null,
    transcript,
  );
}
