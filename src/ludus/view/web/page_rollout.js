// A rollout: what was asked, what the agent did turn by turn, what it got, and where the time went.
import { fileHref, getJson, getSession, postJson } from "./api.js";
import { shareBar, waterfall } from "./charts.js";
import { badge, button, card, el, facts, fill, fold, grid, link, nothing } from "./dom.js";
import {
  formatBytes,
  formatCount,
  formatDollars,
  formatNumber,
  formatPercent,
  formatScore,
  formatSeconds,
  formatSigned,
  formatTime,
  showControls,
} from "./format.js";
import { focusFilter } from "./keys.js";
import { stopChanges, watchChanges } from "./live.js";
import { checkField, LIST_FILTERS } from "./page_lists.js";
import { go, makeHref, noteQuery } from "./router.js";
import { afterTyping, attempt, crumbs, outcomeBadge, outcomeOf, rolloutHref, runHref } from "./shared.js";
import { showText } from "./texts.js";
import { copyText, showDialog, toast } from "./toasts.js";
import { TokenView } from "./token_view.js";
import { showMessage, Transcript, TRANSCRIPT_PARTS } from "./transcript.js";

/** @typedef {import("./model.js").RolloutDetail} RolloutDetail */

const LONGEST_COPY = 20_000_000;

/**
 * @param {HTMLElement} root
 * @param {string} run
 * @param {number} id
 * @param {import("./router.js").Place} place
 * @returns {Promise<import("./shared.js").ShownPage>}
 */
export async function showRollout(root, run, id, place) {
  const kept = Object.fromEntries(
    LIST_FILTERS.flatMap((name) => (place.query.get(name) ? [[name, place.query.get(name) ?? ""]] : [])),
  );
  const turn = Number(place.query.get("turn") ?? 0);
  /** @type {RolloutDetail} */
  const detail = await getJson(["runs", run, "rollouts", id], { ...kept, turn: turn || null });
  const { may_act: mayAct } = await getSession();
  const transcript = new Transcript(run, id, detail.page, { onseen: (number) => noteQuery({ turn: number }) });
  const walk = (/** @type {number | null} */ other) =>
    other === null ? toast("There is no other rollout that way") : go(rolloutHref(run, other, kept));
  const views = makeViews(detail, transcript, place);
  fill(
    root,
    showHead(detail, kept, walk, mayAct),
    el(
      "div",
      { class: "rollout" },
      el("div", { class: "reading" }, views.node),
      el(
        "aside",
        { "aria-label": "About this rollout" },
        showVerdict(detail),
        showGroup(detail, kept),
        showTime(detail, transcript, views),
        showBranches(detail, transcript),
        showFiles(detail),
        showRecord(detail),
      ),
    ),
  );
  if (turn > 0) requestAnimationFrame(() => void transcript.goTo(turn));
  watchChanges([run], () => {});
  const move = (/** @type {number} */ by) => void transcript.goTo(transcript.current() + by);
  return {
    title: `${detail.row.task}#${detail.row.replicate} · ${run}`,
    leave: () => (transcript.leave(), stopChanges()),
    keys: [
      { key: "j", text: "next rollout of the list", run: () => walk(detail.after) },
      { key: "k", text: "rollout before it", run: () => walk(detail.before) },
      { key: "n", text: "next turn", run: () => move(1) },
      { key: "p", text: "turn before it", run: () => move(-1) },
      { key: "e", text: "next tool error", run: () => nextError(transcript) },
      { key: "/", text: "filter the turns", run: focusFilter },
      { key: "v", text: "transcript or tokens", run: views.turn },
      { key: "u", text: "back to the list", run: () => go(runHref(run, "rollouts", kept)) },
    ],
  };
}

/** @param {Transcript} transcript */
function nextError(transcript) {
  const now = transcript.current();
  const found = [...transcript.list.querySelectorAll(".call.error")]
    .map((node) => Number(node.closest(".turn")?.getAttribute("data-turn")))
    .find((turn) => turn > now);
  if (found) void transcript.goTo(found);
  else toast("No tool error in the loaded turns after this one");
}

/**
 * @param {RolloutDetail} detail
 * @param {Record<string, string>} kept
 * @param {(other: number | null) => void} walk
 * @param {boolean} mayAct
 */
