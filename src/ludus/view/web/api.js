// The one way to data: the JSON API of the server, or the snapshot in a report, which answers the same addresses.

/** @typedef {import("./model.js").ViewSession} ViewSession */
/** @typedef {Record<string, string | number | boolean | readonly string[] | null | undefined>} Params */

/** A refusal of the server, in its words. */
export class ApiError extends Error {
  /** @param {string} message @param {number} status */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const embedded = document.getElementById("snapshot");
/** @type {Record<string, any> | null} */
const snapshot = embedded?.textContent ? JSON.parse(embedded.textContent) : null;

/** Whether the page is a report in a file: nothing is live, and nothing can be changed. */
export const isReport = snapshot !== null;

/** @type {ViewSession | null} */
let session = null;

/**
 * The path of a resource, below `/api`.
 * @param {readonly (string | number)[]} parts
 */
function apiPath(...parts) {
  return `/api/${parts
    .flat()
    .map((part) => encodeURIComponent(String(part)))
    .join("/")}`;
}

/** @param {Params} params */
function writeQuery(params) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (Array.isArray(value)) for (const one of value) query.append(name, one);
    else if (value === true) query.append(name, "1");
    else if (value !== null && value !== undefined && value !== "" && value !== false)
      query.append(name, String(value));
  }
  const text = query.toString();
  return text ? `?${text}` : "";
}

/**
 * Get a resource.
 * @param {readonly (string | number)[]} parts
 * @param {Params} [params]
 * @returns {Promise<any>}
 */
export async function getJson(parts, params = {}) {
  const path = apiPath(...parts);
  if (snapshot) return answerFromSnapshot(snapshot, path, params);
  return readReply(await send(path + writeQuery(params), { headers: { Accept: "application/json" } }));
}

/** @param {string} address @param {RequestInit} options */
async function send(address, options) {
  try {
    return await fetch(address, options);
  } catch {
    throw new ApiError("The server does not answer: is ludus view still running?", 0);
  }
}

/** @param {Response} reply */
async function readReply(reply) {
  const body = await reply.json().catch(() => null);
  if (!reply.ok) throw new ApiError(body?.error ?? `The server answered ${reply.status}.`, reply.status);
  return body;
}

/**
 * Change something. The server records it.
 * @param {readonly (string | number)[]} parts
 * @param {unknown} body
 * @returns {Promise<any>}
 */
export async function postJson(parts, body) {
  const { action_token: token } = await getSession();
  const headers = { "Content-Type": "application/json", "X-Ludus-Action": token };
  return readReply(await send(apiPath(...parts), { method: "POST", headers, body: JSON.stringify(body) }));
}

/** @returns {Promise<ViewSession>} */
export async function getSession() {
  session ??= /** @type {ViewSession} */ (await getJson(["session"]));
  return session;
}

/** Ask for the session again: the server may have been started anew. */
export function forgetSession() {
  session = null;
}

/**
 * The address of a file of the server, such as the record of a rollout; empty in a report.
 * @param {readonly (string | number)[]} parts
 */
export function fileHref(parts) {
  return snapshot ? "" : apiPath(...parts);
}

// ---- a report: the same answers without a server ----

/**
 * @param {Record<string, any>} stored
 * @param {string} path
 * @param {Params} params
 */
function answerFromSnapshot(stored, path, params) {
  const whole = stored[path + writeQuery(params)];
  if (whole !== undefined) return whole;
  const base = stored[path];
  if (base === undefined) throw new ApiError("This is not in the report. Open the run with: ludus view", 404);
  if (Array.isArray(base.rows)) return pageRows(base, params);
  if (Array.isArray(base.turns) && typeof params.first === "number")
    return pageTurns(base, params.first, Number(params.limit ?? 20));
  return base;
}

/**
 * Filter, sort and cut a list as the server does.
 * @param {{rows: any[], total: number}} list
 * @param {Params} params
 */
function pageRows(list, { offset = 0, limit = 100, sort = "", q = "", ...filters }) {
  const words = String(q ?? "").toLowerCase();
  const rows = list.rows.filter((row) => {
    if (words && !`${row.task ?? ""} ${row.id ?? ""} ${row.name ?? ""}`.toLowerCase().includes(words)) return false;
    return Object.entries(filters).every(([name, value]) => !value || keepsRow(row, name, value));
  });
  const key = String(sort ?? "").replace(/^-/, "");
  const turn = String(sort ?? "").startsWith("-") ? -1 : 1;
  if (key) rows.sort((a, b) => turn * compareValues(valueOf(a, key), valueOf(b, key)));
  return { ...list, rows: rows.slice(Number(offset), Number(offset) + Number(limit)), total: rows.length };
}

/** @param {any} row @param {string} key */
function valueOf(row, key) {
  return key === "tokens" && row.tokens === undefined ? row.prompt_tokens + row.completion_tokens : row[key];
}

/** @param {any} row @param {string} name @param {unknown} value */
function keepsRow(row, name, value) {
  if (name === "result")
    return value === "passed" ? row.passed === true : value === "failed" ? row.passed === false : row.score === null;
  if (name === "errors") return row.tool_errors > 0;
  if (row[name] === undefined) return true;
  return typeof row[name] === "boolean" ? row[name] === Boolean(value) : String(row[name]) === String(value);
}

/** @param {any} a @param {any} b */
function compareValues(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return a < b ? -1 : 1;
}

/** @param {any} page @param {number} first @param {number} limit */
function pageTurns(page, first, limit) {
  const turns = page.turns.filter((/** @type {any} */ turn) => turn.number >= first).slice(0, limit);
  const last = turns.at(-1)?.number ?? page.total;
  return { ...page, turns, first, next: last < page.total && page.turns.at(-1)?.number > last ? last + 1 : 0 };
}
