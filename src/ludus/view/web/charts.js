// Charts as SVG: lines with bands and marks, bars, intervals, a waterfall. Each is a figure with a title, a text that
// says the same, and its numbers as a table. A chart has its height before its data, so nothing moves when they arrive.
import { el, fill, grid, svg } from "./dom.js";
import { formatNumber } from "./format.js";

/** @typedef {{x: number, y: number | null, low?: number | null, high?: number | null, mark?: string, tone?: string, note?: string, href?: string}} ChartPoint */
/** @typedef {{name: string, points: ChartPoint[], dots?: boolean, line?: boolean, tone?: number}} ChartSeries */
/** @typedef {{title: string, series: ChartSeries[], xLabel: string, yLabel?: string, height?: number, low?: number, high?: number, showY?: (value: number) => string, showX?: (value: number) => string, summary?: string}} LineOptions */
/** @typedef {{left: number, top: number, width: number, height: number, x0: number, x1: number, y0: number, y1: number}} Frame */

const MARGIN = { left: 52, right: 12, top: 10, bottom: 34 };

/**
 * Steps of an axis that people read well.
 * @param {number} low
 * @param {number} high
 * @param {number} count
 */
function chooseTicks(low, high, count) {
  const span = high - low || 1;
  const rough = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough) ?? 10);
  const ticks = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step)
    ticks.push(Number(value.toPrecision(12)));
  return ticks;
}

/**
 * A figure that draws itself again when its width changes.
 * @param {string} title
 * @param {string} summary
 * @param {number} height
 * @param {(width: number, readout: HTMLElement) => SVGElement} draw
 * @param {(Node | null)[]} rest
 */
function makeFigure(title, summary, height, draw, rest) {
  const canvas = el("div", { class: "canvas" });
  canvas.style.height = `${height}px`;
  const readout = el("p", { class: "readout" });
  const figure = el(
    "figure",
    { class: "chart" },
    el("figcaption", null, title),
    canvas,
    readout,
    rest.filter((node) => node !== null),
  );
  let drawn = 0;
  const paint = () => {
    const width = canvas.clientWidth;
    if (!width || width === drawn) return;
    drawn = width;
    const drawing = draw(width, readout);
    drawing.setAttribute("role", "img");
    drawing.setAttribute("aria-label", summary ? `${title}. ${summary}` : title);
    fill(canvas, drawing);
  };
  new ResizeObserver(paint).observe(canvas);
  return figure;
}

/** @param {number} at @param {number} low @param {number} high @param {number} size */
function scale(at, low, high, size) {
  return high === low ? size / 2 : ((at - low) / (high - low)) * size;
}

/** @param {Frame} frame @param {number} x */
function placeX(frame, x) {
  return frame.left + scale(x, frame.x0, frame.x1, frame.width);
}

/** @param {Frame} frame @param {number} y */
function placeY(frame, y) {
  return frame.top + frame.height - scale(Math.max(frame.y0, Math.min(frame.y1, y)), frame.y0, frame.y1, frame.height);
}

/**
 * @param {LineOptions} options
 * @param {number} width
 * @returns {Frame}
 */
function makeFrame(options, width) {
  const points = options.series.flatMap((series) => series.points);
  const xs = points.map((point) => point.x);
  const ys = points.flatMap((point) => [point.y, point.low, point.high]).filter((y) => typeof y === "number");
  let low = options.low ?? minimum(ys, 0);
  let high = options.high ?? maximum(ys, 1);
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const pad = (high - low) * 0.06;
  return {
    left: MARGIN.left,
    top: MARGIN.top,
    width: Math.max(10, width - MARGIN.left - MARGIN.right),
    height: (options.height ?? 200) - MARGIN.top - MARGIN.bottom,
    x0: minimum(xs, 0),
    x1: maximum(xs, 1),
    y0: options.low === undefined ? low - pad : low,
    y1: options.high === undefined ? high + pad : high,
  };
}

/** @param {number[]} values @param {number} otherwise */
function minimum(values, otherwise) {
  const least = values.reduce((smallest, value) => Math.min(smallest, value), Infinity);
  return least === Infinity ? otherwise : least;
}

/** @param {number[]} values @param {number} otherwise */
function maximum(values, otherwise) {
  const most = values.reduce((largest, value) => Math.max(largest, value), -Infinity);
  return most === -Infinity ? otherwise : most;
}

/**
 * @param {Frame} frame
 * @param {{xLabel: string, showX?: (value: number) => string, showY?: (value: number) => string}} options
 */