function showHead(detail, kept, walk, mayAct) {
  const { row, run } = detail;
  const again =
    mayAct && row.failure
      ? button("Run again", () => void requeueOne(detail), { title: "ask the run for it again: it has no score" })
      : null;
  return el(
    "header",
    { class: "pagehead" },
    crumbs([
      [makeHref(["runs"]), "Runs"],
      [runHref(run), run],
      [runHref(run, "rollouts", kept), "rollouts"],
      ["", `${row.task}#${row.replicate}`],
    ]),
    el(
      "div",
      { class: "titleline" },
      el("h1", null, showControls(row.task), el("span", { class: "soft" }, `#${row.replicate}`)),
      outcomeBadge(row),
      row.part ? badge(`${row.part} ${row.role}`, "plain") : null,
      el("span", { class: "spacer" }),
      el(
        "span",
        { class: "walk" },
        button("← Before", () => walk(detail.before), {
          title: "rollout before it: k",
          disabled: detail.before === null,
        }),
        el(
          "span",
          { class: "soft nums" },
          detail.place ? `${formatCount(detail.place)} of ${formatCount(detail.of)}` : "",
        ),
        button("Next →", () => walk(detail.after), { title: "next rollout: j", disabled: detail.after === null }),
      ),
    ),
    el("div", { class: "actions" }, again, copyButtons(detail)),
  );
}

/** @param {RolloutDetail} detail */
async function requeueOne(detail) {
  await attempt(async () => {
    const reply = await postJson(["runs", detail.run, "control"], { do: "requeue", ids: [detail.row.key] });
    toast(reply.text, reply.ok ? "good" : "bad");
  });
}

/** @param {RolloutDetail} detail */
function copyButtons(detail) {
  const path = fileHref(["runs", detail.run, "rollouts", detail.row.id, "json"]);
  const copyJson = () =>
    attempt(async () => {
      if (detail.row.size > LONGEST_COPY)
        return toast(`It has ${formatBytes(detail.row.size)}: open it as JSON instead`, "info");
      return copyText(await (await fetch(path)).text(), "The record");
    });
  const commands = () =>
    showDialog("As a command", [
      el(
        "dl",
        { class: "commands" },
        Object.entries(detail.commands).map(([name, line]) =>
          el(
            "div",
            null,
            el("dt", null, name),
            el(
              "dd",
              null,
              el("code", { class: "wrap" }, line),
              button("Copy", () => void copyText(line, "The command")),
            ),
          ),
        ),
      ),
    ]);
  return [
    path ? button("Copy as JSON", () => void copyJson()) : null,
    path ? link(path, "Open as JSON", { class: "button", target: "_blank" }) : null,
    Object.keys(detail.commands).length ? button("Copy as a command…", commands) : null,
    button("Copy link", () => void copyText(location.href, "The link")),
    detail.skill
      ? link(runHref(detail.run, "skill", { version: detail.skill }), "Its skill", { class: "button" })
      : null,
  ];
}

/**
 * The transcript and the tokens, one of them shown.
 * @param {RolloutDetail} detail
 * @param {Transcript} transcript
 * @param {import("./router.js").Place} place
 */
function makeViews(detail, transcript, place) {
  const prompt = el("div", { class: "opening" }, showOpening(detail));
  const none = detail.page.total
    ? null
    : nothing(detail.failure ? "It failed before the first turn: the agent did nothing." : "There are no turns.");
  const text = el("div", null, showTurnFilter(transcript, prompt), prompt, none, transcript.node);
  const tokens = el("div", { hidden: true });
  /** @type {TokenView | null} */
  let view = null;
  const tabs = {
    transcript: button("Transcript", () => show("transcript"), { role: "tab" }),
    tokens: button("Tokens", () => show("tokens"), {
      role: "tab",
      disabled: !detail.has_tokens,
      title: detail.has_tokens ? "" : "it has no exact tokens: its model was asked for text",
    }),
  };
  /** @param {"transcript" | "tokens"} name */
  function show(name) {
    const exact = name === "tokens" && detail.has_tokens;
    if (exact && !view) {
      view = new TokenView(detail.run, detail.row.id, {
        mode: place.query.get("color") ?? "mask",
        trainer: detail.has_trainer_logprobs,
      });
      tokens.append(view.node);
    }
    text.hidden = exact;
    tokens.hidden = !exact;
    tabs.transcript.setAttribute("aria-selected", String(!exact));
    tabs.tokens.setAttribute("aria-selected", String(exact));
    noteQuery({ view: exact ? "tokens" : null });
  }
  show(place.query.get("view") === "tokens" ? "tokens" : "transcript");
  const node = el(
    "div",
    null,
    el("div", { class: "tabs", role: "tablist", "aria-label": "Views of the rollout" }, tabs.transcript, tabs.tokens),
    text,
    tokens,
  );
  return { node, turn: () => show(text.hidden ? "transcript" : "tokens"), show };
}

