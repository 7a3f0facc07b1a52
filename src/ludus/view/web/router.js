// Where the reader is: `#/run/first/rollout/ab12?turn=3`. Every page and every selection has such an address.

/** @typedef {{path: string[], query: URLSearchParams}} Place */

/** @returns {Place} */
export function readPlace() {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { path: path.split("/").filter(Boolean).map(decodePart), query: new URLSearchParams(query) };
}

/** @param {string} part */
function decodePart(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/**
 * The address of a page. Values that are empty are left out.
 * @param {readonly (string | number)[]} path
 * @param {Record<string, string | number | null | undefined>} [query]
 */
export function makeHref(path, query = {}) {
  const pairs = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = new URLSearchParams(pairs.map(([name, value]) => [name, String(value)])).toString();
  return `#/${path.map((part) => encodeURIComponent(String(part))).join("/")}${search ? `?${search}` : ""}`;
}

/**
 * Go to a page.
 * @param {string} href
 */
export function go(href) {
  location.hash = href;
}

/**
 * Note a selection in the address without leaving the page.
 * @param {Record<string, string | number | null | undefined>} changes
 */
export function noteQuery(changes) {
  const { path, query } = readPlace();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") query.delete(name);
    else query.set(name, String(value));
  }
  const rest = query.toString();
  history.replaceState(null, "", `${makeHref(path)}${rest ? `?${rest}` : ""}`);
}