function drawAxes(frame, options) {
  const showX = options.showX ?? ((value) => formatNumber(value, 2));
  const showY = options.showY ?? ((value) => formatNumber(value, 3));
  const bottom = frame.top + frame.height;
  const across = chooseTicks(frame.y0, frame.y1, 4).map((y) => [
    svg("line", {
      class: "gridline",
      x1: frame.left,
      x2: frame.left + frame.width,
      y1: placeY(frame, y),
      y2: placeY(frame, y),
    }),
    svg("text", { x: frame.left - 7, y: placeY(frame, y) + 4, "text-anchor": "end" }, showY(y)),
  ]);
  const whole = [frame.x0, frame.x1].every(Number.isInteger);
  const ticks = chooseTicks(frame.x0, frame.x1, Math.min(8, frame.width / 70)).filter(
    (x) => !whole || Number.isInteger(x),
  );
  const along = ticks.map((x) =>
    svg("text", { x: placeX(frame, x), y: bottom + 16, "text-anchor": "middle" }, showX(x)),
  );
  const label = svg(
    "text",
    { x: frame.left + frame.width / 2, y: bottom + 31, "text-anchor": "middle", class: "axis" },
    options.xLabel,
  );
  return [
    ...across.flat(),
    svg("line", { class: "baseline", x1: frame.left, x2: frame.left + frame.width, y1: bottom, y2: bottom }),
    ...along,
    label,
  ];
}

/**
 * The pieces of a line without gaps.
 * @param {ChartPoint[]} points
 * @returns {(ChartPoint & {y: number})[][]}
 */
function splitLine(points) {
  /** @type {(ChartPoint & {y: number})[][]} */
  const pieces = [[]];
  for (const point of points) {
    if (point.y === null) pieces.push([]);
    else pieces.at(-1)?.push({ ...point, y: point.y });
  }
  return pieces.filter((piece) => piece.length > 0);
}

/**
 * @param {Frame} frame
 * @param {ChartSeries} series
 * @param {number} at
 */
function drawSeries(frame, series, at) {
  const tone = `tone-${(series.tone ?? at) % 8}`;
  const parts = splitLine(series.points).flatMap((piece) => {
    const path = piece
      .map((point) => `${placeX(frame, point.x).toFixed(1)},${placeY(frame, point.y).toFixed(1)}`)
      .join(" ");
    const banded = piece.filter((point) => typeof point.low === "number" && typeof point.high === "number");
    const top = banded.map(
      (point) => `${placeX(frame, point.x).toFixed(1)},${placeY(frame, Number(point.high)).toFixed(1)}`,
    );
    const bottom = banded
      .map((point) => `${placeX(frame, point.x).toFixed(1)},${placeY(frame, Number(point.low)).toFixed(1)}`)
      .reverse();
    return [
      banded.length > 1 && series.line !== false
        ? svg("polygon", { class: `band ${tone}`, points: [...top, ...bottom].join(" ") })
        : null,
      series.line === false ? null : svg("polyline", { class: `line ${tone}`, points: path }),
    ];
  });
  return [...parts, ...drawMarks(frame, series, tone)];
}

/**
 * The points themselves where they are few or say something, with their intervals.
 * @param {Frame} frame
 * @param {ChartSeries} series
 * @param {string} tone
 */
function drawMarks(frame, series, tone) {
  const few = series.dots ?? series.points.length <= 60;
  return series.points.flatMap((point) => {
    if (point.y === null || !(few || point.mark)) return [];
    const [x, y] = [placeX(frame, point.x), placeY(frame, point.y)];
    const lone = typeof point.low === "number" && typeof point.high === "number" && series.line === false;
    const bar = lone
      ? svg("line", {
          class: `whisker ${tone}`,
          x1: x,
          x2: x,
          y1: placeY(frame, Number(point.low)),
          y2: placeY(frame, Number(point.high)),
        })
      : null;
    return [bar, drawMark(point, x, y, tone)];
  });
}

/**
 * @param {ChartPoint} point
 * @param {number} x
 * @param {number} y
 * @param {string} tone
 */
function drawMark(point, x, y, tone) {
  const title = point.note ? svg("title", null, point.note) : null;
  if (point.mark === "accepted") return svg("path", { class: "mark good", d: `M${x} ${y - 7}l6 11h-12z` }, title);
  if (point.mark === "rejected")
    return svg("path", { class: "mark bad", d: `M${x - 4} ${y - 4}l8 8m0 -8l-8 8` }, title);
  return svg("circle", { class: `dot ${point.tone ?? tone}`, cx: x, cy: y, r: 3 }, title);
}

/**
 * A chart of lines.
 * @param {LineOptions} options
 */
