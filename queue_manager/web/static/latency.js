// The latency of items, in words.

import { number } from "./clock.js";
import { element, facts } from "./dom.js";

/** @type {[number, string][]} */
const UNITS = [[3600000, "h"], [60000, "min"], [1000, "s"], [1, "ms"]];

const LONGEST = 14400000; // ms, the last bound of the histograms: what took longer is known to have taken this long

/** Two digits are enough: the buckets are coarser. @param {number} ms */
export function duration(ms) {
  /** @param {number} one */
  const inUnit = (one) => Number((ms / one).toPrecision(2));
  const [size, unit] = UNITS.find(([one]) => inUnit(one) >= 1) ?? [1, "ms"];
  return `${inUnit(size)} ${unit}`;
}

/** A percentile. @param {number | null | undefined} ms */
export const percentile = (ms) => (ms == null ? "—" : ms < LONGEST ? duration(ms) : `> ${duration(LONGEST)}`);

/** @param {number} share */
export const percent = (share) => `${share === 1 ? 100 : Math.min(share * 100, 99.99).toFixed(share > 0.9 ? 2 : 1).replace(/\.0+$/, "")} %`;

/** The most important duration of a system: the total, or a part that was measured. @param {Latency} latency @returns {Measure} */
export const leading = (latency) => (latency.due_to_done || !latency.run ? "due_to_done" : latency.wait ? "wait" : "run");

/**
 * The latency of items: the share on time, and percentiles.
 * @param {Latency | null} latency @param {Record<string, string>} names @param {string} when
 */
export function speed(latency, names, when) {
  if (!latency) return null;
  const measure = leading(latency);
  const found = latency[measure];
  const { on_time: onTime } = latency;
  const text = found ? `${names[measure]}, ${when}, ${number(found.count)} measured` : `Nothing was done in ${when}`;
  return element("div", { class: "speed" },
    found && facts("facts", [
      ["On time", onTime && element("span", { class: onTime.share < 0.99 ? "warn" : "good" }, percent(onTime.share))],
      ["p50", percentile(found.p50_ms)], ["p95", percentile(found.p95_ms)], ["p99", percentile(found.p99_ms)],
    ]),
    element("p", { class: "hint" }, text, onTime && ` · on time: ${names[onTime.of].toLowerCase()} within ${duration(onTime.within_ms)}`));
}
