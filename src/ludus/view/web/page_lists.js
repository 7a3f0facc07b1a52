// The tasks and the rollouts of a run, as long tables with filters. A filter is in the address, and the rollout's page walks
// through the same list.
import { getJson } from "./api.js";
import { intervalMark } from "./charts.js";
import { badge, el, fill, picker } from "./dom.js";
import {
  formatCount,
  formatDollars,
  formatNumber,
  formatPercent,
  formatScore,
  formatSeconds,
  plural,
} from "./format.js";
import { focusFilter } from "./keys.js";
import { watchChanges } from "./live.js";
import { showRunHead } from "./page_run.js";
import { go, noteQuery } from "./router.js";
import { afterTyping, attempt, outcomeBadge, rolloutHref, runHref, shortModel } from "./shared.js";
import { LongTable } from "./table.js";

/** @typedef {import("./model.js").RunOverview} RunOverview */
/** @typedef {import("./model.js").TaskCard} TaskCard */
/** @typedef {import("./model.js").RolloutCard} RolloutCard */

/** The parameters of a list of rollouts that its rollouts keep in their addresses. */
export const LIST_FILTERS = /** @type {const} */ ([
  "q",
  "task",
  "kind",
  "stop",
  "failure",
  "model",
  "skill",
  "policy",
  "result",
  "suspect",
  "errors",
  "sort",
]);

/**
 * The head of a list and its table, wired to the address.
 * @template R
 * @param {HTMLElement} root
 * @param {RunOverview} run
 * @param {string} tab
 * @param {Record<string, string>} wanted
 * @param {(change: (changes: Record<string, string>) => void) => {table: LongTable<R>, bar: (Node | null)[]}} build
 */
function showList(root, run, tab, wanted, build) {
  const id = run.card.id;
  const change = (/** @type {Record<string, string>} */ changes) => {
    Object.assign(wanted, changes);
    noteQuery(changes);
    table.paintHead(wanted.sort ?? "");
    table.box.scrollTop = 0;
    void attempt(() => table.reload());
  };
  const { table, bar } = build(change);
  const head = el("header", { class: "pagehead" }, showRunHead(run, tab));
  fill(root, head, el("div", { class: "bar" }, bar), table.node);
  watchChanges([id], (event) => {
    if (event.what.some((what) => what === "store" || what === "index")) void attempt(() => table.reload());
  });
  return table;
}

/** @param {string} label @param {string} value @param {(value: string) => void} change */
function searchField(label, value, change) {
  const input = el("input", { type: "search", placeholder: label, "aria-label": label, value });
  input.addEventListener(
    "input",
    afterTyping(() => change(input.value)),
  );
  return input;
}

/** @param {string} label @param {boolean} checked @param {(checked: boolean) => void} change */
export function checkField(label, checked, change) {
  const input = el("input", { type: "checkbox", checked, onchange: () => change(input.checked) });
  return el("label", { class: "inline" }, input, ` ${label}`);
}

/**
 * @param {HTMLElement} root
 * @param {string} id
 * @param {import("./router.js").Place} place
 * @returns {Promise<import("./shared.js").ShownPage>}
 */
export async function showTasks(root, id, place) {
  /** @type {RunOverview} */
  const run = await getJson(["runs", id]);
  /** @type {Record<string, string>} */
  const wanted = { sort: "rate", ...Object.fromEntries(place.query) };
  showList(root, run, "tasks", wanted, (change) => {
    /** @type {LongTable<TaskCard>} */
    const table = new LongTable({
      label: "Tasks",
      noun: "task",
      columns: makeTaskColumns(Object.keys(run.kinds).length > 1),
      fetch: (offset, limit) => getJson(["runs", id, "tasks"], { ...wanted, offset, limit }),
      href: (row) => runHref(id, "rollouts", { task: row.task }),
      sort: wanted.sort ?? "",
      onsort: (sort) => change({ sort }),
      empty: "no task matches",
    });
    const bar = [
      searchField("Search tasks", wanted.q ?? "", (q) => change({ q })),
      checkField("flaky only", wanted.flaky === "1", (on) => change({ flaky: on ? "1" : "" })),
      el(
        "span",
        { class: "soft" },
        `${plural(run.flaky, "task")} of ${formatCount(run.tasks)} ${run.flaky === 1 ? "is" : "are"} flaky: some of the rollouts pass and some do not`,
      ),
    ];
    return { table, bar };
  });
  return { title: `${id}: tasks`, keys: [{ key: "/", text: "search", run: focusFilter }] };
}