export function lineChart(options) {
  const shown = { ...options, series: options.series.filter((series) => series.points.length > 0) };
  const showX = options.showX ?? ((value) => formatNumber(value, 2));
  const showY = options.showY ?? ((value) => formatNumber(value, 3));
  const draw = (/** @type {number} */ width, /** @type {HTMLElement} */ readout) => {
    const frame = makeFrame(shown, width);
    const drawing = svg("svg", { width, height: options.height ?? 200, class: "plot" }, drawAxes(frame, options));
    shown.series.forEach((series, at) =>
      drawing.append(...drawSeries(frame, series, at).filter((node) => node !== null)),
    );
    followPointer(drawing, frame, shown, readout, showX, showY);
    return drawing;
  };
  const rows = shown.series.flatMap((series) =>
    series.points.map((point) => [
      series.name,
      showX(point.x),
      point.y === null ? "none" : showY(point.y),
      typeof point.low === "number" ? `${showY(point.low)} to ${showY(Number(point.high))}` : "",
      point.note ?? point.mark ?? "",
    ]),
  );
  const legend = shown.series.length > 1 ? makeLegend(shown.series) : null;
  const data = makeData(options.title, ["series", options.xLabel, options.yLabel ?? "value", "interval", "note"], rows);
  return makeFigure(
    options.title,
    options.summary ?? describeSeries(shown.series, showY),
    options.height ?? 200,
    draw,
    [legend, data],
  );
}

/** @param {ChartSeries[]} series */
function makeLegend(series) {
  return el(
    "ul",
    { class: "legend" },
    series.map((one, at) => el("li", { class: `tone-${(one.tone ?? at) % 8}` }, one.name)),
  );
}

/**
 * @param {string} title
 * @param {string[]} head
 * @param {(string | number)[][]} rows
 */
function makeData(title, head, rows) {
  const node = el("details", { class: "data" }, el("summary", null, "Numbers"));
  const add = () =>
    node.append(
      grid(title, head, rows.slice(0, 500), ["", "num", "num", "num", ""]),
      rows.length > 500 ? `the first 500 of ${rows.length}` : "",
    );
  node.addEventListener("toggle", add, { once: true });
  return node;
}

/** @param {ChartSeries[]} series @param {(value: number) => string} showY */
function describeSeries(series, showY) {
  return series
    .map((one) => {
      const known = one.points.filter((point) => point.y !== null);
      const [first, last] = [known[0], known.at(-1)];
      return first && last
        ? `${one.name}: from ${showY(Number(first.y))} to ${showY(Number(last.y))} over ${known.length} points`
        : `${one.name}: no points`;
    })
    .join("; ");
}

/**
 * Show the numbers under the pointer in a line that is always there.
 * @param {SVGElement} drawing
 * @param {Frame} frame
 * @param {LineOptions} options
 * @param {HTMLElement} readout
 * @param {(value: number) => string} showX
 * @param {(value: number) => string} showY
 */
function followPointer(drawing, frame, options, readout, showX, showY) {
  const cursor = svg("line", { class: "cursor", y1: frame.top, y2: frame.top + frame.height, x1: -9, x2: -9 });
  drawing.append(cursor);
  const all = options.series.flatMap((series) => series.points);
  const find = (/** @type {PointerEvent | MouseEvent} */ event) => {
    const at = event.clientX - drawing.getBoundingClientRect().left;
    return all.reduce(
      (/** @type {ChartPoint | null} */ best, point) =>
        best === null || Math.abs(placeX(frame, point.x) - at) < Math.abs(placeX(frame, best.x) - at) ? point : best,
      null,
    );
  };
  drawing.addEventListener("pointermove", (event) => {
    const near = find(/** @type {PointerEvent} */ (event));
    if (!near) return;
    cursor.setAttribute("x1", String(placeX(frame, near.x)));
    cursor.setAttribute("x2", String(placeX(frame, near.x)));
    const values = options.series.flatMap((series) => {
      const point = series.points.find((one) => one.x === near.x && one.y !== null);
      if (!point) return [];
      const range = typeof point.low === "number" ? ` (${showY(point.low)} to ${showY(Number(point.high))})` : "";
      return [
        `${options.series.length > 1 ? `${series.name} ` : ""}${showY(Number(point.y))}${range}${point.note ? ` · ${point.note}` : ""}`,
      ];
    });
    fill(readout, `${options.xLabel} ${showX(near.x)}: ${values.join(" · ")}`);
  });
  drawing.addEventListener("click", (event) => {
    const near = find(/** @type {MouseEvent} */ (event));
    if (near?.href) location.hash = near.href;
  });
  if (all.some((point) => point.href)) drawing.classList.add("clickable");
}

/** @typedef {{name: string, value: number, text?: string, tone?: string, href?: string, title?: string}} Bar */

/**
 * Horizontal bars with their numbers, as a table: it reads as well without the bars.
 * @param {string} title
 * @param {Bar[]} bars
 * @param {{most?: number}} [options]
 */