/** @param {RolloutDetail} detail */
function showOpening(detail) {
  if (!detail.opening.length)
    return card("Task", {}, showText(detail.run, detail.row.id, detail.prompt, { open: true }));
  return detail.opening.map((message) =>
    message.role === "system"
      ? fold("System text", { class: "thinking" }, showMessage(detail.run, detail.row.id, message))
      : showMessage(detail.run, detail.row.id, message),
  );
}

/** @param {Transcript} transcript @param {HTMLElement} prompt */
function showTurnFilter(transcript, prompt) {
  const filter = { text: "", /** @type {Set<string>} */ hide: new Set() };
  const input = el("input", {
    type: "search",
    placeholder: "Filter turns by text",
    "aria-label": "Filter turns by text",
  });
  const apply = () => {
    filter.text = input.value.trim();
    prompt.hidden = filter.text !== "" || filter.hide.has("opening");
    transcript.setFilter({ text: filter.text, hide: new Set(filter.hide) });
  };
  input.addEventListener("input", afterTyping(apply));
  const parts = [["opening", "Task"], ...TRANSCRIPT_PARTS];
  const boxes = parts.map(([part = "", label = ""]) =>
    checkField(label, true, (on) => {
      if (on) filter.hide.delete(part);
      else filter.hide.add(part);
      apply();
    }),
  );
  return el(
    "div",
    { class: "bar turnfilter" },
    input,
    el("fieldset", { class: "inlineset" }, el("legend", { class: "unseen" }, "Shown parts"), boxes),
  );
}

/** @param {RolloutDetail} detail */
function showVerdict(detail) {
  const { score, failure, row } = detail;
  const advantage = detail.advantage === null ? null : `advantage in its group: ${formatSigned(detail.advantage)}`;
  return card(
    "Verdict",
    { class: `verdict ${outcomeOf(row).tone}` },
    failure ? showFailure(failure) : null,
    score ? showScore(detail, score) : null,
    score || failure ? null : el("p", { class: "big" }, "not judged"),
    advantage ? el("p", { class: "nums" }, advantage) : null,
    facts([
      ["ended by", row.stop],
      ["turns", formatCount(row.turns)],
      [
        "tool calls",
        formatCount(row.tool_calls) + (row.tool_errors ? `, ${formatCount(row.tool_errors)} with errors` : ""),
      ],
      ["tokens", `${formatCount(row.prompt_tokens)} in, ${formatCount(row.completion_tokens)} out`],
      ["cost", formatDollars(row.dollars)],
      ["time", formatSeconds(row.seconds)],
      ["attempt", row.attempt > 1 ? String(row.attempt) : ""],
    ]),
  );
}

/** @param {import("./model.js").ShownFailure} failure */
function showFailure(failure) {
  const again = failure.retryable ? "; it can be run again" : "";
  return [
    el("p", { class: "big" }, "no score"),
    el("p", null, `The ${failure.boundary} failed, not the agent${again}.`),
    el("pre", { class: "plain reason", tabindex: 0 }, showControls(failure.message)),
  ];
}

/** @param {RolloutDetail} detail @param {import("./model.js").ShownScore} score */
function showScore(detail, score) {
  const partial = score.soft === score.value ? "" : `, partial credit ${formatScore(score.soft)}`;
  const parts = Object.entries(score.parts).map(([name, value]) => [name, formatNumber(value, 4)]);
  const evidence = score.suspect.map((line) => el("li", null, showControls(line)));
  return [
    el(
      "p",
      { class: "big" },
      formatScore(score.value),
      el("small", null, score.passed ? " passed" : " not passed", partial),
    ),
    evidence.length
      ? el(
          "div",
          { class: "suspect" },
          el("b", null, "The agent may have changed the verdict"),
          el("ul", null, evidence),
        )
      : null,
    score.feedback.text ? showText(detail.run, detail.row.id, score.feedback) : null,
    parts.length ? grid("Parts of the score", ["part", "value"], parts, ["main", "num"]) : null,
  ];
}

/** @param {RolloutDetail} detail @param {Record<string, string>} kept */
function showGroup(detail, kept) {
  if (detail.group.length < 2) return null;
  const chips = detail.group.map((row) =>
    link(
      rolloutHref(detail.run, row.id, kept),
      `#${row.replicate} ${row.score === null ? "–" : formatNumber(row.score, 2)}`,
      {
        class: `chip ${outcomeOf(row).tone}`,
        "aria-current": row.id === detail.row.id ? "page" : null,
        title: outcomeOf(row).word,
      },
    ),
  );
  return card("Same task, same policy", {}, el("p", { class: "chips" }, chips));
}

