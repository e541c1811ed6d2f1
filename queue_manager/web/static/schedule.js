// The schedule: next runs, results of the last runs, the leader, and manual triggers.

import { attempt, get, onOverview, post } from "./api.js";
import { at, countdown, many, moment, now, number, span, until } from "./clock.js";
import { show } from "./dialog.js";
import { PREFIX, button, byId, complain, element, errorText, facts, link, mayAct, pill, toast } from "./dom.js";
import { cell, fill, grid } from "./list.js";
import { PAUSED, awayServers } from "./systems.js";

/** @type {string | undefined} */
let seen; // what was true of the schedule when it was last read
let away = ""; // why a server does not answer
/** @type {Record<string, System["idle"]>} */
let idle = {}; // why a system dispatches nothing, by name
/** @type {Record<string, string | null>} */
let pages = {}; // of the systems that have one of their own

const read = () => attempt(async () => {
  /** @type {Schedule} */
  const { entries, leader } = await get("/schedule");
  complain(away);
  lead(leader);
  fill(byId("entries"), entries.map((entry) => ({ ...entry, idle: idle[entry.name], page: pages[entry.name] })), row);
  byId("schedule").hidden = false;
  byId("all-off").hidden = entries.some((entry) => entry.is_on);
}, ({ message }) => {
  complain(message);
  seen = undefined; // the next event makes it read again
});

/** @param {Overview} overview */
function receive({ systems, leader, servers }) {
  away = awayServers(servers);
  complain(away);
  if (servers.redis) byId("leader").replaceChildren("Leader unknown: Redis does not answer.");
  else lead(leader);
  idle = Object.fromEntries(systems.map((one) => [one.name, one.is_on ? one.idle : null]));
  pages = Object.fromEntries(systems.map(({ name, page }) => [name, PREFIX + page === location.pathname ? null : page]));
  const news = JSON.stringify([away, idle, systems.map((one) => [one.name, one.is_on, one.is_running, one.last_scan?.at, one.next_scan_at])]);
  if (news === seen) return;
  seen = news;
  read();
}

// Showing

/** @param {Leader | null} leader */
function lead(leader) {
  byId("leader").replaceChildren(leader ? facts("facts", [
    ["Leader", leader.holder], ["Since", moment(leader.since)], ["Lease left", countdown(now() + leader.lease_left_seconds * 1000, lease)], ["Epoch", number(leader.epoch)],
  ]) : element("p", {}, pill("no leader", "bad"), " No scan starts until a beat leads. Start ", element("code", {}, "celery -A tasks beat"), "."));
}

/** @param {number} left */
const lease = (left) => (left > 0 ? `${Math.ceil(left / 1000)} s` : "ended");

/** @param {ScheduleEntry & { page?: string | null }} entry */
function row(entry) {
  const { name, title, page, description, flag, task, is_on: isOn, is_running: isRunning, last_run: last, next_run_at: next } = entry;
  return element("tr", {},
    element("th", { scope: "row", class: "about" },
      element("b", {}, link(page, title)), " ", pill(isOn ? "on" : "off", isOn ? "good" : ""), " ", idle[name] && [pill(idle[name], "warn"), " "], flag && element("code", {}, flag), " ", isRunning && pill("running now", "warn"),
      element("p", {}, description), element("code", {}, task.split(/(?<=[.])/).flatMap((part) => [element("wbr"), part]))),
    cell("Runs", every(entry), "nowrap"),
    cell("Last run", last ? element("div", {}, moment(last.at), element("p", { class: last.errors || last.error ? "bad" : "soft" }, summary(last)), last.error && element("p", { class: "clip bad" }, last.error)) : "none in 24 h"),
    cell("Last results", marks(entry)),
    cell("Next run", !isOn ? "—" : idle[name] === "paused" ? "paused" : countdown(next ? at(next) : null, until), "nowrap"),
    mayAct && element("td", { class: "number" }, trigger(entry)));
}

/** @param {ScheduleEntry} entry */
const every = ({ period_seconds: seconds, cron }) => (cron ? element("span", { title: cron }, inWords(cron) ?? ["at ", element("code", {}, cron)]) : `every ${span(seconds * 1000)}`);

/** The usual forms of a cron expression. @param {string} cron */
function inWords(cron) {
  const [, minute, hour] = /^(\d+) (\d+|\*) \* \* \*$/.exec(cron) ?? [];
  if (minute === undefined) return undefined;
  return hour === "*" ? `every hour at :${minute.padStart(2, "0")}` : `daily at ${hour.padStart(2, "0")}:${minute.padStart(2, "0")} UTC`;
}

/** @param {ScanResult} run */
const summary = (run) => (run.is_paused && !isBad(run) ? "paused" : numbers(run));

/** @param {ScanResult} run */
const numbers = ({ found, enqueued: sent, errors, duration_ms: took }) => [`${number(found)} found`, sent && `${number(sent)} dispatched`, errors && many(errors, "error"), span(took)].filter((part) => typeof part === "string").map((part) => part.replace(" ", "\u00a0")).join(", ");

/** @param {ScanResult} run */
const isBad = (run) => run.errors > 0 || Boolean(run.error);

// The last runs at a glance, the newest on the right; pressed, in a table.
/** @param {ScheduleEntry} entry */
function marks({ title, last_runs: runs }) {
  if (!runs.length) return "—";
  const shown = runs.toReversed().map((run) => element("span", { class: isBad(run) && "bad", title: `${moment(run.at).textContent}: ${summary(run)}` }, isBad(run) ? "×" : run.is_paused ? "–" : run.found ? "■" : "·"));
  const about = `Last ${runs.length} runs of ${title}, ${runs.filter(isBad).length} with errors`;
  return element("button", { type: "button", class: "quiet marks", "aria-label": about, onclick: () => show(`Last runs: ${title}`, table(runs)) }, shown);
}

/** @param {ScanResult[]} runs */
const table = (runs) => grid(["When", "Found", "Claimed", "Dispatched", "Errors", "Duration", "Error"], runs.map((run) => [
  moment(run.at), number(run.found), number(run.claimed), number(run.enqueued), number(run.errors), span(run.duration_ms), run.error && errorText(run.error),
]));

// Acting

/** @param {ScheduleEntry} entry */
function trigger({ name, title, trigger: path }) {
  const made = button("Trigger now", () => path && start(path));
  made.setAttribute("aria-label", `Trigger now: ${title}`);
  const why = byId("no-hooks");
  if (idle[name] === "paused") Object.assign(made, { disabled: true, title: PAUSED });
  if (why) Object.assign(made, { disabled: true, title: why.textContent }).setAttribute("aria-describedby", "no-hooks");
  return made;
}

// For example, the scan is running already.
/** @param {string} path */
const start = (path) => attempt(async () => {
  const { task_id: id } = await post(path.replace("/api", ""));
  toast(`Scan triggered: task ${id}`);
});

onOverview(receive, read);
