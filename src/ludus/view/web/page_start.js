// Start a run from a form. The form shows the command line that it is equal to; the command is what counts.
import { getJson, getSession, postJson } from "./api.js";
import { button, card, el, field, fill, fold, link, nothing, picker } from "./dom.js";
import { stopChanges } from "./live.js";
import { noteQuery } from "./router.js";
import { afterTyping, attempt, runHref } from "./shared.js";
import { copyText, toast } from "./toasts.js";

/** @typedef {import("./model.js").FormField} FormField */
/** @typedef {import("./model.js").RunForm} RunForm */

const ASK_LOG_MS = 1500;

/**
 * @param {HTMLElement} root
 * @param {import("./router.js").Place} place
 * @returns {Promise<import("./shared.js").ShownPage>}
 */
export async function showStart(root, place) {
  stopChanges();
  const session = await getSession();
  const head = el(
    "header",
    { class: "pagehead" },
    el("h1", null, "Start a run"),
    el("p", { class: "soft" }, "The form is equal to the command line below it."),
  );
  if (!session.may_act) {
    fill(root, head, nothing(`Nothing can be started from this page: ${session.why_not || "it is read-only"}`));
    return { title: "Start a run" };
  }
  /** @type {import("./model.js").FormList} */
  const list = await getJson(["forms"]);
  const chosen = place.query.get("command") ?? Object.keys(list.commands)[0] ?? "";
  const body = el("div");
  const state = { left: false };
  const show = (/** @type {string} */ command) =>
    attempt(async () => {
      noteQuery({ command });
      showForm(body, await getJson(["forms", command]), state);
    });
  const choose = picker(
    "Command",
    Object.entries(list.commands).map(([name, text]) => /** @type {[string, string]} */ ([name, `${name}: ${text}`])),
    chosen,
    (command) => void show(command),
  );
  choose.classList.add("long");
  fill(root, head, el("div", { class: "bar" }, el("label", { class: "inline" }, "Command ", choose)), body);
  await show(chosen);
  return { title: "Start a run", leave: () => void (state.left = true) };
}

/**
 * @param {HTMLElement} body
 * @param {RunForm} form
 * @param {{left: boolean}} state
 */
function showForm(body, form, state) {
  /** @type {Record<string, string>} */
  const values = {};
  const line = el("code", { class: "wrap", id: "command-line" });
  const problem = el("p", { class: "warning", role: "status", hidden: true });
  const start = el("button", { type: "submit", class: "primary", disabled: true }, "Start");
  const output = el("div");
  const preview = () =>
    attempt(async () => {
      /** @type {import("./model.js").CommandPreview} */
      const shown = await postJson(["forms", form.command, "preview"], { values });
      fill(line, shown.line);
      problem.hidden = !shown.problem;
      fill(problem, shown.problem);
      start.disabled = Boolean(shown.problem);
    });
  const soon = afterTyping(() => void preview(), 250);
  const set = (/** @type {string} */ name, /** @type {string} */ value) => {
    if (value === "") delete values[name];
    else values[name] = value;
    soon();
  };
  const inputs = (/** @type {FormField[]} */ fields) =>
    el(
      "div",
      { class: "formgrid" },
      fields.map((one) => makeInput(one, set)),
    );
  const common = form.fields.filter((one) => one.common || one.required);
  const others = form.fields.filter((one) => !common.includes(one));
  const sections = [...new Set(others.map((one) => one.section))];
  const rest = sections.map(
    (section) => /** @type {[string, FormField[]]} */ ([section, others.filter((one) => one.section === section)]),
  );
  const node = el(
    "form",
    { class: "startform" },
    el("p", null, form.summary),
    card("Settings", {}, inputs(common)),
    rest.map(([section, fields]) => fold(`${section || "more"} (${fields.length})`, { class: "card" }, inputs(fields))),
    card(
      "Command line",
      { class: "commandcard" },
      el("p", null, line),
      problem,
      el(
        "div",
        { class: "bar" },
        start,
        button("Copy", () => void copyText(line.textContent ?? "", "The command")),
      ),
    ),
    output,
  );
  node.addEventListener("submit", (event) => {
    event.preventDefault();
    void attempt(async () => {
      start.disabled = true;
      /** @type {import("./model.js").StartedCommand} */
      const started = await postJson(["forms", form.command, "start"], { values });
      toast("Started", "good");
      void followLog(output, started, state);
    });
  });
  fill(body, node);
  void preview();
}

/**
 * @param {FormField} one
 * @param {(name: string, value: string) => void} set
 */
function makeInput(one, set) {
  const name = one.name.includes(".") ? one.name : one.label;
  const label = one.required ? `${name} *` : name;
  const hint = one.help ? el("span", { class: "hint soft" }, one.help) : null;
  if (one.kind === "choice" || one.kind === "flag") {
    const choices = one.kind === "flag" ? ["true", "false"] : one.choices;
    const select = picker(
      one.label,
      [
        ["", `default${one.default ? `: ${one.default}` : ""}`],
        ...choices.map((choice) => /** @type {[string, string]} */ ([choice, choice])),
      ],
      "",
      (value) => set(one.name, value),
    );
    return el("div", null, field(label, select), hint);
  }
  const input = el("input", {
    type: "text",
    placeholder: one.default,
    name: one.name,
    inputmode: one.kind === "number" || one.kind === "whole" ? "decimal" : null,
    autocomplete: "off",
    spellcheck: "false",
  });
  input.addEventListener("input", () => set(one.name, input.value.trim()));
  return el("div", null, field(label, input), hint);
}

/**
 * Show what the command prints until it ends.
 * @param {HTMLElement} node
 * @param {import("./model.js").StartedCommand} started
 * @param {{left: boolean}} state
 */
async function followLog(node, started, state) {
  const text = el("pre", { class: "plain log", tabindex: 0, "aria-label": "What the command prints" });
  const status = el("p", { role: "status" }, "running");
  fill(
    node,
    card(
      "Started",
      {},
      el("p", null, el("code", { class: "wrap" }, started.line)),
      status,
      started.run ? el("p", null, link(runHref(started.run), `Open ${started.run}`)) : null,
      text,
      el("p", { class: "soft" }, `process ${started.pid}; its output is in ${started.log}`),
    ),
  );
  while (!state.left) {
    /** @type {import("./model.js").LogTail} */
    const tail = await getJson(["starts", started.pid]);
    fill(text, tail.text);
    text.scrollTop = text.scrollHeight;
    fill(status, tail.running ? "running" : `ended with exit code ${tail.code}`);
    if (!tail.running) return;
    await new Promise((resolve) => setTimeout(resolve, ASK_LOG_MS));
  }
}
