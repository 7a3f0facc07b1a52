// The skill of a training run: its lines with who wrote each and on what evidence, the difference of two versions, what was
// refused, and the review by a person.
import { getJson, getSession, postJson } from "./api.js";
import { intervalMark } from "./charts.js";
import { showDiff } from "./diff.js";
import { badge, button, card, el, facts, field, fill, grid, nothing, picker } from "./dom.js";
import { formatCount, formatPercent, formatRange, formatScore, formatSigned, plural, showControls } from "./format.js";
import { renderInert } from "./inert.js";
import { watchChanges } from "./live.js";
import { showRunHead } from "./page_run.js";
import { noteQuery } from "./router.js";
import { attempt, rolloutLinks } from "./shared.js";
import { toast } from "./toasts.js";

/** @typedef {import("./model.js").BlamedLine} BlamedLine */
/** @typedef {import("./model.js").SkillBlame} SkillBlame */
/** @typedef {import("./model.js").SkillVersion} SkillVersion */
/** @typedef {import("./model.js").SkillVersions} SkillVersions */
/** @typedef {{line: string, text: string, decision: string, reason: string}} LineDecision */
/** @typedef {{run: string, version: string, mayReview: boolean, whyNot: string, decisions: Map<string, LineDecision>, changed: () => void}} SkillContext */

const DECISION_TONES = /** @type {Record<string, string>} */ ({
  accepted: "good",
  shipped: "good",
  final: "good",
  rejected: "bad",
  review: "info",
  initial: "plain",
  working: "info",
  undecided: "warn",
});
const SKILL_VIEWS = /** @type {const} */ ([
  ["blame", "Lines and evidence"],
  ["rendered", "Rendered"],
  ["diff", "Difference"],
  ["refused", "Refused lines"],
]);

/**
 * @param {HTMLElement} root
 * @param {string} run
 * @param {import("./router.js").Place} place
 * @returns {Promise<import("./shared.js").ShownPage>}
 */
export async function showSkill(root, run, place) {
  /** @type {[import("./model.js").RunOverview, SkillVersions, import("./model.js").ViewSession]} */
  const [overview, list, session] = await Promise.all([
    getJson(["runs", run]),
    getJson(["runs", run, "skills"]),
    getSession(),
  ]);
  const head = el("header", { class: "pagehead" }, showRunHead(overview, "skill"));
  if (!list.versions.length) {
    fill(root, head, nothing("The run has no version of a skill yet."));
    return { title: `${run}: skill` };
  }
  const chosen = {
    version: place.query.get("version") || list.shipped || list.versions.at(-1)?.hash || "",
    view: place.query.get("view") ?? "blame",
    left: place.query.get("left") || list.initial || list.versions[0]?.hash || "",
  };
  const body = el("div", { class: "skillbody" });
  const review = el("div");
  /** @type {SkillContext} */
  const context = {
    run,
    version: chosen.version,
    mayReview: session.may_act && list.can_review,
    whyNot: session.may_act ? list.why_not : session.why_not,
    decisions: new Map(),
    changed: () => showReview(review, context),
  };
  const versions = showVersions(list, chosen.version, (hash) => choose({ version: hash }));
  const tabs = el(
    "div",
    { class: "tabs", role: "tablist", "aria-label": "Views of the skill" },
    SKILL_VIEWS.map(([name, text]) => button(text, () => choose({ view: name }), { role: "tab", "data-view": name })),
  );
  const paint = () =>
    attempt(async () => {
      for (const tab of tabs.children)
        tab.setAttribute("aria-selected", String(tab.getAttribute("data-view") === chosen.view));
      markVersion(versions, chosen.version);
      context.version = chosen.version;
      await paintView(body, context, list, chosen, choose);
    });
  /** @param {Partial<typeof chosen>} changes */
  function choose(changes) {
    Object.assign(chosen, changes);
    noteQuery(changes);
    void paint();
  }
  fill(root, head, el("div", { class: "skillpage" }, versions, el("div", null, tabs, body, review)));
  await paint();
  context.changed();
  watchChanges([run], (change) => {
    if (change.what.includes("info") && !context.decisions.size)
      void attempt(async () => {
        /** @type {SkillVersions} */
        const fresh = await getJson(["runs", run, "skills"]);
        if (fresh.total !== list.total) toast("There is a new version of the skill: load the page again to see it");
      });
  });
  return {
    title: `${run}: skill`,
    keys: SKILL_VIEWS.map(([name, text], at) => ({
      key: String(at + 1),
      text: text.toLowerCase(),
      run: () => choose({ view: name }),
    })),
  };
}