export function barTable(title, bars, { most } = {}) {
  const top = most ?? Math.max(1e-9, ...bars.map((bar) => Math.abs(bar.value)));
  const rows = bars.map((bar) => {
    const share = svg(
      "svg",
      { class: "bar", "aria-hidden": "true", viewBox: "0 0 100 10", preserveAspectRatio: "none" },
      svg("rect", {
        class: bar.tone ?? "tone-0",
        x: 0,
        y: 0,
        width: Math.min(100, (Math.abs(bar.value) / top) * 100),
        height: 10,
      }),
    );
    const name = bar.href ? el("a", { href: bar.href }, bar.name) : bar.name;
    return el(
      "tr",
      { title: bar.title ?? null },
      el("th", { scope: "row" }, name),
      el("td", { class: "barcell" }, share),
      el("td", { class: "num" }, bar.text ?? formatNumber(bar.value, 2)),
    );
  });
  return el("table", { class: "bars" }, el("caption", null, title), el("tbody", null, rows));
}

/**
 * One bar cut into shares.
 * @param {string} title
 * @param {Bar[]} parts
 */
export function shareBar(title, parts) {
  const total = parts.reduce((sum, part) => sum + part.value, 0) || 1;
  let from = 0;
  const pieces = parts.map((part, at) => {
    const width = (part.value / total) * 100;
    const piece = svg(
      "rect",
      { class: part.tone ?? `tone-${at % 8}`, x: from, y: 0, width, height: 10 },
      svg("title", null, `${part.name}: ${part.text ?? part.value}`),
    );
    from += width;
    return piece;
  });
  const label = parts.map((part) => `${part.name} ${part.text ?? part.value}`).join(", ");
  return el(
    "figure",
    { class: "shares" },
    el("figcaption", null, title),
    svg(
      "svg",
      { viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${label}` },
      pieces,
    ),
    el(
      "ul",
      { class: "legend" },
      parts.map((part, at) =>
        el(
          "li",
          { class: part.tone ?? `tone-${at % 8}` },
          `${part.name} `,
          el("b", null, part.text ?? String(part.value)),
        ),
      ),
    ),
  );
}

/**
 * A value and its interval on a line with a zero or other mark, for tables.
 * @param {number | null} value
 * @param {{low: number, high: number} | null | undefined} range
 * @param {{low: number, high: number, zero?: number}} scaleOf
 */
export function intervalMark(value, range, scaleOf) {
  const at = (/** @type {number} */ x) => Math.max(0, Math.min(100, scale(x, scaleOf.low, scaleOf.high, 100)));
  const { zero } = scaleOf;
  const tone = !range || zero === undefined ? "plain" : range.low > zero ? "good" : range.high < zero ? "bad" : "plain";
  return svg(
    "svg",
    { class: "interval", viewBox: "0 0 100 14", preserveAspectRatio: "none", "aria-hidden": "true" },
    scaleOf.zero === undefined
      ? null
      : svg("line", { class: "zero", x1: at(scaleOf.zero), x2: at(scaleOf.zero), y1: 0, y2: 14 }),
    range ? svg("line", { class: `range ${tone}`, x1: at(range.low), x2: at(range.high), y1: 7, y2: 7 }) : null,
    value === null ? null : svg("line", { class: `value ${tone}`, x1: at(value), x2: at(value), y1: 2, y2: 12 }),
  );
}

/** @typedef {{name: string, start: number, seconds: number, tone: string, text?: string, turn?: number}} Span */

/**
 * Time as a waterfall: one row for each span, in order.
 * @param {string} title
 * @param {Span[]} spans
 * @param {{show: (seconds: number) => string, onpick?: (span: Span) => void}} options
 */
export function waterfall(title, spans, { show, onpick }) {
  const end = Math.max(1e-9, ...spans.map((span) => span.start + span.seconds));
  const rows = spans.map((span) => {
    const bar = svg(
      "svg",
      { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", {
        class: span.tone,
        x: (span.start / end) * 100,
        width: Math.max(0.25, (span.seconds / end) * 100),
        y: 0,
        height: 10,
      }),
    );
    const name =
      onpick && span.turn
        ? el(
            "a",
            {
              href: "#",
              onclick: (/** @type {Event} */ event) => {
                event.preventDefault();
                onpick(span);
              },
            },
            span.name,
          )
        : span.name;
    return el(
      "tr",
      null,
      el("th", { scope: "row" }, name),
      el("td", { class: "barcell" }, bar),
      el("td", { class: "num" }, show(span.seconds)),
      el("td", { class: "num soft" }, `at ${show(span.start)}`),
    );
  });
  return el(
    "div",
    { class: "scroll tall", tabindex: 0, role: "region", "aria-label": title },
    el("table", { class: "bars waterfall" }, el("caption", { class: "unseen" }, title), el("tbody", null, rows)),
  );
}
