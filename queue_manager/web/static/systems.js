// Elements that the overview and the page of a system share.

import { at, countdown, many, moment, number, span, until } from "./clock.js";
import { element, facts, link, person, pill, withCode } from "./dom.js";

const TONES = { critical: "bad", warning: "warn" };

/** @param {Severity} severity */
const severityPill = (severity) => pill(severity, TONES[severity]);

/** What is wrong, with a link to the items, and what to do. @param {Need} need */
export const notice = ({ severity, text, action, page }) => element("div", { class: "need" }, severityPill(severity), element("div", {},
  element("p", { class: TONES[severity] }, link(page, withCode(text))),
  action && element("p", { class: "hint" }, withCode(action))));

/** Why servers that every system needs do not answer. @param {ServerProblems} servers */
export const awayServers = (servers) => Object.values(servers).filter(Boolean).join(" · ");

/** @param {System} system @param {string} away why a server does not answer */
export function statusPill(system, away) {
  const [worst] = system.problems;
  if (!system.is_on) return pill("Off");
  if (away) return severityPill("critical");
  if (system.idle) return pill(system.idle === "paused" ? "Paused" : "Dry run", "warn");
  if (worst) return severityPill(worst.severity);
  if (system.due === null && !system.last_scan) return pill("Unknown", "warn");
  if (system.is_starting) return pill("Starting");
  return system.is_running || system.in_progress ? pill("Working", "good") : pill("OK", "good");
}

/** Since when, by whom and why it is paused. @param {Pause | null} pause @returns {Child} */
export const pauseNote = (pause) => pause && element("p", { class: "hint" }, "Paused", pause.at && [" since ", moment(pause.at)], pause.by && ` by ${person(pause.by)}`, pause.reason && `: ${pause.reason}`);

export const PAUSED = "Paused: scans dispatch nothing";

/** @type {Field} */
export const PAUSE_REASON = { name: "reason", label: "Reason", hint: "Optional; shown to other operators" };

/** @param {System} system */
export function howToTurnOn({ flag }) {
  return flag ? ["Off. To turn it on, set ", element("code", {}, `${flag}=true`), " and restart the processes."] : ["Off in this environment."];
}

/** The number of due items; "+" if counting stopped there. @param {System} system */
export const dueText = ({ due, counted_to: most }) => `${number(due)}${due && due === most ? "+" : ""}`;

// Systems of which parts are paused instead of the whole.
/** @type {Record<string, string>} */
const PAUSED_PARTS = { "job-queues": "Paused names", "overdue-messages": "Paused types" };

/** Three statistics, and further ones that are not zero. @param {System} system */
export function statistics(system) {
  /** @param {number | null} value */
  const figure = (value, kind = "", text = number(value)) => element("span", { class: value ? kind : "soft" }, text);
  /** @param {"due" | "in_progress" | "stuck" | "failed" | "lag_seconds"} name */
  const listed = (name, kind = "", text = number(system[name])) => (system[name] && system.pages[name] ? link(system.pages[name], text, kind) : figure(system[name], kind, text));
  /** @param {number | null} value */
  const unlessZero = (value, kind = "", text = number(value)) => (value ? figure(value, kind, text) : null);
  const { lag_seconds: lag } = system;
  return facts("facts statistics", [
    ["Due now", listed("due", "", dueText(system))],
    ["In progress", system.in_progress === null && system.due !== null ? null : listed("in_progress")], // some systems do not know
    ["Done / min", figure(system.done_per_minute)],
    [system.name === "overdue-messages" ? "Overdue for" : "Oldest waiting", lag ? listed("lag_seconds", "", span(lag * 1000)) : null],
    ["Stuck", system.stuck ? listed("stuck", "bad") : null],
    ["Failed", system.failed ? listed("failed", "warn") : null],
    [PAUSED_PARTS[system.name], system.name in PAUSED_PARTS ? unlessZero(system.numbers.paused, "warn") : null],
    ["Failed / min", unlessZero(system.failed_per_minute, "warn")],
    ["Errors, 24 h", unlessZero(system.errors, "warn")],
  ]);
}

/** @param {System} system */
export function scans({ last_scan: last, next_scan_at: next, is_running: isRunning, is_starting: isStarting, errors }) {
  const did = last && [moment(last.at), ` found ${number(last.found)}, dispatched ${number(last.enqueued)}`, last.errors > 0 && element("span", { class: "bad" }, `, ${many(last.errors, "error")}`)];
  return facts("facts scans", [
    ["Last scan", did ? element("span", {}, did) : isStarting ? "none yet" : errors === null ? "—" : "none in 24 h"],
    ["Next scan", isRunning ? "running now" : countdown(next === null ? null : at(next), until)],
  ]);
}