/**
 * @param {SkillVersions} list
 * @param {string} current
 * @param {(hash: string) => void} choose
 */
function showVersions(list, current, choose) {
  const rows = [...list.versions].reverse().map((version) =>
    el(
      "li",
      null,
      el(
        "button",
        {
          type: "button",
          class: "version",
          "data-hash": version.hash,
          "aria-pressed": String(version.hash === current),
          onclick: () => choose(version.hash),
        },
        el(
          "span",
          { class: "versionline" },
          el("b", null, version.origin),
          version.decision && version.decision !== version.origin
            ? badge(version.decision, DECISION_TONES[version.decision] ?? "plain")
            : null,
          version.hash === list.shipped && version.decision !== "shipped" ? badge("ships", "good") : null,
        ),
        el(
          "span",
          { class: "soft nums" },
          [
            version.score === null ? "not measured" : formatScore(version.score),
            version.interval ? formatRange(version.interval) : "",
            `+${version.added} −${version.removed}`,
            `${formatCount(version.tokens)} tokens`,
          ]
            .filter(Boolean)
            .join(" · "),
        ),
        version.by
          ? el("span", { class: "soft" }, `by ${version.by}${version.reason ? `: ${version.reason}` : ""}`)
          : null,
      ),
    ),
  );
  return card(
    `Versions (${list.total})`,
    { class: "versions" },
    el("ol", { class: "versionlist", reversed: true, tabindex: 0, "aria-label": "Versions of the skill" }, rows),
  );
}

/** @param {HTMLElement} node @param {string} hash */
function markVersion(node, hash) {
  for (const one of node.querySelectorAll("button.version"))
    one.setAttribute("aria-pressed", String(one.getAttribute("data-hash") === hash));
}

/**
 * @param {HTMLElement} body
 * @param {SkillContext} context
 * @param {SkillVersions} list
 * @param {{version: string, view: string, left: string}} chosen
 * @param {(changes: Partial<{version: string, view: string, left: string}>) => void} choose
 */
async function paintView(body, context, list, chosen, choose) {
  const { run } = context;
  if (chosen.view === "diff") {
    /** @type {import("./model.js").SkillDiff} */
    const diff = await getJson(["runs", run, "skills", "diff"], { left: chosen.left, right: chosen.version });
    const options = list.versions.map(
      (version) =>
        /** @type {[string, string]} */ ([
          version.hash,
          version.decision && version.decision !== version.origin
            ? `${version.origin} (${version.decision})`
            : version.origin,
        ]),
    );
    fill(
      body,
      el(
        "div",
        { class: "bar" },
        el(
          "label",
          { class: "inline" },
          "Before ",
          picker("Before", options, chosen.left, (left) => choose({ left })),
        ),
        el(
          "label",
          { class: "inline" },
          "After ",
          picker("After", options, chosen.version, (version) => choose({ version })),
        ),
        el("span", { class: "nums" }, badge(`+${diff.added}`, "good"), " ", badge(`−${diff.removed}`, "bad")),
      ),
      showDiff(diff.rows, { left: diff.left.origin, right: diff.right.origin }),
    );
  } else if (chosen.view === "rendered") {
    /** @type {import("./model.js").SkillText} */
    const text = await getJson(["runs", run, "skills", chosen.version]);
    fill(
      body,
      describeVersion(text.version),
      text.text.trim() ? el("div", { class: "card" }, renderInert(text.html)) : nothing("This version is empty."),
    );
  } else {
    /** @type {SkillBlame} */
    const blame = await getJson(["runs", run, "skills", chosen.version, "blame"]);
    fill(body, ...(chosen.view === "refused" ? showRefused(blame, context) : showBlame(blame, context)));
  }
}

/** @param {SkillVersion} version */
function describeVersion(version) {
  return el(
    "p",
    { class: "soft nums" },
    `${version.origin}: ${plural(version.lines, "line")}, about ${formatCount(version.tokens)} tokens in every request${version.score === null ? "" : `; score ${formatScore(version.score)}${version.interval ? `, 95 %: ${formatRange(version.interval)}` : ""}`}`,
  );
}

// ---- blame ----

