// Charts over time: axes, a legend, marks of what happened, and the values by pointer, by arrow keys or as a table.

import { ZONE, at, number, zoned } from "./clock.js";
import { element, person, svg } from "./dom.js";

const HEIGHT = 100; // of the drawing, whose units are percent and steps
const MIN_BAR = 1.5; // percent, so that one of thousands is seen
const LOG_TICKS = [1, 10, 100, 1000, 10000, 60000, 600000, 3600000, 14400000, 86400000]; // ms; durations are at most the last but one
const X_PARTS = [4, 3, 5]; // into which labels divide the axis: the first that is a whole number of steps
const DAY = 86400000; // ms

// Scales: where a value stands, in percent from the bottom, and the values that are written beside the axis.

/** @param {number} most @returns {Scale} */
function linear(most) {
  const size = 10 ** Math.floor(Math.log10(Math.max(most, 1)));
  const top = [1, 2, 4, 5, 10].map((factor) => factor * size).find((value) => value >= most) ?? most;
  return { place: (value) => (value / top) * HEIGHT, ticks: top > 1 ? [0, top / 2, top] : [0, top] };
}

/** Each power of ten has the same height. @param {number[]} values @returns {Scale} */
function logarithmic(values) {
  if (!values.length) return { place: () => 0, ticks: [] };
  const first = Math.max(LOG_TICKS.findLastIndex((tick) => tick <= Math.min(...values)), 0);
  const last = LOG_TICKS.findIndex((tick) => tick >= Math.max(...values));
  const ticks = LOG_TICKS.slice(first, Math.max(last, first + 1) + 1);
  const [bottom, top] = [ticks[0], ticks[ticks.length - 1]].map(Math.log10);
  const every = Math.ceil((ticks.length - 1) / 4);
  return { place: (value) => (Math.max(Math.log10(Math.max(value, 1e-9)) - bottom, 0) / (top - bottom)) * HEIGHT, ticks: ticks.filter((_, index) => index % every === 0) };
}

// Drawings

/** Bars of several series on top of each other. @param {Series[]} series @param {Scale} scale */
function bars(series, { place }) {
  const tops = series[0].values.map(() => 0);
  return series.map(({ kind, values }) => {
    const one = values.map((value, index) => {
      if (!value) return "";
      const height = Math.max(place(value), MIN_BAR);
      tops[index] += height;
      return `M${index + 0.1} ${HEIGHT - tops[index]}v${height}h.8v${-height}z`;
    });
    return svg("path", { class: kind, d: one.join("") });
  });
}

/** Lines from step to step; a step between two gaps is a dash. @param {Series[]} series @param {Scale} scale */
function lines(series, { place }) {
  return series.map(({ kind, values }) => {
    const one = values.map((value, index) => {
      if (value === null) return "";
      const y = HEIGHT - place(value);
      const isFirst = (values[index - 1] ?? null) === null;
      if (isFirst && (values[index + 1] ?? null) === null) return `M${index + 0.1} ${y}h.8`;
      return `${isFirst ? "M" : "L"}${index + 0.5} ${y}`;
    });
    return svg("path", { class: `line ${kind}`, d: one.join("") });
  });
}

/** @param {Chart} chart @param {number} count */
function marked({ begins, seconds, marks }, count) {
  /** @param {Moment} moment */
  const x = (moment) => Math.min(Math.max((at(moment) - at(begins)) / (seconds * 1000), 0), count);
  return (marks ?? []).map(({ kind, at: when, until }) => (until
    ? svg("rect", { class: `mark ${kind}`, x: x(when), width: Math.max(x(until) - x(when), 0.2), height: HEIGHT })
    : svg("path", { class: `line mark ${kind}`, d: `M${x(when)} 0V${HEIGHT}` })));
}

// Words

/** Steps of a day are those of UTC. @param {number} seconds */
const areDays = (seconds) => seconds * 1000 >= DAY;

/** @param {number} ms @param {number} seconds of a step */
function timeOf(ms, seconds, isDate = areDays(seconds)) {
  const text = (areDays(seconds) ? new Date(ms) : zoned(ms)).toUTCString(); // "Sun, 22 Nov 2026 18:00:00 GMT"
  const day = `${Number(text.slice(5, 7))} ${text.slice(8, 11)}`;
  return isDate ? day : seconds < 3600 ? text.slice(17, 22) : `${day} ${text.slice(17, 22)}`;
}

/** @param {number} seconds of a step */
const zoneOf = (seconds) => (areDays(seconds) ? "UTC" : ZONE);

/** @param {Mark} mark */
export const markText = ({ kind, text, by }) => `${{ deployment: "Mark", leader: "Leader", outage: "Outage" }[kind]}: ${text}${by ? `, by ${person(by)}` : ""}`;