/** @param {boolean} kinds @returns {import("./table.js").Column<TaskCard>[]} */
function makeTaskColumns(kinds) {
  return [
    { key: "task", title: "Task", sort: "task", kind: "main", cell: (row) => row.task },
    ...(kinds
      ? [{ key: "kind", title: "Kind", kind: "wide", width: "12%", cell: (/** @type {TaskCard} */ row) => row.kind }]
      : []),
    {
      key: "rate",
      title: "Pass rate",
      sort: "rate",
      kind: "scorecell",
      width: "190px",
      cell: (row) =>
        el(
          "span",
          { class: "scoreline" },
          el("b", null, formatPercent(row.rate)),
          intervalMark(row.rate, row.rate === null ? null : { low: 0, high: row.rate }, { low: 0, high: 1 }),
        ),
    },
    {
      key: "flaky",
      title: "",
      width: "84px",
      cell: (row) => [row.flaky ? badge("flaky", "warn") : null, row.suspects ? badge("suspect", "bad") : null],
    },
    { key: "mean", title: "Mean", sort: "mean", kind: "num mid", width: "76px", cell: (row) => formatScore(row.mean) },
    {
      key: "rollouts",
      title: "Rollouts",
      sort: "rollouts",
      kind: "num",
      width: "96px",
      cell: (row) => `${row.passed} of ${row.scored}`,
    },
    {
      key: "failed",
      title: "No score",
      sort: "failed",
      kind: "num mid",
      width: "92px",
      cell: (row) => formatCount(row.failed),
    },
    {
      key: "turns",
      title: "Turns",
      sort: "turns",
      kind: "num wide",
      width: "76px",
      cell: (row) => formatNumber(row.turns, 1),
    },
    {
      key: "errors",
      title: "Errors",
      sort: "tool_errors",
      kind: "num wide",
      width: "80px",
      cell: (row) => formatCount(row.tool_errors),
    },
    {
      key: "seconds",
      title: "Time",
      sort: "seconds",
      kind: "num mid",
      width: "84px",
      cell: (row) => formatSeconds(row.seconds),
    },
    {
      key: "tokens",
      title: "Tokens",
      sort: "tokens",
      kind: "num wide",
      width: "84px",
      cell: (row) => formatCount(Math.round(row.tokens)),
    },
    {
      key: "dollars",
      title: "Cost",
      sort: "dollars",
      kind: "num mid",
      width: "84px",
      cell: (row) => formatDollars(row.dollars),
    },
  ];
}

/**
 * @param {HTMLElement} root
 * @param {string} id
 * @param {import("./router.js").Place} place
 * @returns {Promise<import("./shared.js").ShownPage>}
 */
export async function showRollouts(root, id, place) {
  /** @type {RunOverview} */
  const run = await getJson(["runs", id]);
  /** @type {Record<string, string>} */
  const wanted = { sort: "id", ...Object.fromEntries(place.query) };
  const choices = el("div", { class: "choices" });
  const table = showList(root, run, "rollouts", wanted, (change) => {
    /** @type {LongTable<RolloutCard>} */
    const made = new LongTable({
      label: "Rollouts",
      noun: "rollout",
      columns: makeRolloutColumns(run),
      sort: wanted.sort ?? "",
      onsort: (sort) => change({ sort }),
      empty: "no rollout matches",
      fetch: async (offset, limit) => {
        const page = await getJson(["runs", id, "rollouts"], { ...wanted, offset, limit });
        showChoices(choices, page.choices ?? {}, wanted, change);
        return page;
      },
      href: (row) => rolloutHref(id, row.id, keepFilters(wanted)),
    });
    const results = /** @type {const} */ ([
      ["", "any result"],
      ["passed", "passed"],
      ["failed", "not passed"],
      ["unscored", "no score"],
    ]);
    const bar = [
      searchField("Search tasks", wanted.q ?? "", (q) => change({ q })),
      picker("Result", results, wanted.result ?? "", (result) => change({ result })),
      choices,
      checkField("tool errors", wanted.errors === "1", (on) => change({ errors: on ? "1" : "" })),
      checkField("suspects", wanted.suspect === "1", (on) => change({ suspect: on ? "1" : "" })),
      wanted.task
        ? el(
            "button",
            { type: "button", class: "chip", onclick: () => go(runHref(id, "rollouts")) },
            `task ${wanted.task} ×`,
          )
        : null,
    ];
    return { table: made, bar };
  });
  const open = () =>
    table.row(0) ? go(rolloutHref(id, /** @type {RolloutCard} */ (table.row(0)).id, keepFilters(wanted))) : undefined;
  return {
    title: `${id}: rollouts`,
    keys: [
      { key: "/", text: "search", run: focusFilter },
      { key: "j", text: "open the first one", run: open },
    ],
  };
}

