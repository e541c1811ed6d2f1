// The history of one system in a range: latency, outcomes, and marks.

import { attempt, get } from "./api.js";
import { chart, markText } from "./chart.js";
import { moment, number } from "./clock.js";
import { byId, button, element, mayAct, nodes } from "./dom.js";
import { duration, leading, percent, percentile, speed } from "./latency.js";

const INTERVAL = 60000; // ms between two readings
/** @type {[HistoryRange, string, string][]} */
const RANGES = [["1h", "1 h", "the last hour"], ["24h", "24 h", "the last 24 h"], ["7d", "7 days", "the last 7 days"], ["30d", "30 days", "the last 30 days"], ["90d", "90 days", "the last 90 days"]];
const STEPS = /** @type {Record<number, string>} */ ({ 60: "minute", 600: "10 min", 3600: "hour", 21600: "6 h", 86400: "day" });
const place = byId("past");
/** @type {HistoryRange} */
let range = RANGES.find(([one]) => location.hash === `#${one}`)?.[0] ?? "24h";
let isChosen = RANGES.some(([one]) => location.hash === `#${one}`);
/** @type {number | undefined} */
let timer;

const body = element("div", { class: "stack" });
const buttons = RANGES.map(([one, text]) => button(text, () => choose(one), "quiet"));
place.append(
  element("header", { class: "head" }, element("h2", { id: "past-title" }, "History"), element("div", { class: "ranges", role: "group", "aria-label": "Range" }, buttons)),
  body);

/** @param {HistoryRange} one */
function choose(one) {
  range = one;
  isChosen = true;
  history.replaceState(history.state, "", `#${one}`);
  read();
}

/** @param {PastOfSystem} past @returns {Child[]} */
function drawn({ begins_at: begins, step_seconds: seconds, outcomes, percentiles, latency, duration_names: names, marks }) {
  const { done, failed, retried } = outcomes;
  const measure = leading(latency);
  const { p50_ms: p50, p95_ms: p95, p99_ms: p99 } = percentiles[measure];
  /** @param {(number | null)[]} values */
  const total = (values) => number(values.reduce((/** @type {number} */ sum, value) => sum + (value ?? 0), 0));
  const { [measure]: found, on_time: onTime } = latency;
  const shared = { begins, seconds, marks, hasTable: true };
  return [
    !byId("health") && speed(latency, names, RANGES.find(([one]) => one === range)?.[2] ?? ""),
    element("div", { class: "plots" },
      chart({ ...shared, title: "Throughput", unit: `per ${STEPS[seconds]}`, summary: `${total(done)} done, ${total(failed)} failed, ${total(retried)} retried.`,
        series: [{ name: "done", kind: "done", values: done }, { name: "retried", kind: "retried", values: retried }, { name: "failed", kind: "failed", values: failed }] }),
      chart({ ...shared, title: found ? names[measure] : "Duration", unit: "log scale", isLog: true, format: percentile, formatTick: duration, summary: found ? `p50 ${percentile(found.p50_ms)}, p95 ${percentile(found.p95_ms)}, p99 ${percentile(found.p99_ms)}${onTime ? `; ${percent(onTime.share)} on time` : ""}.` : "",
        series: [{ name: "p50", kind: "p50", values: p50 }, { name: "p95", kind: "p95", values: p95 }, { name: "p99", kind: "p99", values: p99 }] })),
    events(marks),
  ];
}

/** @param {Mark[]} marks */
function events(marks) {
  const hint = mayAct && element("p", { class: "hint" }, "To mark a deployment: ", element("code", {}, 'queue-manager mark "v1.4"'));
  if (!marks.length) return hint;
  return element("details", {}, element("summary", {}, `Events in this range: ${number(marks.length)}`),
    element("ul", { class: "events" }, [...marks].reverse().map((mark) => element("li", {}, element("i", { class: `mark ${mark.kind}` }), " ", moment(mark.at), mark.until && [" to ", moment(mark.until)], ` ${markText(mark)}`))), hint);
}

// A system that began within the last hour is shown by the minute, unless a range was chosen.
/** @param {PastOfSystem} past */
const isYoung = ({ outcomes: { done, failed, retried }, step_seconds: seconds }) => {
  const first = done.findIndex((value, index) => value || failed[index] || retried[index]);
  return first >= 0 && (done.length - first) * seconds <= 3600;
};

// Values are not replaced while a user reads them.
const isRead = () => body.contains(document.activeElement) || body.querySelector("details[open]") !== null;

async function read(isAsked = true) {
  clearTimeout(timer);
  buttons.forEach((one, index) => one.setAttribute("aria-pressed", String(RANGES[index][0] === range)));
  const asked = range;
  await attempt(async () => {
    /** @type {PastOfSystem} */
    const past = await get(`/systems/${place.dataset.system}/history?range=${asked}`);
    if (!isChosen && isYoung(past) && range !== "1h") {
      range = "1h";
      return read();
    }
    if (asked === range && (isAsked || !isRead())) body.replaceChildren(...nodes(drawn(past)));
  }, ({ message }) => body.replaceChildren(element("p", { class: "soft" }, message)));
  timer = setTimeout(() => read(false), INTERVAL);
}

read();