/** @param {SkillBlame} blame @param {SkillContext} context */
function showBlame(blame, context) {
  if (!blame.lines.length)
    return [describeVersion(blame.version), nothing("This version is empty: the agent got no instructions.")];
  const reach = Math.max(
    0.05,
    ...blame.lines.flatMap((line) => [
      Math.abs(line.worth ?? 0),
      Math.abs(line.interval?.low ?? 0),
      Math.abs(line.interval?.high ?? 0),
    ]),
  );
  const rows = blame.lines.map((line) => makeBlameRow(line, context, reach));
  return [
    describeVersion(blame.version),
    el(
      "p",
      { class: "soft" },
      "Each line with the version that brought it. Open a line to see its evidence",
      context.mayReview ? " and to decide about it." : ".",
    ),
    el("ol", { class: "blame", "aria-label": "Lines of the skill" }, rows),
  ];
}

/** @param {BlamedLine} line @param {SkillContext} context @param {number} reach */
function makeBlameRow(line, context, reach) {
  const blank = !line.text.trim();
  const worth =
    line.worth === null || blank
      ? null
      : el(
          "span",
          {
            class: "worth",
            title: `worth in accuracy${line.interval ? `, 95 %: ${formatRange(line.interval, formatSigned)}` : ""}`,
          },
          intervalMark(line.worth, line.interval, { low: -reach, high: reach, zero: 0 }),
          el("b", { class: "nums" }, formatSigned(line.worth)),
        );
  const known =
    !blank &&
    (line.line || line.reason || line.history.length || line.evidence_for.length || line.proposed_from.length);
  const head = [
    el("span", { class: "no nums" }, line.number),
    el("span", { class: "origin" }, line.step ? `step ${line.step}` : line.origin.replace(/_/g, " ")),
    el("span", { class: "linetext" }, blank ? "\u00a0" : showControls(line.text)),
    el(
      "span",
      { class: "marks" },
      worth,
      line.by ? badge(`by ${line.by}`, "info", "a person decided about this line") : null,
      line.status && line.status !== "working" ? badge(line.status, "warn") : null,
    ),
  ];
  if (!known) return el("li", { class: "plainline" }, el("div", { class: "blamehead" }, head));
  const node = el("details", { "data-key": `line-${line.number}` }, el("summary", { class: "blamehead" }, head));
  node.addEventListener("toggle", () => node.append(showLine(line, context)), { once: true });
  return el("li", null, node);
}

/** @param {BlamedLine} line @param {SkillContext} context */
function showLine(line, context) {
  const { run } = context;
  const evidence = /** @type {[string, import("./model.js").RolloutRef[]][]} */ ([
    ["for it", line.evidence_for],
    ["against it", line.evidence_against],
    ["suspected of harm in", line.suspected],
    ["proposed from", line.proposed_from],
  ]);
  return el(
    "div",
    { class: "lineinside" },
    facts([
      ["brought by", `${line.origin}${line.step ? `, step ${line.step}` : ""}`],
      ["why", line.reason ? showControls(line.reason) : ""],
      ["without it", line.situation ? showControls(line.situation) : ""],
      [
        "worth",
        line.worth === null
          ? ""
          : `${formatSigned(line.worth)}${line.interval ? `, 95 %: ${formatRange(line.interval, formatSigned)}` : ""}`,
      ],
      ["it works", line.works === null ? "" : `with probability ${formatPercent(line.works)}`],
      ["it pays", line.pays === null ? "" : `with probability ${formatPercent(line.pays)}`],
      ["price", line.tokens ? `about ${plural(line.tokens, "token")} in every request` : ""],
      ["seen in", line.rollouts ? `${plural(line.rollouts, "rollout")}, ${formatCount(line.passed)} passed` : ""],
      ...evidence
        .filter(([, refs]) => refs.length)
        .map(([name, refs]) => /** @type {[string, Node]} */ ([name, rolloutLinks(run, refs)])),
      ["more", line.more ? `${plural(line.more, "rollout")} not listed` : ""],
    ]),
    line.history.length > 1 || line.history.some((fate) => fate.reason || fate.by)
      ? grid(
          "What happened to the line",
          ["step", "change", "why", "by"],
          line.history.map((fate) => [String(fate.step), fate.change, fate.reason, fate.by]),
          ["", "", "main", ""],
        )
      : null,
    decideLine(line.line, line.text, ["accept", "reject", "revert"], context),
  );
}

