// What the overview and the page of a system share.

import { attempt, get } from "./api.js";
import { chart } from "./chart.js";
import { at, moment, number, span } from "./clock.js";
import { countdown, until } from "./countdown.js";
import { element, facts, nodes, pill } from "./dom.js";

const EVERY = 60000; // ms between two readings of a day in buckets of ten minutes

/**
 * Show `make(value)`, unless it is shown already: that keeps focus and selection.
 * @template T
 * @param {HTMLElement} place @param {T} value @param {(value: T) => Child} make
 */
export function put(place, value, make) {
  const said = JSON.stringify(value);
  if (place.said === said) return;
  place.said = said;
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
  }, () => {}); // the figures say which server is away
  setTimeout(() => days(place, titleOf), EVERY);
}
