// Curves of the server as charts: those of one group in one chart, in the unit that they have.
import { lineChart } from "./charts.js";
import { formatCount, formatDollars, formatNumber, formatPercent, formatSeconds } from "./format.js";

/** @typedef {import("./model.js").ChartCurve} ChartCurve */

const GROUP_TITLES = /** @type {Record<string, string>} */ ({
  score: "Score",
  reward: "Reward",
  length: "Length",
  errors: "Tool errors",
  cost: "Cost",
  throughput: "Throughput",
  policy: "Policy",
  failures: "Failures",
  staleness: "Staleness",
});

/** @param {string} unit @returns {(value: number) => string} */
export function unitFormat(unit) {
  if (unit === "dollars") return formatDollars;
  if (unit === "seconds") return formatSeconds;
  if (unit === "tokens") return formatCount;
  if (unit === "share") return formatPercent;
  return (value) => formatNumber(value, Math.abs(value) < 1 ? 4 : 2);
}

/** @param {ChartCurve} curve @param {string} name @param {(ref: string) => string} [href] @returns {import("./charts.js").ChartSeries} */
export function toSeries(curve, name, href) {
  return {
    name,
    line: curve.style !== "dots",
    ...(curve.style === "dots" ? { dots: true } : {}),
    points: curve.points.map((point) => ({
      x: point.x,
      y: point.y,
      low: point.low ?? null,
      high: point.high ?? null,
      ...(point.kind === "accepted" || point.kind === "rejected" ? { mark: point.kind } : {}),
      ...(point.label || point.kind ? { note: [point.label, point.kind].filter(Boolean).join(", ") } : {}),
      ...(point.ref && href ? { href: href(point.ref) } : {}),
    })),
  };
}

/** Curves by the chart that they belong into. @param {ChartCurve[]} curves */
export function groupCurves(curves) {
  /** @type {Map<string, ChartCurve[]>} */
  const groups = new Map();
  for (const curve of curves) {
    const key = JSON.stringify([curve.group || curve.name, curve.unit, curve.x_label]);
    groups.set(key, [...(groups.get(key) ?? []), curve]);
  }
  return [...groups.values()];
}

/** @param {ChartCurve} curve */
export function titleOf(curve) {
  return (
    GROUP_TITLES[curve.group] ?? (curve.group ? curve.group[0]?.toUpperCase() + curve.group.slice(1) : curve.label)
  );
}

/**
 * The charts of a run.
 * @param {ChartCurve[]} curves
 * @param {{href?: (ref: string) => string, height?: number}} [options]
 */
export function showCurves(curves, { href, height = 190 } = {}) {
  return groupCurves(curves.filter((curve) => curve.points.length > (curve.style === "dots" ? 0 : 1))).map((group) => {
    const first = /** @type {ChartCurve} */ (group[0]);
    const title = group.length === 1 ? first.label : titleOf(first);
    return lineChart({
      title,
      series: group.map((curve) => toSeries(curve, curve.label, href)),
      xLabel: first.x_label,
      showY: unitFormat(first.unit),
      height,
      ...chooseLimits(group),
    });
  });
}

/**
 * Where the axis begins and ends: shares from 0 to 1, quantities from 0.
 * @param {ChartCurve[]} curves
 * @returns {{low?: number, high?: number}}
 */
function chooseLimits(curves) {
  const values = curves.flatMap((curve) =>
    curve.points.flatMap((point) => [point.y, point.low ?? point.y, point.high ?? point.y]),
  );
  const [least, most] = [Math.min(...values), Math.max(...values)];
  if (curves[0]?.unit === "share" && least >= -0.5 && most <= 1.5)
    return { low: 0, high: curves[0].group === "errors" ? Math.max(0.1, most) : 1 };
  return least >= 0 ? { low: 0, high: most * 1.08 || 1 } : {};
}
