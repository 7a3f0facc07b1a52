// Two texts side by side, as the server compared them.
import { el } from "./dom.js";
import { plural } from "./format.js";

/** @typedef {import("./model.js").DiffRow} DiffRow */

/**
 * @param {DiffRow[]} rows
 * @param {{left: string, right: string}} names
 */
export function showDiff(rows, names) {
  const changed = rows.some((row) => row.kind !== "same" && row.kind !== "skipped");
  return el(
    "div",
    {
      class: "scroll",
      tabindex: 0,
      role: "region",
      "aria-label": `Difference between ${names.left} and ${names.right}`,
    },
    changed ? null : el("p", { class: "nothing" }, "The texts are the same."),
    el(
      "table",
      { class: "diff" },
      el("colgroup", null, el("col", { class: "no" }), el("col"), el("col", { class: "no" }), el("col")),
      el(
        "thead",
        null,
        el(
          "tr",
          null,
          el("th", { colspan: 2, scope: "col" }, names.left),
          el("th", { colspan: 2, scope: "col" }, names.right),
        ),
      ),
      el("tbody", null, rows.map(makeDiffRow)),
    ),
  );
}

/** @param {DiffRow} row */
function makeDiffRow(row) {
  if (row.kind === "skipped")
    return el(
      "tr",
      { class: "skipped" },
      el("td", { colspan: 4 }, plural(row.count ?? 0, "line"), " without a change"),
    );
  const old = row.kind === "added" ? "none" : row.kind === "same" ? "same" : "removed";
  const now = row.kind === "removed" ? "none" : row.kind === "same" ? "same" : "added";
  const sign = (/** @type {string} */ kind) => (kind === "removed" ? "− " : kind === "added" ? "+ " : "");
  return el(
    "tr",
    null,
    el("td", { class: `no ${old}` }, sign(old), row.left_number || ""),
    el("td", { class: `code ${old}` }, markParts(row.left ?? "", row.left_marks ?? [], "del")),
    el("td", { class: `no ${now}` }, sign(now), row.right_number || ""),
    el("td", { class: `code ${now}` }, markParts(row.right ?? "", row.right_marks ?? [], "ins")),
  );
}

/**
 * @param {string} text
 * @param {[number, number][]} marks
 * @param {"del" | "ins"} tag
 */
function markParts(text, marks, tag) {
  const characters = [...text]; // the server counts code points
  const parts = [];
  let at = 0;
  for (const [from, to] of marks) {
    parts.push(characters.slice(at, from).join(""), el(tag, null, characters.slice(from, to).join("")));
    at = to;
  }
  return [...parts, characters.slice(at).join("")];
}