/** @param {SkillBlame} blame @param {SkillContext} context */
function showRefused(blame, context) {
  if (!blame.refused.length) return [nothing("No line was refused.")];
  return [
    el(
      "p",
      { class: "soft" },
      `${plural(blame.refused_total, "line")} were proposed and are not in the text${blame.refused_total > blame.refused.length ? `; the first ${blame.refused.length}` : ""}.`,
    ),
    el(
      "ol",
      { class: "blame refused", "aria-label": "Refused lines" },
      blame.refused.map((line) =>
        el(
          "li",
          null,
          el(
            "div",
            { class: "blamehead" },
            el("span", { class: "origin" }, line.step ? `step ${line.step}` : ""),
            el("span", { class: "linetext" }, showControls(line.text)),
            el(
              "span",
              { class: "marks" },
              badge((line.status || "refused").replace(/_/g, " "), "warn"),
              line.by ? badge(`by ${line.by}`, "info") : null,
            ),
          ),
          el(
            "div",
            { class: "lineinside" },
            facts([
              ["why", showControls(line.reason)],
              [
                "worth",
                line.worth === null
                  ? ""
                  : `${formatSigned(line.worth)}${line.interval ? `, 95 %: ${formatRange(line.interval, formatSigned)}` : ""}`,
              ],
              ["proposed by", line.source],
              ["for it", line.evidence_for.length ? rolloutLinks(context.run, line.evidence_for) : ""],
              ["against it", line.evidence_against.length ? rolloutLinks(context.run, line.evidence_against) : ""],
            ]),
          ),
        ),
      ),
    ),
  ];
}

// ---- review ----

/**
 * @param {string} id
 * @param {string} text
 * @param {string[]} choices
 * @param {SkillContext} context
 */
function decideLine(id, text, choices, context) {
  if (!context.mayReview) return context.whyNot ? el("p", { class: "soft" }, context.whyNot) : null;
  if (!id) return el("p", { class: "soft" }, "This line belongs to no change that can be decided about.");
  const reason = el("input", { type: "text", placeholder: "Why?", "aria-label": "Reason" });
  reason.value = context.decisions.get(id)?.reason ?? "";
  const buttons = choices.map((decision) =>
    button(
      decision,
      () => {
        context.decisions.set(id, { line: id, text, decision, reason: reason.value.trim() });
        for (const one of buttons) one.setAttribute("aria-pressed", String(one.textContent === decision));
        context.changed();
      },
      { "aria-pressed": String(context.decisions.get(id)?.decision === decision) },
    ),
  );
  reason.addEventListener("input", () => {
    const before = context.decisions.get(id);
    if (before) context.decisions.set(id, { ...before, reason: reason.value.trim() });
  });
  return el("div", { class: "bar decide" }, el("span", null, "Your decision:"), reason, buttons);
}

/** @param {HTMLElement} node @param {SkillContext} context */
function showReview(node, context) {
  const made = [...context.decisions.values()];
  if (!made.length) {
    fill(node);
    return;
  }
  const who = el("input", { type: "text", "aria-label": "Your name", required: true, autocomplete: "name" });
  const rows = made.map((one) => [
    showControls(one.text),
    badge(one.decision, one.decision === "accept" ? "good" : "bad"),
    one.reason || el("span", { class: "soft" }, "no reason"),
    button("×", () => (context.decisions.delete(one.line), context.changed()), {
      class: "plain",
      "aria-label": `Forget the decision about ${one.line}`,
    }),
  ]);
  const form = el(
    "form",
    { class: "bar" },
    field("Your name", who),
    el("button", { type: "submit", class: "primary" }, `Make a new version (${plural(made.length, "decision")})`),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    void attempt(async () => {
      const decisions = [...context.decisions.values()].map(({ line, decision, reason }) => ({
        line,
        decision,
        reason,
      }));
      /** @type {import("./model.js").ActionReply} */
      const reply = await postJson(["runs", context.run, "skills", "review"], { decisions, by: who.value.trim() });
      toast(reply.text, reply.ok ? "good" : "bad");
      if (!reply.ok) return;
      context.decisions.clear();
      noteQuery({ version: null });
      window.dispatchEvent(new HashChangeEvent("hashchange"));
    });
  });
  fill(
    node,
    card(
      "Your review",
      { class: "review" },
      grid("Decisions", ["line", "decision", "reason", ""], rows, ["main", "", "", ""]),
      form,
      el(
        "p",
        { class: "soft" },
        "The result is a new version; the run keeps what it shipped. The record says that a person decided.",
      ),
    ),
  );
}
