// Tokens, one by one, coloured by a quantity. Colours are classes of a scale; the numbers are in a line below and in the title.
import { getJson } from "./api.js";
import { button, el, fill, nothing, picker } from "./dom.js";
import { formatCount, formatNumber, showControls } from "./format.js";
import { noteQuery } from "./router.js";

/** @typedef {import("./model.js").TokenPage} TokenPage */

const CHUNK = 2000;
const SHADES = 7;

const MODES = /** @type {const} */ ([
  ["mask", "sampled or given"],
  ["logprob", "log-probability of the engine"],
  ["trainer", "log-probability of the trainer"],
  ["mismatch", "difference of trainer and engine"],
  ["advantage", "advantage"],
  ["turn", "turn"],
]);
const LEGENDS = /** @type {Record<string, [string, string][]>} */ ({
  mask: [
    ["t-sampled", "sampled by the policy: trained on"],
    ["t-given", "given: prompt, tool results, template (masked)"],
  ],
  logprob: [
    ["t-low0", "0: certain"],
    ["t-low3", "about −2"],
    ["t-low6", "−6 or less: surprising"],
    ["t-given", "given"],
  ],
  trainer: [
    ["t-low0", "0: certain"],
    ["t-low3", "about −2"],
    ["t-low6", "−6 or less: surprising"],
    ["t-given", "given"],
  ],
  mismatch: [
    ["t-low0", "equal"],
    ["t-low3", "0.1 apart"],
    ["t-low6", "1 or more apart"],
    ["t-given", "given"],
  ],
  advantage: [
    ["t-up4", "above the mean of the group"],
    ["t-down4", "below it"],
    ["t-given", "given: not trained on"],
  ],
  turn: [
    ["t-turn0", "odd turns"],
    ["t-turn1", "even turns"],
  ],
});

export class TokenView {
  /**
   * @param {string} run
   * @param {number} id
   * @param {{mode: string, trainer: boolean, turn?: number}} options
   */
  constructor(run, id, { mode, trainer, turn }) {
    this.run = run;
    this.id = id;
    this.mode = mode || "mask";
    this.turn = turn;
    /** @type {TokenPage[]} */
    this.pages = [];
    const modes = MODES.filter(([name]) => trainer || (name !== "trainer" && name !== "mismatch"));
    this.text = el("div", { class: "tokens", tabindex: 0, role: "region", "aria-label": "Tokens" });
    this.readout = el("p", { class: "readout nums", role: "status" }, "Point at a token to see its numbers.");
    this.legend = el("ul", { class: "legend tokenlegend" });
    this.about = el("p", { class: "soft nums" });
    this.more = button("", () => void this.load(), { class: "more", hidden: true });
    const choose = picker("Colour by", modes, this.mode, (value) => {
      this.mode = value;
      noteQuery({ color: value });
      this.paint();
    });
    this.node = el(
      "div",
      { class: "tokenview" },
      el("div", { class: "bar" }, el("label", { class: "inline" }, "Colour by ", choose), this.about),
      this.legend,
      this.text,
      this.more,
      this.readout,
    );
    this.text.addEventListener("pointerover", (event) => this.tell(event.target));
    void this.load();
  }

  async load() {
    this.more.disabled = true;
    const start = this.pages.at(-1)?.next ?? 0;
    try {
      /** @type {TokenPage} */
      const page = await getJson(["runs", this.run, "rollouts", this.id, "tokens"], { start, limit: CHUNK });
      this.pages.push(page);
    } catch (error) {
      fill(this.text, nothing(error instanceof Error ? error.message : String(error)));
      return;
    }
    this.more.disabled = false;
    this.paint();
  }

