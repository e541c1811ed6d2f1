// What the overview and the page of a system share.

import { attempt, get } from "./api.js";
import { at, countdown, moment, number, span, until } from "./clock.js";
import { element, facts, filled, nodes, pill } from "./dom.js";

const DAY_INTERVAL = 60000; // ms between two readings of a day in buckets of ten minutes
const DONE_HEIGHT = 30;
const FAILED_HEIGHT = 12;
const MIN_HEIGHT = 1.2; // of a bar

/**
 * Show `make(value)`, unless it is shown already: that keeps focus and selection.
 * @template T
 * @param {HTMLElement} place @param {T} value @param {(value: T) => Child} make
 */
export function put(place, value, make) {
  const json = JSON.stringify(value);
  if (place.json === json) return;
  place.json = json;
  place.replaceChildren(...nodes([make(value)]));
}

/** What needs attention, the worst first. @param {System} system @returns {Need[]} */
export function needs({ is_on: isOn, problems, pages, errors }) {
  if (!isOn) return [];
  /** @type {(Need | 0 | null)[]} */
  const all = [
    ...problems.map((problem) => /** @type {Need} */ (["bad", problem, pages[problem]])),
    errors && ["warn", `${number(errors)} error${errors === 1 ? "" : "s"} in scans of the last 24 h`],
  ];
  return all.filter((one) => !!one);
}

/** @param {System} system */
export function standing(system) {
  const [worst] = needs(system);
  if (!system.is_on) return pill("Off");
  if (system.idle) return pill(system.idle === "paused" ? "Paused" : "Dry run", "warn");
  if (worst) return pill(worst[0] === "bad" ? "Needs attention" : "Look at it", worst[0]);
  if (system.due === null && !system.last_scan) return pill("Unknown", "warn");
  if (system.is_starting) return pill("Starting");
  return system.is_running || system.in_progress ? pill("Working", "good") : pill("OK", "good");
}

/** @param {System} system */
export function howToTurnOn({ flag }) {
  return flag ? ["Off. To turn it on, set ", element("code", {}, `${flag}=true`), " and start the processes again."] : ["Off in this environment."];
}

/** @param {System} system */
export function figures(system) {
  /** @param {number | null} value */
  const figure = (value, kind = "", text = number(value)) => element("span", { class: value ? kind : "soft" }, text);
  const { lag_seconds: lag, errors } = system;
  return facts("facts figures", [
    ["Due now", figure(system.due)],
    ["In progress", figure(system.in_progress)],
    ["Stuck", figure(system.stuck, "bad")],
    ["Failed", figure(system.failed, "warn")],
    ["Oldest waits", figure(lag, "", lag ? span(lag * 1000) : "—")],
    ["Done / min", figure(system.done_per_minute)],
    ["Failed / min", figure(system.failed_per_minute, "warn")],
    ["Errors, 24 h", figure(errors, "warn")],
  ]);
}

/** @param {System} system */
export function scans({ last_scan: last, next_scan_at: next, is_running: isRunning, is_starting: isStarting, errors }) {
  const did = last && [moment(last.at), ` found ${number(last.found)}, sent ${number(last.enqueued)}`, last.errors > 0 && element("span", { class: "bad" }, `, ${number(last.errors)} errors`)];
  return facts("facts scans", [
    ["Last scan", did ? element("span", {}, did) : isStarting ? "none yet" : errors === null ? "—" : "none in 24 h"],
    ["Next scan", isRunning ? "running now" : countdown(next === null ? null : at(next), until)],
  ]);
}

/**
 * Draw the last 24 hours of systems, and again every minute.
 * @param {(name: string) => HTMLElement | undefined} place @param {(name: string) => string} titleOf
 */
export async function days(place, titleOf) {
  await attempt(async () => {
    /** @type {SystemsHistory} */
    const { systems, begins_at: begins, bucket_seconds: seconds } = await get("/overview/history");
    for (const [name, counts] of Object.entries(systems)) {
      const where = place(name);
      if (counts && where) put(where, [begins, counts], () => chart(titleOf(name), counts, begins, seconds));
    }
  }, () => {}); // the figures show which server is away
  setTimeout(() => days(place, titleOf), DAY_INTERVAL);
}

// What was done and what failed in 24 hours: done above the line, failed below it, in one scale.

/** @param {string} name @param {Attributes} attributes @param {...Child} children */
const svg = (name, attributes, ...children) => filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, ...children);

/** @param {string} kind @param {number[]} counts @param {number} scale @param {1 | -1} direction */
function bars(kind, counts, scale, direction) {
  /** @param {number} count @param {number} index */
  const one = (count, index) => (count ? `M${index + 0.1} ${DONE_HEIGHT}v${direction * Math.max(count * scale, MIN_HEIGHT)}h.8V${DONE_HEIGHT}z` : "");
  return svg("path", { class: kind, d: counts.map(one).join("") });
}

/**
 * A bucket of `seconds` shows its counts when the pointer or the arrow keys select it.
 * @param {string} title @param {OutcomeCounts} counts @param {Moment} begins @param {number} seconds
 */
function chart(title, counts, begins, seconds) {
  const { done, failed } = counts;
  /** @param {(list: number[]) => number} of */
  const text = (of) => Object.entries(counts).filter(([name, list]) => of(list) || name === "done").map(([name, list]) => `${number(of(list))} ${name}`).join(", ");
  /** @param {number} index */
  const time = (index) => new Date(at(begins) + index * seconds * 1000).toISOString().slice(11, 16);
  /** @param {number} index */
  const bucket = (index) => `${time(index)} to ${time(index + 1)} UTC: ${text((list) => list[index])}`;
  const total = `24 h: ${text((list) => list.reduce((sum, count) => sum + count, 0))}`;
  const scale = Math.min(DONE_HEIGHT / Math.max(...done, 1), FAILED_HEIGHT / Math.max(...failed, 1));
  const caption = element("figcaption", { "aria-live": "polite" }, total);
  let shown = done.length;
  const drawn = svg("svg", { class: "chart", viewBox: `0 0 ${done.length} ${DONE_HEIGHT + FAILED_HEIGHT}`, preserveAspectRatio: "none", role: "img", tabindex: 0, "aria-label": `${title}, ${total}` },
    bars("done", done, scale, -1), bars("failed", failed, scale, 1),
    svg("rect", { class: "axis", y: DONE_HEIGHT, width: done.length, height: 0.4 }),
    ...done.map((_, index) => svg("rect", { class: "bucket", x: index, width: 1, height: DONE_HEIGHT + FAILED_HEIGHT }, svg("title", {}, bucket(index)))));
  /** @param {number} index */
  const point = (index) => {
    drawn.querySelector(".pointed")?.classList.remove("pointed");
    shown = index;
    drawn.querySelectorAll(".bucket")[shown]?.classList.add("pointed");
    caption.textContent = shown < done.length ? bucket(shown) : total;
  };
  drawn.addEventListener("keydown", ({ key }) => {
    const step = key === "ArrowLeft" ? -1 : key === "ArrowRight" ? 1 : 0;
    if (step) point(Math.min(Math.max(shown + step, 0), done.length - 1));
  });
  drawn.addEventListener("pointerover", ({ target }) => {
    const index = [...drawn.querySelectorAll(".bucket")].indexOf(/** @type {HTMLElement} */ (target));
    if (index >= 0) point(index);
  });
  for (const name of ["blur", "pointerleave"]) drawn.addEventListener(name, () => point(done.length));
  return element("figure", {}, drawn, caption);
}
