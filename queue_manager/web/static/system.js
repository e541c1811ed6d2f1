// The page of one system: health, items by state, and scans.

import { attempt, get, onOverview, post, query } from "./api.js";
import { moment, number, span } from "./clock.js";
import { askFor } from "./dialog.js";
import { byId, countInTitle, element, errorInList, hide, isPlainClick, mayAct, put, rowButton, toast } from "./dom.js";
import { speed } from "./latency.js";
import { List, cell, fill } from "./list.js";
import { PAUSED, PAUSE_REASON, awayServers, dueText, howToTurnOn, notice, pauseNote, scans, statistics, statusPill } from "./systems.js";

const PAGE = 50;
const SCANS = 10;
const MAX_SCANS = 500;
const MAX_RETRIED = 1000; // by one request
const { system: name, items, item: itemName, attempts: attemptsName = "" } = byId("tabs").dataset;
const path = `/systems/${name}`;
/** @type {Record<ItemState, StateTexts>} */
const STATES = {
  due: { count: "due", verb: "Dispatch now", all: "Dispatch all that match", title: "Nothing is due", text: `The next scan dispatches the ${items} that fall due.` },
  "in-progress": { count: "in_progress", title: "Nothing is in progress", text: `The ${items} that were dispatched are listed here until a worker is done with them.`, next: "lease ends" },
  stuck: { count: "stuck", verb: "Retry", all: "Retry all that match", title: "Nothing is stuck", text: `The ${items} whose lease ended without a result are listed here. Check the workers first.` },
  failed: { count: "failed", verb: "Retry", all: "Retry all that match", title: "Nothing has failed", text: `The ${items} whose final attempt failed are listed here, with the reason.`, next: "again" },
};
/** @param {Values} values */
const stateOf = ({ state }) => /** @type {ItemState} */ (state in STATES ? state : "due");
/** @type {System | undefined} */
let known; // the system, as last received
const hasHooks = byId("no-hooks") === null; // scans may be triggered by hand
let away = ""; // why a server does not answer, as last received

// Items

/** @param {Values} values @param {Options} options */
async function load(values, options) {
  const state = stateOf(values);
  for (const tab of document.querySelectorAll("[data-state]")) {
    tab.ariaCurrent = tab.dataset.state === state ? "page" : null;
  }
  const { verb, all, title, text } = STATES[state];
  put(byId("empty"), state, () => [element("h2", {}, title), element("p", {}, text)]);
  const [retryButton, allButton, pickAll] = [byId("retry"), byId("retry-all"), byId("pick-all")];
  if (retryButton) retryButton.textContent = verb ?? "";
  if (allButton) Object.assign(allButton, { textContent: all, hidden: !all });
  if (pickAll) pickAll.disabled = !verb;
  const wanted = { state, search: values.search, cursor: values.cursor, order: values.order === "asc" ? "oldest" : "newest", limit: PAGE };
  /** @type {ItemPage} */
  const page = await get(`${path}/items${query(wanted)}`, options);
  return { rows: page.items, cursor: page.cursor };
}

/** @param {Item} item */
function cells(item) {
  const { verb, next } = STATES[item.state];
  return [
    element("th", { scope: "row" }, element("a", { class: "link whole", href: `${location.pathname}/${encodeURIComponent(item.id)}` }, item.id), item.title && element("div", { class: "hint" }, item.title)),
    cell("Due", moment(item.due_at), "nowrap"),
    cell("In this state since", moment(item.since), "nowrap"),
    element("td", { class: "text" }, item.reason && element("span", { class: "clip" }, errorInList(item.reason))),
    cell(attemptsName, item.attempts ? number(item.attempts) : "—", "number"),
    cell("Next", item.next_at ? element("span", {}, next && `${next} `, moment(item.next_at)) : "—", "nowrap"),
    mayAct && element("td", { class: "number" }, verb && rowButton(verb, item.id, () => retry(item))),
  ];
}

/** @param {MouseEvent} event */
function go(event) {
  if (!isPlainClick(event)) return;
  event.preventDefault();
  const { state = "" } = /** @type {HTMLElement} */ (event.currentTarget).dataset;
  /** @type {Control} */ (byId("filter").elements.state).value = state;
  list.selection.clear();
  list.ask(list.written());
}

// Acting

/** Send a request and say what it did. @param {string} to @param {(answer: any) => string} done */
async function send(to, done) {
  await attempt(async () => {
    toast(done(await post(to)));
  });
  list.refresh();
}

/** @param {Item} item */
const retry = ({ id, state }) => send(`${path}/items/${encodeURIComponent(id)}/retry`, () => `${state === "due" ? "Dispatched" : "Retry queued for"} ${itemName} ${id}`);

/** @param {{ ids: string[] } | { state: ItemState, search?: string }} selected */
async function dispatch(selected) {
  const { sent, of } = await post(`${path}/items/retry`, selected);
  list.selection.clear();
  list.refresh();
  return `Dispatched ${number(sent)} of ${number(of)}`;
}

/** @param {string[]} ids */
const retrySelected = (ids) => attempt(async () => toast(await dispatch({ ids })));

async function retryAll() {
  const filter = { state: stateOf(list.values), search: list.values.search };
  const { verb = "" } = STATES[filter.state];
  /** @type {MatchCount} */
  const { count, is_complete: isAll } = await get(`${path}/items/count${query(filter)}`);
  if (!count) return toast(isAll ? "Nothing matches" : "Nothing found in time among the items in other states; there may be some");
  return askFor({
    title: `${verb.replace(" now", "")} ${count === 1 ? `1 ${itemName}` : `${number(count)}${isAll ? "" : " or more"} ${items}`}?`, verb, text: `Each is dispatched at once, as by a scan.${count > MAX_RETRIED ? ` At most ${number(MAX_RETRIED)} are dispatched at a time.` : ""}`,
    act: () => dispatch(filter),
  });
}