  paint() {
    const spans = this.pages.flatMap((page) => page.ids.flatMap((_, at) => this.makeToken(page, at)));
    fill(this.text, spans);
    fill(
      this.legend,
      (LEGENDS[this.mode] ?? []).map(([name, text]) =>
        el("li", null, el("span", { class: `token ${name}` }, "abc"), ` ${text}`),
      ),
    );
    const last = this.pages.at(-1);
    if (!last) return;
    const loaded = this.pages.reduce((sum, page) => sum + page.ids.length, 0);
    const sampled = this.pages.reduce((sum, page) => sum + page.sampled.filter(Boolean).length, 0);
    fill(
      this.about,
      `${formatCount(loaded)} of ${formatCount(last.total)} ids, ${formatCount(sampled)} of them sampled`,
      last.advantage === null ? "" : ` · advantage ${formatNumber(last.advantage, 3)}`,
      last.note ? ` · ${last.note}` : "",
    );
    this.more.hidden = !last.next;
    fill(this.more, `The next ${formatCount(Math.min(CHUNK, last.total - loaded))} ids`);
  }

  /** @param {TokenPage} page @param {number} at */
  makeToken(page, at) {
    const text = page.texts[at];
    const shown = text === undefined ? String(page.ids[at]) : showToken(text);
    const node = el(
      "span",
      {
        class: `token ${text === undefined ? "id" : ""} ${shadeToken(page, at, this.mode)}`,
        "data-at": page.start + at,
      },
      shown,
    );
    return text?.endsWith("\n") ? [node, el("br")] : [node];
  }

  /** @param {EventTarget | null} target */
  tell(target) {
    if (!(target instanceof HTMLElement) || target.dataset.at === undefined) return;
    const place = Number(target.dataset.at);
    const page = this.pages.find((one) => place >= one.start && place < one.start + one.ids.length);
    if (!page) return;
    const at = place - page.start;
    const trainer = page.trainer_logprobs[at];
    const parts = [
      `place ${place}`,
      `id ${page.ids[at]}`,
      `turn ${page.turns[at]}`,
      page.sampled[at] ? "sampled" : "given",
    ];
    if (typeof page.logprobs[at] === "number") parts.push(`logprob ${formatNumber(page.logprobs[at], 4)}`);
    if (typeof trainer === "number") parts.push(`trainer's ${formatNumber(trainer, 4)}`);
    if (page.advantage !== null && page.sampled[at]) parts.push(`advantage ${formatNumber(page.advantage, 3)}`);
    fill(this.readout, parts.join(" · "));
  }
}

/** @param {string} text */
function showToken(text) {
  return showControls(text.replace(/\n/g, "⏎").replace(/\t/g, "⇥")) || "∅";
}

/**
 * The class of a token's colour.
 * @param {TokenPage} page
 * @param {number} at
 * @param {string} mode
 */
function shadeToken(page, at, mode) {
  if (mode === "turn") return `t-turn${((page.turns[at] ?? 1) + 1) % 2}`;
  if (!page.sampled[at]) return "t-given";
  const [engine, trainer] = [page.logprobs[at] ?? null, page.trainer_logprobs[at] ?? null];
  if (mode === "logprob") return engine === null ? "t-unknown" : `t-low${pickShade(-engine / 6)}`;
  if (mode === "trainer") return trainer === null ? "t-unknown" : `t-low${pickShade(-trainer / 6)}`;
  if (mode === "mismatch")
    return trainer === null || engine === null
      ? "t-unknown"
      : `t-low${pickShade((Math.log10(Math.max(1e-3, Math.abs(trainer - engine))) + 3) / 3)}`;
  if (mode === "advantage")
    return page.advantage === null
      ? "t-unknown"
      : page.advantage === 0
        ? "t-sampled"
        : `t-${page.advantage > 0 ? "up" : "down"}${Math.max(1, Math.min(4, Math.ceil(Math.abs(page.advantage) * 4)))}`;
  return "t-sampled";
}

/** @param {number} share */
function pickShade(share) {
  return Math.max(0, Math.min(SHADES - 1, Math.round(share * (SHADES - 1))));
}
