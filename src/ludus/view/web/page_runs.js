// All runs: find one, see how it goes, pick several and compare them.
import { getJson, postJson } from "./api.js";
import { intervalMark } from "./charts.js";
import { badge, button, el, field, fill, picker } from "./dom.js";
import {
  formatAge,
  formatCount,
  formatDollars,
  formatPercent,
  formatRange,
  formatScore,
  formatTime,
} from "./format.js";
import { watchChanges } from "./live.js";
import { focusFilter } from "./keys.js";
import { go, makeHref, noteQuery } from "./router.js";
import { afterTyping, attempt, runHref, shortModel, stateBadge } from "./shared.js";
import { LongTable } from "./table.js";
import { showDialog, toast } from "./toasts.js";

/** @typedef {import("./model.js").RunCard} RunCard */
/** @typedef {import("./model.js").RunPage} RunPage */

const RUN_FILTERS = /** @type {const} */ (["kind", "state", "env", "model", "tag"]);
const MOST_COMPARED = 8;

/**
 * @param {HTMLElement} root
 * @param {import("./router.js").Place} place
 * @param {import("./model.js").ViewSession} session
 * @returns {Promise<import("./shared.js").ShownPage>}
 */
export async function showRuns(root, place, session) {
  const wanted = Object.fromEntries(place.query);
  /** @type {Set<string>} */
  const picked = new Set();
  const search = el("input", {
    type: "search",
    placeholder: "Search runs, tags and notes",
    "aria-label": "Search runs",
    value: wanted.q ?? "",
  });
  const choices = el("div", { class: "choices" });
  const compare = button("Compare", () => go(compareHref([...picked])), { class: "primary", disabled: true });
  const reading = el("p", { class: "soft", role: "status", hidden: true });
  const state = { sort: wanted.sort ?? "-started" };
  const ask = () => ({ ...wanted, sort: state.sort });
  const onpick = () => {
    compare.disabled = picked.size < 2 || picked.size > MOST_COMPARED;
    fill(compare, picked.size ? `Compare ${picked.size}` : "Compare");
    compare.title = picked.size > MOST_COMPARED ? `at most ${MOST_COMPARED}` : "pick two or more runs";
  };
  const fetchPage = async (/** @type {number} */ offset, /** @type {number} */ limit) => {
    /** @type {RunPage} */
    const page = await getJson(["runs"], { ...ask(), offset, limit });
    showFilters(choices, page.choices, wanted, change);
    reading.hidden = !page.pending;
    fill(reading, `${formatCount(page.pending)} runs were found and are still being read`);
    return page;
  };
  /** @type {LongTable<RunCard>} */
  const table = new LongTable({
    label: "Runs",
    noun: "run",
    rowHeight: 44,
    columns: makeRunColumns(
      picked,
      onpick,
      session.may_act ? (card) => void editNotes(card, () => void table.reload()) : null,
    ),
    fetch: fetchPage,
    href: (card) => runHref(card.id),
    sort: state.sort,
    onsort: (sort) => change({ sort }),
    empty: describeNoRuns(session.title),
  });
  /** @param {Record<string, string>} changes */
  function change(changes) {
    Object.assign(wanted, changes);
    if (changes.sort) state.sort = changes.sort;
    noteQuery(changes);
    table.paintHead(state.sort);
    table.box.scrollTop = 0;
    void attempt(() => table.reload());
  }
  search.addEventListener(
    "input",
    afterTyping(() => change({ q: search.value })),
  );
  fill(
    root,
    el("header", { class: "pagehead" }, el("h1", null, "Runs"), el("p", { class: "soft" }, session.title)),
    el("div", { class: "bar" }, search, choices, compare),
    reading,
    table.node,
  );
  watchChanges([], () => void attempt(() => table.reload()));
  return {
    title: "Runs",
    keys: [
      { key: "/", text: "search", run: focusFilter },
      { key: "c", text: "compare the picked runs", run: () => compare.click() },
    ],
  };
}

/** @param {string} title */
function describeNoRuns(title) {
  return el(
    "span",
    null,
    `No runs here (${title}). Make one: `,
    el("code", null, "ludus evaluate --env.name arithmetic --out runs/first"),
  );
}

/** @param {string[]} runs */
export function compareHref(runs) {
  return `${makeHref(["compare"])}?${new URLSearchParams(runs.map((run) => ["run", run])).toString()}`;
}

/**
 * @param {HTMLElement} node
 * @param {Record<string, Record<string, number>>} choices
 * @param {Record<string, string>} wanted
 * @param {(changes: Record<string, string>) => void} change
 */
