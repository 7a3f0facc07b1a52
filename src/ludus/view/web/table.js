// A table of any length. It fetches pages of rows when they come into view and keeps only the rows that are seen as elements, so
// 100,000 rows cost as much as 50. Rows have one height, so nothing moves when they arrive.
import { el, fill } from "./dom.js";
import { formatCount } from "./format.js";

/**
 * @template R
 * @typedef {{key: string, title: string, width?: string, kind?: string, sort?: string, hint?: string, cell: (row: R) => import("./dom.js").Child | import("./dom.js").Child[]}} Column
 */
/**
 * @template R
 * @typedef {{label: string, columns: Column<R>[], fetch: (offset: number, limit: number) => Promise<{total: number, rows: readonly R[]}>, href?: (row: R) => string, id?: (row: R) => string, sort?: string, onsort?: (sort: string) => void, empty?: import("./dom.js").Child, rowHeight?: number, noun?: string, onfocus?: (row: R) => void}} TableOptions
 */

const PAGE = 100;
const AROUND = 12;

/** @template R */
export class LongTable {
  /** @param {TableOptions<R>} options */
  constructor(options) {
    this.options = options;
    this.height = options.rowHeight ?? 34;
    this.total = -1;
    /** @type {Map<number, readonly R[]>} */
    this.pages = new Map();
    /** @type {Set<number>} */
    this.asked = new Set();
    this.version = 0;
    this.chosen = "";
    this.body = el("tbody");
    this.head = el("tr");
    this.count = el("p", { class: "count", role: "status" });
    const columns = options.columns.map((column) => {
      const node = el("col", { class: column.kind ?? null });
      if (column.width) node.style.width = column.width;
      return node;
    });
    this.table = el(
      "table",
      { class: this.height > 40 ? "long tallrow" : "long" },
      el("caption", { class: "unseen" }, options.label),
      el("colgroup", null, columns),
      el("thead", null, this.head),
      this.body,
    );
    this.box = el(
      "div",
      { class: "scroll longbox", tabindex: 0, role: "region", "aria-label": options.label },
      this.table,
    );
    this.node = el("div", { class: "longtable" }, this.box, this.count);
    this.box.addEventListener("scroll", () => this.paintSoon(), { passive: true });
    new ResizeObserver(() => this.paintSoon()).observe(this.box);
    this.painting = false;
    this.paintHead(options.sort ?? "");
    void this.reload();
  }

  /** @param {string} sort such as `name` or `-name` */
  paintHead(sort) {
    fill(
      this.head,
      this.options.columns.map((column) => {
        const state = sort === column.sort ? "ascending" : sort === `-${column.sort}` ? "descending" : null;
        const turn = () => this.options.onsort?.(state === "descending" ? String(column.sort) : `-${column.sort}`);
        const arrow = state === "ascending" ? " ▲" : state === "descending" ? " ▼" : "";
        const label =
          column.sort && this.options.onsort
            ? el("button", { type: "button", class: "sort", onclick: turn }, column.title, arrow)
            : column.title;
        return el(
          "th",
          { scope: "col", class: column.kind ?? null, "aria-sort": state, title: column.hint ?? null },
          label,
        );
      }),
    );
  }

  /** Fetch again what is seen; rows stay until others have come. */
  async reload() {
    const version = ++this.version;
    this.asked = new Set();
    const page = Math.floor(this.firstSeen() / PAGE);
    this.asked.add(page);
    const answer = await this.fetchPage(page);
    if (!answer || version !== this.version) return;
    this.pages = new Map([[page, answer.rows]]);
    this.total = answer.total;
    this.paint();
  }

  /**
   * A page of rows. What is wrong is said in the table: a row that does not come is not an empty one.
   * @param {number} page
   */
  async fetchPage(page) {
    try {
      return await this.options.fetch(page * PAGE, PAGE);
    } catch (error) {
      fill(this.count, `The rows could not be fetched: ${error instanceof Error ? error.message : error}`);
      return null;
    }
  }