/** A chart whose steps show their values when the pointer or the arrow keys select them. @param {Chart} chart */
export function chart(chart) {
  const { title, begins, seconds, series, isLog, format = number, formatTick = format, marks = [] } = chart;
  const unit = `${chart.unit}, ${zoneOf(seconds)}`;
  const count = series[0].values.length;
  /** @type {number[]} */
  const all = series.flatMap(({ values }) => values).filter((value) => value !== null);
  const scale = isLog ? logarithmic(all) : linear(Math.max(...series[0].values.map((_, index) => series.reduce((sum, { values }) => sum + (values[index] ?? 0), 0)), 0));
  /** @param {number} index */
  const begin = (index) => at(begins) + index * seconds * 1000;
  /** @param {number} index */
  const values = (index) => series.map(({ name, values: of }) => [name, of[index] === null ? "—" : format(of[index])]);
  /** @param {number} index */
  const happened = (index) => marks.filter((mark) => at(mark.at) < begin(index + 1) && at(mark.until ?? mark.at) >= begin(index)).map(markText);
  /** @param {number} index */
  const step = (index) => [`${timeOf(begin(index), seconds)} to ${timeOf(begin(index + 1), seconds)}: ${values(index).map(([name, value]) => `${name} ${value}`).join(", ")}`, ...happened(index)].join(" · ");
  const summary = all.length ? chart.summary : "Nothing was counted in this time.";
  const readout = element("p", { class: "readout", "aria-live": "polite" }, summary);
  let shown = count;
  const drawn = svg("svg", { class: "chart", viewBox: `0 0 ${count} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", tabindex: 0, "aria-label": `${title}, ${unit}. ${summary} Arrow keys read the values.` },
    scale.ticks.map((tick) => svg("path", { class: "line grid", d: `M0 ${HEIGHT - scale.place(tick)}H${count}` })),
    (isLog ? lines : bars)(series, scale), marked(chart, count),
    series[0].values.map((_, index) => svg("rect", { class: "step", x: index, width: 1, height: HEIGHT })));
  /** @param {number} index */
  const point = (index) => {
    drawn.querySelector(".pointed")?.classList.remove("pointed");
    shown = index;
    drawn.querySelectorAll(".step")[shown]?.classList.add("pointed");
    readout.textContent = shown < count ? step(shown) : summary;
  };
  drawn.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: Math.max(shown - 1, 0), ArrowRight: Math.min(shown + 1, count - 1), Home: 0, End: count - 1, Escape: count }[/** @type {string} */ (event.key)];
    if (to === undefined) return;
    event.preventDefault();
    point(to);
  });
  for (const name of /** @type {const} */ (["pointermove", "pointerdown"])) drawn.addEventListener(name, ({ clientX }) => {
    const { left, width } = drawn.getBoundingClientRect();
    point(Math.min(Math.max(Math.floor(((clientX - left) / width) * count), 0), count - 1));
  });
  drawn.addEventListener("blur", () => point(count));
  drawn.addEventListener("pointerleave", ({ pointerType }) => pointerType === "mouse" && point(count)); // a finger leaves when it is lifted
  const parts = X_PARTS.find((one) => count % one === 0) ?? 1;
  const labels = Array.from({ length: parts + 1 }, (_, index) => element("span", {}, timeOf(begin((index * count) / parts), seconds, count * seconds * 1000 > 2 * DAY)));
  return element("figure", { class: "plot" },
    element("figcaption", {}, element("b", {}, title), " ", element("small", { class: "soft" }, unit),
      element("span", { class: "legend" }, series.map(({ name, kind }) => element("span", {}, element("i", { class: kind }), name)))),
    element("div", { class: "axis y", "aria-hidden": "true" }, scale.ticks.map((tick) => {
      const label = element("span", {}, formatTick(tick));
      label.style.bottom = `${scale.place(tick)}%`;
      return label;
    })),
    drawn,
    element("div", { class: "axis x", "aria-hidden": "true" }, labels),
    readout,
    chart.hasTable && table(chart, [...series.map(({ name }) => name), "Events"], (index) => [...values(index).map(([, value]) => value), happened(index).join(" · ")], begin, count));
}

/** @param {Chart} chart @param {string[]} heads @param {(index: number) => string[]} cells @param {(index: number) => number} begin @param {number} count */
function table({ title, seconds }, heads, cells, begin, count) {
  const details = element("details", {}, element("summary", {}, "Values as a table"));
  details.addEventListener("toggle", () => {
    const rows = Array.from({ length: count }, (_, index) => element("tr", {}, element("th", { scope: "row" }, timeOf(begin(index), seconds)), cells(index).map((text) => element("td", {}, text))));
    details.append(element("div", { class: "values", role: "region", tabindex: 0, "aria-label": title },
      element("table", { "aria-label": title }, element("thead", {}, element("tr", {}, [`Time (${zoneOf(seconds)})`, ...heads].map((head) => element("th", { scope: "col" }, head)))), element("tbody", {}, rows))));
  }, { once: true });
  return details;
}