function showFilters(node, choices, wanted, change) {
  const key = JSON.stringify([choices, RUN_FILTERS.map((name) => wanted[name])]);
  if (node.dataset.shown === key || node.contains(document.activeElement)) return;
  node.dataset.shown = key;
  const shown = RUN_FILTERS.filter((name) => Object.keys(choices[name] ?? {}).length > 1 || wanted[name]);
  fill(
    node,
    shown.map((name) =>
      picker(
        name,
        [
          ["", `any ${name === "env" ? "environment" : name}`],
          ...Object.entries(choices[name] ?? {}).map(
            ([value, count]) =>
              /** @type {[string, string]} */ ([
                value,
                `${name === "model" ? shortModel(value) : value || "none"} (${count})`,
              ]),
          ),
        ],
        wanted[name] ?? "",
        (value) => change({ [name]: value }),
      ),
    ),
  );
}

/**
 * @param {Set<string>} picked
 * @param {() => void} onpick
 * @param {((card: RunCard) => void) | null} edit
 * @returns {import("./table.js").Column<RunCard>[]}
 */
function makeRunColumns(picked, onpick, edit) {
  const pick = (/** @type {RunCard} */ card) => {
    const box = el("input", {
      type: "checkbox",
      "aria-label": `Pick ${card.id}`,
      checked: picked.has(card.id),
      onchange: () => (box.checked ? picked.add(card.id) : picked.delete(card.id), onpick()),
    });
    return box;
  };
  return [
    { key: "pick", title: "", width: "34px", cell: pick, hint: "pick runs to compare" },
    { key: "id", title: "Run", sort: "id", kind: "main", width: "19%", cell: (card) => card.id },
    {
      key: "tags",
      title: "Tags",
      kind: "tags wide",
      width: "11%",
      cell: (card) => [
        ...card.tags.map((tag) => badge(tag, "plain")),
        card.note ? el("span", { class: "soft", title: card.note }, card.note) : null,
        edit
          ? button("✎", () => edit(card), {
              class: "plain edit",
              "aria-label": `Tags and note of ${card.id}`,
              title: "tags and note",
            })
          : null,
      ],
    },
    { key: "kind", title: "Kind", sort: "kind", width: "84px", kind: "wide", cell: (card) => card.kind },
    {
      key: "state",
      title: "State",
      sort: "state",
      width: "92px",
      cell: (card) => (card.pending ? badge("reading", "plain") : stateBadge(card)),
    },
    {
      key: "env",
      title: "Environment",
      sort: "env",
      kind: "mid",
      width: "12%",
      cell: (card) => el("span", { title: card.env }, card.env),
    },
    {
      key: "model",
      title: "Model",
      sort: "model",
      kind: "wide",
      width: "12%",
      cell: (card) => el("span", { title: card.model }, shortModel(card.model)),
    },
    { key: "score", title: "Score, 95 %", sort: "score", kind: "scorecell", width: "190px", cell: showScoreCell },
    { key: "rollouts", title: "Rollouts", sort: "rollouts", kind: "num mid", width: "96px", cell: showProgress },
    {
      key: "cost",
      title: "Cost",
      sort: "dollars",
      kind: "num mid",
      width: "82px",
      cell: (card) => el("span", { title: `${formatCount(card.tokens)} tokens` }, formatDollars(card.dollars)),
    },
    {
      key: "age",
      title: "Started",
      sort: "started",
      kind: "num mid",
      width: "104px",
      cell: (card) => el("span", { title: formatTime(card.started) }, formatAge(card.started)),
    },
  ];
}

/** @param {RunCard} card */
function showScoreCell(card) {
  if (card.score === null) return el("span", { class: "soft" }, "no score");
  const title = `${card.measure}${card.interval ? `, 95 %: ${formatRange(card.interval)}` : ""}`;
  const scaleOf = { low: Math.min(0, card.interval?.low ?? 0), high: Math.max(1, card.interval?.high ?? 1) };
  return el(
    "span",
    { class: "scoreline", title },
    el("b", null, formatScore(card.score)),
    intervalMark(card.score, card.interval, scaleOf),
    el("span", { class: "unseen" }, formatRange(card.interval)),
  );
}

/** @param {RunCard} card */
function showProgress(card) {
  if (card.state === "running" && card.planned)
    return el(
      "span",
      { title: `${card.rollouts} of ${card.planned}` },
      `${formatCount(card.rollouts)} · ${formatPercent(card.rollouts / card.planned)}`,
    );
  return formatCount(card.rollouts);
}

/**
 * Change the tags and the note of a run.
 * @param {RunCard} card
 * @param {() => void} done
 */
export function editNotes(card, done) {
  const tags = el("input", { type: "text", value: card.tags.join(", "), placeholder: "paper, baseline" });
  const note = el("textarea", { rows: 4 });
  note.value = card.note;
  const form = el(
    "form",
    { class: "ask" },
    field("Tags, with commas between them", tags),
    field("Note", note),
    el(
      "menu",
      null,
      button("Cancel", () => close()),
      el("button", { type: "submit", class: "primary" }, "Save"),
    ),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    void attempt(async () => {
      await postJson(["runs", card.id, "notes"], {
        tags: tags.value
          .split(",")
          .map((tag) => tag.trim())
          .filter(Boolean),
        note: note.value,
      });
      toast("Saved", "good");
      close();
      done();
    });
  });
  const close = showDialog(`Tags and note of ${card.id}`, [form]);
}
