// What the overview and the page of a system say alike.

import { attempt, get } from "./api.js";
import { chart } from "./chart.js";
import { at, moment, number, span } from "./clock.js";
import { countdown, until } from "./countdown.js";
import { element, facts, pill } from "./dom.js";

const EVERY = 60000; // ms between two readings of a day in buckets of ten minutes

// Show what `make` makes of `value`, unless that is there already: whoever reads or points there is left alone.
export function put(place, value, make) {
  const said = JSON.stringify(value);
  if (place.said === said) return;
  place.said = said;
  place.replaceChildren(...[make(value)].flat());
}

// What somebody should look at, the worst first: [kind, words, the page that lists the items].
export function needs({ is_on: isOn, problems, pages, errors }) {
  if (!isOn) return [];
  return [
    ...problems.map((problem) => ["bad", problem, pages[problem]]),
    errors && ["warn", `${number(errors)} error${errors === 1 ? "" : "s"} in scans of the last 24 h`],
  ].filter(Boolean);
}

export function standing(system) {
  const [worst] = needs(system);
  if (!system.is_on) return pill("Off");
  if (system.idle) return pill(system.idle === "paused" ? "Paused" : "Dry run", "warn");
  if (worst) return pill(worst[0] === "bad" ? "Needs attention" : "Look at it", worst[0]);
  if (system.due === null && !system.last_scan) return pill("Unknown", "warn");
  if (system.is_starting) return pill("Starting");
  return system.is_running || system.in_progress ? pill("Working", "good") : pill("OK", "good");
}

export function howToTurnOn({ flag }) {
  return flag ? ["Off. To turn it on, set ", element("code", {}, `${flag}=true`), " and start the processes again."] : ["Off in this environment."];
}

export function figures(system) {
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

export function scans({ last_scan: last, next_scan_at: next, is_running: isRunning, is_starting: isStarting, errors }) {
  const did = last && [moment(last.at), ` found ${number(last.found)}, sent ${number(last.enqueued)}`, last.errors > 0 && element("span", { class: "bad" }, `, ${number(last.errors)} errors`)];
  return facts("facts scans", [
    ["Last scan", did ? element("span", {}, ...did.filter(Boolean)) : isStarting ? "none yet" : errors === null ? "—" : "none in 24 h"],
    ["Next scan", isRunning ? "running now" : countdown(next && at(next), until)],
  ]);
}

// Draw the last 24 hours of systems now and then: `place(name)` is where, or undefined.
export async function days(place, titleOf) {
  await attempt(async () => {
    const { systems, begins_at: begins, bucket_seconds: seconds } = await get("/overview/history");
    for (const [name, counts] of Object.entries(systems)) {
      if (counts && place(name)) put(place(name), [begins, counts], () => chart(titleOf(name), counts, begins, seconds));
    }
  }, () => {}); // the figures say which server is away
  setTimeout(() => days(place, titleOf), EVERY);
}