const scan = () => send(`/trigger/${byId("scan")?.dataset.trigger}`, ({ task_id: id }) => `Scan triggered: task ${id}`);

async function turn() {
  if (known?.idle === "paused") return attempt(async () => toast(await change("resume", {}, "Resumed")));
  return askFor({
    title: `Pause ${items}?`, verb: "Pause", text: "Scans dispatch nothing until the system is resumed. Items in flight finish.", fields: [PAUSE_REASON],
    act: ({ reason }) => change("pause", { reason: reason || null }, "Paused"),
  });
}

/** @param {"pause" | "resume"} what @param {object} body @param {string} done */
async function change(what, body, done) {
  await post(`${path}/${what}`, body);
  await read();
  return done;
}

// Scans

/** @type {Scan[]} */
let shownScans = []; // the newest first, or the slowest
/** @type {string | null} */
let older = null; // where those begin that were not read
let sort = "at";
let isUnread = false; // the last reading failed

/** @param {Scan} scan */
function scanRow({ at, found, claimed, enqueued, errors, duration_ms: took, error, noted }) {
  const notes = Object.entries(noted ?? {}).map(([what, count]) => `${what} ${number(/** @type {number} */ (count))}`).join(", ");
  return element("tr", {},
    element("th", { scope: "row" }, moment(at)),
    cell("Found", number(found), "number"), cell("Claimed", number(claimed), "number"), cell("Dispatched", number(enqueued), "number"),
    cell("Errors", element("span", { class: errors ? "bad strong" : "" }, number(errors)), "number"),
    cell("Duration", span(took), "number nowrap"),
    element("td", { class: "text" }, error && element("span", { class: "clip bad", title: error }, error), notes));
}

/** @param {string | null} [cursor] */
async function scansFrom(cursor) {
  const asked = sort;
  /** @type {ScanPage} */
  const page = await get(`${path}/scans${query({ cursor, limit: SCANS, sort })}`);
  if (asked !== sort) return; // the order was changed meanwhile
  const read = new Set(page.scans.map(({ id }) => id));
  const isContinued = sort === "at" && (cursor || shownScans.some(({ id }) => read.has(id))); // else all are replaced
  const others = isContinued ? shownScans.filter(({ id }) => !read.has(id)) : [];
  if (cursor || !isContinued) older = page.cursor;
  shownScans = (cursor ? [...others, ...page.scans] : [...page.scans, ...others]).slice(0, MAX_SCANS);
  fill(byId("scans"), shownScans, scanRow);
  const isEmpty = !shownScans.length;
  byId("scans").closest(".sheet").hidden = isEmpty;
  byId("scans-where").textContent = isEmpty ? "No scan ran in the last 24 hours." : "";
  byId("scans-sort").hidden = isEmpty;
  hide(byId("scans-more"), !older || shownScans.length >= MAX_SCANS);
}

function sortScans() {
  sort = sort === "at" ? "duration" : "at";
  shownScans = [];
  byId("scans-sort").textContent = sort === "at" ? "Slowest first" : "Newest first";
  readScans();
}

/** @param {string | null} [cursor] */
function readScans(cursor) {
  isUnread = false;
  return attempt(() => scansFrom(cursor), () => { isUnread = true; }); // the list shows errors
}

// Live updates

/** @param {Overview} overview */
function receive({ systems, servers }) {
  away = awayServers(servers);
  const system = systems.find((one) => one.name === name);
  if (system) showSystem(system);
  list.refresh(); // one item may have replaced another, so that no number has changed
}

/** @param {System} system */
function showSystem(system) {
  const before = known;
  known = system;
  put(byId("status"), [system, away], () => statusPill(system, away));
  put(byId("health"), [system, away], () => [
    away && notice({ severity: "critical", text: away }),
    !system.is_on && element("p", { class: "soft" }, howToTurnOn(system)), pauseNote(system.pause), speed(system.latency, system.duration_names, "the last hour"), statistics(system), scans(system),
    ...system.problems.map(notice),
  ]);
  for (const tab of document.querySelectorAll("[data-state]")) {
    const { count } = STATES[/** @type {ItemState} */ (tab.dataset.state)];
    tab.querySelector("span").textContent = system[count] === null ? "" : count === "due" ? dueText(system) : number(system[count]);
  }
  const turn = byId("pause");
  if (turn) Object.assign(turn, { textContent: system.idle === "paused" ? "Resume" : "Pause …", disabled: !system.is_on });
  const start = byId("scan");
  if (start) Object.assign(start, { disabled: !hasHooks || system.idle === "paused", title: system.idle === "paused" ? PAUSED : "" });
  countInTitle(system[STATES[stateOf(list.values)].count] ?? 0);
  if (isUnread || system.last_scan?.at !== before?.last_scan?.at) readScans();
}

const read = async () => showSystem(await get(path));

// Read again the values that events do not contain. The list shows errors.
function readAll() {
  list.refresh();
  attempt(read, () => {});
  readScans();
}

const list = new List({ load, cells, id: ({ id }) => id });
for (const tab of document.querySelectorAll("[data-state]")) tab.addEventListener("click", go);
byId("pause")?.addEventListener("click", turn);
byId("scan")?.addEventListener("click", scan);
list.selection.on("retry", retrySelected);
byId("retry-all")?.addEventListener("click", () => attempt(retryAll));
byId("scans-more").addEventListener("click", () => readScans(older));
byId("scans-sort").addEventListener("click", sortScans);
onOverview(receive, readAll);