/** @param {Record<string, string>} wanted */
function keepFilters(wanted) {
  return Object.fromEntries(
    LIST_FILTERS.flatMap((name) =>
      wanted[name] && !(name === "sort" && wanted[name] === "id") ? [[name, wanted[name]]] : [],
    ),
  );
}

/**
 * @param {HTMLElement} node
 * @param {Record<string, Record<string, number>>} choices
 * @param {Record<string, string>} wanted
 * @param {(changes: Record<string, string>) => void} change
 */
function showChoices(node, choices, wanted, change) {
  if (node.contains(document.activeElement)) return;
  const names = ["stop", "failure", "kind", "model"].filter(
    (name) => Object.keys(choices[name] ?? {}).filter(Boolean).length > (name === "failure" ? 0 : 1) || wanted[name],
  );
  fill(
    node,
    names.map((name) =>
      picker(
        name,
        [
          ["", `any ${name}`],
          ...Object.entries(choices[name] ?? {})
            .filter(([value]) => value)
            .map(
              ([value, count]) =>
                /** @type {[string, string]} */ ([
                  value,
                  `${name === "model" ? shortModel(value) : value} (${formatCount(count)})`,
                ]),
            ),
        ],
        wanted[name] ?? "",
        (value) => change({ [name]: value }),
      ),
    ),
  );
}

/** @param {RunOverview} run @returns {import("./table.js").Column<RolloutCard>[]} */
function makeRolloutColumns(run) {
  const parts = run.recent.some((row) => row.part);
  return [
    { key: "id", title: "No.", sort: "id", kind: "num wide", width: "70px", cell: (row) => row.id },
    {
      key: "task",
      title: "Rollout",
      sort: "task",
      kind: "main",
      cell: (row) => [row.task, el("span", { class: "soft" }, `#${row.replicate}`)],
    },
    ...(parts
      ? [
          {
            key: "part",
            title: "Part",
            kind: "wide",
            width: "13%",
            cell: (/** @type {RolloutCard} */ row) => [
              row.part,
              row.role ? el("span", { class: "soft" }, ` ${row.role}`) : null,
            ],
          },
        ]
      : []),
    { key: "result", title: "Result", width: "132px", cell: outcomeBadge },
    { key: "score", title: "Score", sort: "score", kind: "num", width: "76px", cell: (row) => formatScore(row.score) },
    { key: "stop", title: "Ended by", kind: "mid", width: "100px", cell: (row) => row.stop },
    {
      key: "turns",
      title: "Turns",
      sort: "turns",
      kind: "num mid",
      width: "74px",
      cell: (row) => formatCount(row.turns),
    },
    {
      key: "errors",
      title: "Errors",
      sort: "tool_errors",
      kind: "num wide",
      width: "78px",
      cell: (row) => formatCount(row.tool_errors),
    },
    {
      key: "tokens",
      title: "Tokens",
      sort: "tokens",
      kind: "num wide",
      width: "86px",
      cell: (row) => formatCount(row.prompt_tokens + row.completion_tokens),
    },
    {
      key: "seconds",
      title: "Time",
      sort: "seconds",
      kind: "num mid",
      width: "86px",
      cell: (row) => formatSeconds(row.seconds),
    },
    {
      key: "dollars",
      title: "Cost",
      sort: "dollars",
      kind: "num wide",
      width: "86px",
      cell: (row) => formatDollars(row.dollars),
    },
  ];
}