  firstSeen() {
    return Math.max(0, Math.floor(this.box.scrollTop / this.height));
  }

  paintSoon() {
    if (this.painting) return;
    this.painting = true;
    requestAnimationFrame(() => {
      this.painting = false;
      this.paint();
    });
  }

  /** @param {number} index */
  row(index) {
    return this.pages.get(Math.floor(index / PAGE))?.[index % PAGE];
  }

  /** @param {number} page */
  async ask(page) {
    if (this.asked.has(page)) return;
    this.asked.add(page);
    const version = this.version;
    const answer = await this.fetchPage(page);
    if (!answer || version !== this.version) return;
    this.pages.set(page, answer.rows);
    this.total = answer.total;
    this.paint();
  }

  paint() {
    if (this.total < 0) return;
    const noun = this.options.noun ?? "row";
    fill(this.count, `${formatCount(this.total)} ${noun}${this.total === 1 ? "" : "s"}`);
    this.table.setAttribute("aria-rowcount", String(this.total + 1));
    if (this.total === 0) {
      fill(
        this.body,
        el(
          "tr",
          { class: "empty" },
          el("td", { colspan: this.options.columns.length }, this.options.empty ?? "nothing here"),
        ),
      );
      return;
    }
    const seen = Math.ceil(this.box.clientHeight / this.height) || 20;
    const from = Math.max(0, Math.min(this.total - 1, this.firstSeen()) - AROUND);
    const to = Math.min(this.total, from + seen + 2 * AROUND);
    for (let page = Math.floor(from / PAGE); page <= Math.floor((to - 1) / PAGE); page++)
      if (!this.pages.has(page)) void this.ask(page);
    const rows = [];
    for (let index = from; index < to; index++) rows.push(this.makeRow(index));
    const held = this.body.contains(document.activeElement)
      ? document.activeElement?.closest("tr")?.getAttribute("aria-rowindex")
      : null;
    fill(this.body, this.makeGap(from), rows, this.makeGap(this.total - to));
    const again = held ? this.body.querySelector(`tr[aria-rowindex="${held}"] a`) : null;
    if (again instanceof HTMLElement) again.focus({ preventScroll: true });
  }

  /** @param {number} rows */
  makeGap(rows) {
    const cell = el("td", { colspan: this.options.columns.length });
    cell.style.height = `${rows * this.height}px`;
    return rows > 0 ? el("tr", { class: "gap", "aria-hidden": "true" }, cell) : null;
  }

  /** @param {number} index */
  makeRow(index) {
    const row = this.row(index);
    const place = { "aria-rowindex": index + 2 };
    if (row === undefined)
      return el(
        "tr",
        { ...place, class: "waiting" },
        this.options.columns.map((column) => el("td", { class: column.kind ?? null }, "·")),
      );
    const href = this.options.href?.(row);
    const chosen = this.chosen !== "" && this.options.id?.(row) === this.chosen;
    const cells = this.options.columns.map((column, at) => {
      const child = column.cell(row);
      return el(
        "td",
        { class: column.kind ?? null },
        href && at === firstLink(this.options.columns) ? el("a", { href, class: "rowlink" }, child) : child,
      );
    });
    return el("tr", { ...place, class: chosen ? "chosen" : href ? "linked" : null }, cells);
  }

  /** Show a row as chosen, and bring it into view. @param {number} index @param {string} id */
  choose(index, id) {
    this.chosen = id;
    const top = index * this.height;
    if (top < this.box.scrollTop || top > this.box.scrollTop + this.box.clientHeight - 2 * this.height)
      this.box.scrollTop = Math.max(0, top - this.box.clientHeight / 2);
    this.paint();
  }
}

/**
 * The column that links to the row's page.
 * @param {{key: string, kind?: string}[]} columns
 */
function firstLink(columns) {
  return Math.max(
    0,
    columns.findIndex((column) => column.kind?.includes("main")),
  );
}