/** @param {RolloutDetail} detail @param {Transcript} transcript @param {{show: (name: "transcript" | "tokens") => void}} views */
function showTime(detail, transcript, views) {
  if (!detail.waterfall.length && !detail.phases.length) return null;
  const total = detail.phases.reduce((sum, phase) => sum + phase.seconds, 0) || 1;
  const seen = detail.waterfall.filter((span) => span.turn > 0 || span.seconds >= total / 500);
  const spans = seen.slice(0, 400).map((span) => ({
    name: span.label,
    start: span.start,
    seconds: span.seconds,
    tone: `phase-${span.phase.replace(/\W/g, "")}`,
    turn: span.turn,
  }));
  const onpick = (/** @type {import("./charts.js").Span} */ span) => {
    views.show("transcript");
    void transcript.goTo(span.turn ?? 1);
  };
  return card(
    "Where the time went",
    {},
    detail.phases.length
      ? shareBar(
          "Phases",
          detail.phases
            .filter((phase) => phase.seconds >= total / 500)
            .map((phase) => ({
              name: phase.phase,
              value: phase.seconds,
              text: `${formatSeconds(phase.seconds)}, ${formatPercent(phase.seconds / total)}`,
              tone: `phase-${phase.phase.replace(/\W/g, "")}`,
            })),
        )
      : null,
    spans.length ? waterfall("Waterfall", spans, { show: formatSeconds, onpick }) : null,
    seen.length > spans.length
      ? el("p", { class: "soft" }, `the first ${spans.length} of ${formatCount(seen.length)} spans`)
      : null,
    detail.waterfall.some((span) => !span.exact)
      ? el("p", { class: "soft" }, "Starts are put one after the other where the record has only lengths.")
      : null,
  );
}

/** @param {RolloutDetail} detail @param {Transcript} transcript */
function showBranches(detail, transcript) {
  if (detail.branches.length < 2) return null;
  const rows = detail.branches.map((branch) =>
    el(
      "li",
      null,
      button(branch.label || `turns ${branch.first} to ${branch.last}`, () => void transcript.goTo(branch.first), {
        class: "plain",
      }),
      el(
        "span",
        { class: "soft nums" },
        ` ${branch.first === branch.last ? `turn ${branch.first}` : `turns ${branch.first} to ${branch.last}`}${branch.after ? `, after turn ${branch.after}` : branch.first > 1 ? ", a conversation of its own" : ""}`,
      ),
    ),
  );
  return card("Branches of the history", {}, el("ul", { class: "branches" }, rows));
}

/** @param {RolloutDetail} detail */
function showFiles(detail) {
  if (!detail.files.length && !detail.files_note) return null;
  const open = (/** @type {string} */ path, /** @type {string} */ ref) =>
    attempt(async () => {
      /** @type {import("./model.js").TextPiece} */
      const piece = await getJson(["runs", detail.run, "rollouts", detail.row.id, "text"], {
        ref,
        start: 0,
        end: 50_000,
      });
      const part = {
        text: piece.text,
        html: piece.html,
        form: piece.form,
        size: piece.size,
        cut: piece.end < piece.size,
        ref,
      };
      showDialog(path, [showText(detail.run, detail.row.id, part, { open: true })]);
    });
  const rows = detail.files.map((file) => [
    file.ref
      ? button(showControls(file.path), () => void open(file.path, file.ref), { class: "plain file" })
      : showControls(file.path),
    file.removed ? badge("removed", "plain") : file.link ? `→ ${showControls(file.link)}` : formatBytes(file.size),
  ]);
  return card(
    "Files that the agent left",
    {},
    rows.length ? grid("Files", ["file", "size"], rows, ["main", "num"]) : null,
    detail.files_note ? el("p", { class: "soft" }, detail.files_note) : rows.length ? null : nothing("none"),
  );
}

/** @param {RolloutDetail} detail */
function showRecord(detail) {
  const show = (/** @type {unknown} */ value) =>
    el("code", { class: "wrap" }, showControls(typeof value === "string" ? value : JSON.stringify(value)));
  const rows = Object.entries({ ...detail.provenance, ...detail.facts }).map(
    ([name, value]) => /** @type {[string, Node]} */ ([name, show(value)]),
  );
  return card(
    "Record",
    {},
    fold(
      "Where it comes from",
      {},
      facts([
        ["key", show(detail.row.key)],
        ["began", formatTime(detail.row.began)],
        ["size", formatBytes(detail.row.size)],
        ...rows,
      ]),
    ),
  );
}
