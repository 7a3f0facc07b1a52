// Environments over all runs: their tasks, which have references, and which nobody solves.
import { getJson } from "./api.js";
import { intervalMark } from "./charts.js";
import { badge, card, el, facts, fill, fold, grid, link, nothing } from "./dom.js";
import { formatCount, formatPercent, plural } from "./format.js";
import { focusFilter } from "./keys.js";
import { watchChanges } from "./live.js";
import { checkField } from "./page_lists.js";
import { makeHref, noteQuery } from "./router.js";
import { afterTyping, attempt, crumbs, rolloutHref, runHref } from "./shared.js";
import { LongTable } from "./table.js";

/** @typedef {import("./model.js").EnvironmentCard} EnvironmentCard */
/** @typedef {import("./model.js").EnvironmentTask} EnvironmentTask */

/**
 * @param {HTMLElement} root
 * @returns {Promise<import("./shared.js").ShownPage>}
 */
export async function showEnvs(root) {
  /** @type {import("./model.js").EnvironmentPage} */
  const page = await getJson(["envs"], { offset: 0, limit: 500 });
  const rows = page.rows.map((env) => [
    link(makeHref(["env", env.name]), env.name),
    env.summary,
    formatCount(env.runs.length),
    formatCount(env.tasks),
    formatCount(env.rollouts),
    el(
      "span",
      { class: "scoreline" },
      el("b", null, formatPercent(env.rate)),
      intervalMark(env.rate, env.rate === null ? null : { low: 0, high: env.rate }, { low: 0, high: 1 }),
    ),
  ]);
  fill(
    root,
    el(
      "header",
      { class: "pagehead" },
      el("h1", null, "Environments"),
      el("p", { class: "soft" }, "What the runs of this folder were run on."),
    ),
    rows.length
      ? el(
          "div",
          { class: "card" },
          grid("Environments", ["environment", "what it is", "runs", "tasks", "rollouts", "passed"], rows, [
            "main",
            "",
            "num",
            "num",
            "num",
            "scorecell",
          ]),
        )
      : nothing("No run has an environment."),
  );
  watchChanges([], (change) => {
    if (change.what.includes("list")) void attempt(async () => void (await showEnvs(root)));
  });
  return { title: "Environments" };
}

/**
 * @param {HTMLElement} root
 * @param {string} name
 * @param {import("./router.js").Place} place
 * @returns {Promise<import("./shared.js").ShownPage>}
 */
export async function showEnv(root, name, place) {
  /** @type {import("./model.js").EnvironmentPage} */
  const page = await getJson(["envs"], { offset: 0, limit: 500 });
  const env = page.rows.find((one) => one.name === name);
  /** @type {Record<string, string>} */
  const wanted = { sort: "rate", ...Object.fromEntries(place.query) };
  /** @type {LongTable<EnvironmentTask>} */
  const table = new LongTable({
    label: "Tasks",
    noun: "task",
    columns: makeEnvColumns(),
    sort: wanted.sort ?? "",
    empty: "no task matches",
    fetch: (offset, limit) => getJson(["envs", name, "tasks"], { ...wanted, offset, limit }),
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
  search.addEventListener(
    "input",
    afterTyping(() => change({ q: search.value })),
  );
  fill(
    root,
    el(
      "header",
      { class: "pagehead" },
      crumbs([
        [makeHref(["envs"]), "Environments"],
        ["", name],
      ]),
      el("h1", null, name),
      env?.summary ? el("p", null, env.summary) : null,
    ),
    env ? showEnvFacts(env) : null,
    el(
      "div",
      { class: "bar" },
      search,
      checkField("flaky only", wanted.flaky === "1", (on) => change({ flaky: on ? "1" : "" })),
    ),
    table.node,
  );
  watchChanges([], (event) => {
    if (event.what.includes("store")) void attempt(() => table.reload());
  });
  return { title: name, keys: [{ key: "/", text: "search", run: focusFilter }] };
}

/** @param {EnvironmentCard} env */
function showEnvFacts(env) {
  const runs = el(
    "span",
    { class: "refs" },
    env.runs.slice(0, 20).map((run) => link(runHref(run), run)),
    env.runs.length > 20 ? ` and ${env.runs.length - 20} more` : "",
  );
  return card(
    "Over all runs",
    {},
    facts([
      ["tasks", formatCount(env.tasks)],
      [
        "rollouts",
        `${formatCount(env.rollouts)}, ${formatCount(env.passed)} of ${formatCount(env.scored)} scored ones passed (${formatPercent(env.rate)})`,
      ],
      ["runs", runs],
      ["not read yet", env.pending ? plural(env.pending, "run") : ""],
    ]),
    Object.keys(env.options).length
      ? fold(
          "Settings in the newest run",
          {},
          facts(
            Object.entries(env.options).map(([key, value]) => [
              key,
              el("code", { class: "wrap" }, JSON.stringify(value)),
            ]),
          ),
        )
      : null,
  );
}

/** @returns {import("./table.js").Column<EnvironmentTask>[]} */
function makeEnvColumns() {
  return [
    {
      key: "task",
      title: "Task",
      sort: "task",
      kind: "main",
      width: "20%",
      cell: (row) => (row.example === null ? row.task : link(rolloutHref(row.example_run, row.example), row.task)),
    },
    { key: "prompt", title: "Asks", kind: "wide soft", cell: (row) => row.prompt },
    {
      key: "reference",
      title: "Reference",
      kind: "mid",
      width: "96px",
      cell: (row) =>
        row.has_reference === null ? "–" : row.has_reference ? badge("has one", "good") : badge("none", "plain"),
    },
    {
      key: "rate",
      title: "Pass rate",
      sort: "rate",
      kind: "scorecell",
      width: "180px",
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
      width: "70px",
      cell: (row) => (row.flaky ? badge("flaky", "warn") : row.scored && !row.passed ? badge("unsolved", "bad") : null),
    },
    {
      key: "rollouts",
      title: "Rollouts",
      sort: "rollouts",
      kind: "num",
      width: "96px",
      cell: (row) => `${row.passed} of ${row.scored}`,
    },
    { key: "runs", title: "Runs", sort: "runs", kind: "num mid", width: "70px", cell: (row) => formatCount(row.runs) },
    {
      key: "best",
      title: "Best run",
      kind: "wide",
      width: "14%",
      cell: (row) => (row.best_run ? link(runHref(row.best_run), row.best_run) : "–"),
    },
  ];
}
