// Numbers as a reader wants them. Every function takes null for "not known" and returns a dash for it.

/** @typedef {{low: number, high: number}} Range */

const NONE = "–";
const IS_KEPT = document.getElementById("snapshot") !== null; // a report is read much later

/** @param {number | null | undefined} value @param {number} [digits] */
export function formatNumber(value, digits = 0) {
  return value === null || value === undefined ? NONE : value.toLocaleString("en", { maximumFractionDigits: digits });
}

/** A score: three digits. @param {number | null | undefined} value */
export function formatScore(value) {
  return value === null || value === undefined ? NONE : value.toFixed(3);
}

/** A difference, with its sign. @param {number | null | undefined} value */
export function formatSigned(value) {
  if (value === null || value === undefined) return NONE;
  return `${value > 0 ? "+" : value < 0 ? "−" : "±"}${Math.abs(value).toFixed(3)}`;
}

/** @param {Range | null | undefined} range @param {(value: number) => string} [show] */
export function formatRange(range, show = formatScore) {
  return range ? `${show(range.low)} to ${show(range.high)}` : "";
}

/** @param {number | null | undefined} value */
export function formatPercent(value) {
  if (value === null || value === undefined) return NONE;
  const percent = value * 100;
  if (percent > 0 && percent < 0.1) return "< 0.1 %";
  return `${percent.toFixed(percent !== 0 && Math.abs(percent) < 10 ? 1 : 0)} %`;
}

/** A count that may be large. @param {number | null | undefined} value */
export function formatCount(value) {
  if (value === null || value === undefined) return NONE;
  if (Math.abs(value) < 10000) return formatNumber(value, Number.isInteger(value) ? 0 : 1);
  return Math.abs(value) < 1e6 ? `${formatNumber(value / 1e3, 1)} k` : `${formatNumber(value / 1e6, 2)} M`;
}

/** @param {number | null | undefined} value */
export function formatDollars(value) {
  if (value === null || value === undefined) return NONE;
  if (value === 0) return "$0";
  return `$${value < 0.1 ? value.toFixed(4) : value < 100 ? value.toFixed(2) : formatNumber(value)}`;
}

/** @param {number | null | undefined} bytes */
export function formatBytes(bytes) {
  if (bytes === null || bytes === undefined) return NONE;
  if (bytes < 1000) return `${bytes} B`;
  if (bytes < 1e6) return `${formatNumber(bytes / 1e3, 1)} kB`;
  return bytes < 1e9 ? `${formatNumber(bytes / 1e6, 1)} MB` : `${formatNumber(bytes / 1e9, 2)} GB`;
}

/** @param {number | null | undefined} seconds */
export function formatSeconds(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 1) return seconds > 0 && seconds < 0.001 ? "< 1 ms" : `${formatNumber(seconds * 1000)} ms`;
  if (seconds < 60) return `${formatNumber(seconds, 1)} s`;
  if (seconds < 3600) return `${formatNumber(seconds / 60, 1)} min`;
  return seconds < 172800 ? `${formatNumber(seconds / 3600, 1)} h` : `${formatNumber(seconds / 86400, 1)} days`;
}

/** How long ago; in a report, when. @param {number | null | undefined} time seconds since 1970 */
export function formatAge(time) {
  if (!time) return NONE;
  if (IS_KEPT) return formatTime(time);
  const age = Math.max(0, Date.now() / 1000 - time);
  return age < 5 ? "now" : `${formatSeconds(age < 60 ? Math.round(age) : age)} ago`;
}

/** @param {number | null | undefined} time seconds since 1970 */
export function formatTime(time) {
  if (!time) return NONE;
  const date = new Date(time * 1000);
  return `${date.toLocaleDateString("sv")} ${date.toLocaleTimeString("sv")}`;
}

/** @param {number} count @param {string} noun @param {string} [plural] */
export function plural(count, noun, plural = `${noun}s`) {
  return `${formatCount(count)} ${count === 1 ? noun : plural}`;
}

/**
 * Text whose invisible characters are visible: control characters and those that turn the direction of writing.
 * @param {string} text
 */
export function showControls(text) {
  return text.replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g,
    nameControl,
  );
}

/** @param {string} character */
function nameControl(character) {
  const code = character.charCodeAt(0);
  if (code === 13) return "";
  return code < 32 ? String.fromCharCode(0x2400 + code) : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}
