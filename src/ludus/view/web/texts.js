// Texts of agents and tools: the beginning at once, long ones folded, the rest fetched piece by piece.
import { getJson } from "./api.js";
import { button, el } from "./dom.js";
import { formatCount, showControls } from "./format.js";
import { renderInert } from "./inert.js";
import { toast } from "./toasts.js";

/** @typedef {import("./model.js").TextPart} TextPart */
/** @typedef {import("./model.js").ShownImage} ShownImage */

const PIECE = 50_000;
const LONG = 1500;
const LONG_LINES = 24;

/**
 * A text, rendered if the server rendered it.
 * @param {string} text
 * @param {string} html
 * @param {string} form
 */
function showPiece(text, html, form) {
  if (html) return renderInert(html, form === "markdown" ? "prose" : "code");
  return el("pre", { class: "plain", dir: "auto" }, showControls(text));
}

/**
 * Show a text of a rollout.
 * @param {string} run
 * @param {number} id
 * @param {TextPart} part
 * @param {{open?: boolean}} [options]
 */
export function showText(run, id, part, { open = false } = {}) {
  const text = part.text ?? "";
  const body = el("div", { class: "textbody" }, showPiece(text, part.html ?? "", part.form ?? "text"));
  const node = el("div", { class: `text form-${(part.form ?? "text").replace(/\W/g, "")}` }, body);
  const long = text.length > LONG || countLines(text) > LONG_LINES;
  if (long && !open) addClamp(node, body, part);
  if (part.cut) node.append(makeMore(run, id, part, body, [...text].length));
  return node;
}

/** @param {string} text */
function countLines(text) {
  let lines = 1;
  for (let at = text.indexOf("\n"); at >= 0 && lines <= LONG_LINES; at = text.indexOf("\n", at + 1)) lines++;
  return lines;
}

/**
 * @param {HTMLElement} node
 * @param {HTMLElement} body
 * @param {TextPart} part
 */
function addClamp(node, body, part) {
  body.classList.add("clamped");
  const size = part.size ?? (part.text ?? "").length;
  const label = `Show all of it (${formatCount(size)} characters)`;
  const toggle = button(
    label,
    () => {
      const clamped = body.classList.toggle("clamped");
      toggle.textContent = clamped ? label : "Show less";
      toggle.setAttribute("aria-expanded", String(!clamped));
      if (clamped) node.scrollIntoView({ block: "nearest" });
    },
    { class: "plain unclamp", "aria-expanded": "false" },
  );
  node.append(toggle);
}

/**
 * A button that fetches the next piece of a text.
 * @param {string} run
 * @param {number} id
 * @param {TextPart} part
 * @param {HTMLElement} body
 * @param {number} from
 */
function makeMore(run, id, part, body, from) {
  let at = from;
  const size = part.size ?? 0;
  const label = () => `Fetch more: ${formatCount(at)} of ${formatCount(size)} characters are here`;
  const more = button(
    label(),
    async () => {
      more.disabled = true;
      try {
        /** @type {import("./model.js").TextPiece} */
        const piece = await getJson(["runs", run, "rollouts", id, "text"], {
          ref: part.ref ?? "",
          start: at,
          end: at + PIECE,
        });
        body.classList.remove("clamped");
        body.parentElement?.querySelector(".unclamp")?.remove();
        body.append(showPiece(piece.text, piece.html, piece.form));
        at = piece.end;
        more.textContent = label();
        if (at >= piece.size) more.remove();
      } catch (error) {
        toast(String(error instanceof Error ? error.message : error), "bad");
      }
      more.disabled = false;
    },
    { class: "more" },
  );
  return more;
}

/**
 * Pictures, or what stands in their place.
 * @param {ShownImage[] | undefined} images
 */
export function showImages(images) {
  return (images ?? []).map((image, at) =>
    image.src
      ? el(
          "a",
          { href: image.src, target: "_blank", rel: "noopener" },
          el("img", { src: image.src, alt: image.note || `picture ${at + 1}`, loading: "lazy" }),
        )
      : el("p", { class: "soft" }, image.note),
  );
}
