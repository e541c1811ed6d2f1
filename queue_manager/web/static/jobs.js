// The page of all jobs and their names, with the actions.

import { Events, Problem, UNDO, ask, attempt, get, post, query, stream, withUndo } from "./api.js";
import { ARE_RELATIVE, at, countdown, many, moment, now, number, span, until, zonedMoment } from "./clock.js";
import { Records, TYPED_FROM, askFor, isDialogOpen, jsonProblem, numberFrom, numeric } from "./dialog.js";
import { PREFIX, byId, copier, countInTitle, element, errorInList, errorText, facts, jsonText, link, mayAct, pill, recordLink, rowButton, toast } from "./dom.js";
import { percentile } from "./latency.js";
import { List, cell, fill, grid } from "./list.js";
import { seldom } from "./pace.js";
import { PAUSE_REASON, pauseNote } from "./systems.js";

const PAGE = 50;
const STATES = { pending: "", executing: "warn", failure: "bad", success: "good", canceled: "" };
/** @type {JobState[]} */
const LIVE = ["pending", "failure", "executing"];
/** @type {JobState[]} */
const CLEARED = ["pending", "failure", "success", "canceled"];
const ALL_NAMES = "all names";
const LATENCY_DELAY = 500; // ms, so that the first rows come before
const LATENCY_INTERVAL = 60000; // ms
const RETRY_INTERVAL = 2000; // ms
const RECOUNT_INTERVAL = 300; // ms
const STATUS_INTERVAL = 5000; // ms between two readings without an event, while leases are renewed or counts may be old
const LEADER_INTERVAL = 30000; // ms otherwise, because a beat ends, and others pause, without an event of a job
const MAX_FRESH_COUNT = 10000; // unfinished jobs; the counts of more of them may be old
const NAMES_WAIT = 400; // ms that the list waits for the names above it
/** @type {JobQueue[]} */
let queues = [];
/** @type {Record<string, Latency>} */
let latencies = {};

// Reading

/** @param {Values} values @param {Options} options */
async function load(values, options) {
  /** @type {JobPage} */
  const { jobs, cursor } = await get(`/jobs${query({ ...values, limit: PAGE })}`, { ...options, parse: withExactIntegers });
  setTimeout(() => Object.assign(byId("names"), { ariaBusy: null }), NAMES_WAIT);
  return { rows: jobs, cursor };
}

/** @param {Values} values @param {Options} options */
const search = (values, options) => stream(`/jobs/search${query({ ...values, limit: PAGE })}`, { ...options, parse: withExactIntegers });

// Integers in arguments that JavaScript cannot represent keep their digits if this browser supports it.
const { rawJSON } = JSON;
/** @param {string} text */
const withExactIntegers = (text) => JSON.parse(text, rawJSON && ((_, value, { source }) => (Number.isInteger(value) && !Number.isSafeInteger(value) ? rawJSON(source) : value)));

/** @type {number | undefined} */
let later; // the next count without an event
let isCounted = false;

// The names alone, which are read faster than they are counted if there are many jobs: the list below waits for them.
async function readNames() {
  /** @type {{ queues: JobQueue[] }} */
  const { queues: all } = await get("/jobs/queues");
  if (!isCounted) showNames(all);
}

async function readStatus() {
  /** @type {JobStatus} */
  const { queues: all, leader } = await get("/jobs/status");
  isCounted = true;
  countInTitle(all.reduce((sum, { states }) => sum + (states?.failure ?? 0), 0));
  const clearing = byId("clear");
  if (clearing) clearing.disabled = !all.some(({ states }) => CLEARED.some((state) => states?.[state]));
  const leaderless = byId("leaderless");
  leaderless.hidden = leader !== null && now() - at(leader.heartbeat) < Number(leaderless.dataset.maxSilenceMs);
  showNames(all);
}

/** @param {JobQueue[]} all */
function showNames(all) {
  queues = all;
  Object.assign(byId("names"), { hidden: !queues.length, ariaBusy: null });
  showQueues();
  choices(list.values.name);
}

// With the latencies, because a row is drawn again only if its values have changed.
const showQueues = () => fill(byId("queues"), queues.map((queue) => ({ ...queue, latency: latencies[queue.name] })), rowOf);

// They change slowly, and are read apart from the counts.
async function readLatencies() {
  let again = LATENCY_INTERVAL;
  const failed = () => { again = RETRY_INTERVAL; }; // the list shows errors
  await attempt(async () => ({ names: latencies } = await get("/jobs/latency")), failed);
  showQueues();
  setTimeout(readLatencies, again);
}

// A dialog that lists the names may be opened before the first status has come.
/** @param {() => void} open */
const withNames = (open) => attempt(async () => {
  if (!queues.length) await readNames();
  open();
});

async function count() {
  clearTimeout(later);
  let again = RETRY_INTERVAL; // after a failure; the list shows errors
  try {
    await attempt(async () => {
      await readStatus();
      const unfinished = queues.reduce((sum, { states }) => sum + LIVE.reduce((all, state) => all + (states?.[state] ?? 0), 0), 0);
      again = queues.some(({ running }) => running) || unfinished > MAX_FRESH_COUNT ? STATUS_INTERVAL : LEADER_INTERVAL;
    }, () => {});
  } finally {
    later = setTimeout(recount, again);
  }
}

const recount = seldom(count, RECOUNT_INTERVAL, { whileHidden: true }); // the page's title counts what failed

// Names to filter by, including that of the URL.
/** @param {string | null | undefined} wanted */
function choices(wanted) {
  const names = [...new Set([...queues.map((queue) => queue.name), ...(wanted ? [wanted] : [])])];
  const select = byId("filter-name");
  if (names.length === select.options.length - 1) return;
  const chosen = select.value || wanted || "";
  select.replaceChildren(select.options[0], ...names.map((name) => element("option", {}, name)));
  select.value = chosen;
}

// Showing

/** @param {string} text @param {Record<string, string>} filters @param {string} [label] */
const linkToJobs = (text, filters, label) => element("a", { href: `${PREFIX}/jobs${query(filters)}`, "aria-label": label }, text);

/** @param {string} id */
const pageOf = (id) => `/jobs/${encodeURIComponent(id)}`;

/** @param {JobQueue & { latency?: Latency }} queue */
function rowOf({ name, states, is_paused: isPaused, pause: made, running, oldest_due: oldest, next_due: next, latency }) {
  return element("tr", {},
    element("th", { scope: "row" }, linkToJobs(name, { name }), " ", isPaused && pill("paused", "warn"), pauseNote(made)),
    CLEARED.map((state) => cell(state[0].toUpperCase() + state.slice(1), states?.[state] ? linkToJobs(number(states[state]), { name, state }, `${states[state]} ${state}: ${name}`) : element("span", { class: "soft" }, states ? "0" : "…"), "number")),
    cell("Wait, p95", percentile(latency?.wait?.p95_ms), "number duration"),
    cell("Run, p95", percentile(latency?.run?.p95_ms), "number duration"),
    cell("Executing", running ? element("span", {}, recordLink(`…${running.id.slice(-6)}`, pageOf(running.id), () => showJob(running.id)), " ", countdown(at(running.claimed_until))) : "—"),
    cell("Next due", countdown(at(oldest ?? next ?? "") || null, until)),
    mayAct && element("td", { class: "act" }, rowButton(isPaused ? "Resume" : "Pause …", name, () => (isPaused ? resume(name) : pause(name)))));
}

// Another program may have stored a job: any of its fields may be null.
/** @param {Job} job */
const titleOf = ({ name }) => name ?? "—";
/** @param {JobState | null} state */
const pillOf = (state) => (state === null ? "—" : pill(state, STATES[state]));
/** @param {Job} job @returns {Child} */
const stateOf = ({ state, progress }) => [pillOf(state), state === "executing" && progress && ` ${Math.round(progress.percent)} %`];
/** @param {Job} job @param {(value: Moment | null) => Child} [show] @returns {Child} */
const dueOf = (job, show = moment) => [show(job.due), job.waiting && !(ARE_RELATIVE && show === moment) && [" ", element("span", { class: "soft" }, countdown(at(job.waiting), until))]];

/** @param {Job} job */
function cells(job) {
  return [
    element("th", { scope: "row" }, recordLink(titleOf(job), pageOf(job._id), () => showJob(job._id), "whole")),
    element("td", { class: "text" }, element("code", { class: "clip" }, jsonText(job.arguments).slice(0, 300)), job.last_error && job.state !== "success" && element("span", { class: "clip hint bad" }, errorInList(job.last_error).slice(0, 300))),
    cell("State", element("span", {}, stateOf(job)), "nowrap"),
    cell("Due", element("span", {}, dueOf(job))),
    cell("Priority", job.priority, "number"),
    cell("Attempts", job.attempts, "number"),
    cell("Created", moment(job.created)),
    cell("Updated", moment(job.updated)),
  ];
}

/** @param {Job} job */
function describe(job) {
  const { state, progress, claim, repetition } = job;
  return [
    facts("facts", [
      ["State", pillOf(state)], ["Lease left", claim && countdown(at(claim.claimed_until))],
      [claim?.canceled_at ? "Asked to stop, killed in" : "Killed in", claim?.ends_at && countdown(at(claim.ends_at))], ["Due", element("span", {}, dueOf(job, zonedMoment))],
      ["Repeats", repetition && (repetition.cron ?? `every ${number((repetition.every_ms ?? 0) / 1000)} s`)],
      ["Priority", job.priority], ["Attempts", job.attempts], ["Created", zonedMoment(job.created)], ["Updated", zonedMoment(job.updated)],
    ]),
    state === "executing" && progress && element("p", {}, element("progress", { "aria-label": "Progress", max: 100, value: progress.percent }), ` ${Math.round(progress.percent)} % ${progress.note ?? ""}`),
    job.last_error && [element("h3", {}, "Last error"), errorText(job.last_error, "Last error")],
    element("h3", {}, "History"),
    grid(["When", "State", "Attempt", "Worker", "Duration", "Error"], (job.history ?? []).toReversed().map(({ at: when, state: one, attempt = "—", worker = "—", took_ms: took, error }) => [
      moment(when), pill(one, STATES[one]), attempt, worker, took == null ? "—" : span(took), error && errorText(error),
    ])),
  ];
}

/** @param {string} id @returns {Promise<Job>} */
const readJob = async (id) => (await get(`/jobs/${encodeURIComponent(id)}`, { parse: withExactIntegers })).job;

/** @type {Records<Job>} */
const records = new Records({ read: readJob, describe, actionsOf });

/** @param {string} id */
const showJob = (id) => attempt(async () => {
  const job = await readJob(id);
  if (isDialogOpen()) return; // another row was pressed meanwhile
  const page = pageOf(id);
  const text = jsonText(job.arguments, 2);
  const links = element("div", { class: "links" }, element("code", {}, id), link(page, "What happened to it"), copier("id", id), copier("arguments", text));
  records.open(id, job, { title: titleOf(job), page, content: [links, element("pre", { tabindex: 0, "aria-label": "Arguments" }, text)] });
});

// Acting

/** @param {Job} job @returns {(Action | false)[]} */
function actionsOf(job) {
  const { _id: id, state, priority } = job;
  if (!mayAct || state === null) return []; // without a state, all are refused
  /** @param {string} message @returns {Action} */
  const cancel = (message) => ["Cancel the job", () => act(`${encodeURIComponent(id)}/cancel`, {}, message), "danger"];
  if (state === "executing") return [cancel("Asked to stop")];
  return [
    (state === "pending" || state === "failure") && cancel("Canceled"),
    ["Delete …", () => remove(id, titleOf(job)), "danger"],
    state !== "success" && ["Reschedule …", () => reschedule(id, titleOf(job), priority ?? "")],
    [{ success: "Run again", pending: "Run now" }[/** @type {string} */ (state)] ?? "Retry now", () => act(`${encodeURIComponent(id)}/retry`, { state }, "Job queued to run now"), "primary"],
  ];
}

/** @param {string} path @param {object} body @param {string} message */
const act = (path, body, message) => attempt(async () => {
  await post(`/jobs/${path}`, body);
  toast(done(message));
});

/** @param {string} name */
const resume = (name) => act("resume", { names: [name] }, `${name}: resumed`);

/** @param {string} name */
const pause = (name) => askFor({
  title: `Pause ${name}?`, verb: "Pause", text: "Within a second, no more jobs of this name are started until it is resumed. One that is executing ends as usual.", fields: [PAUSE_REASON],
  async act({ reason }) {
    await post("/jobs/pause", { names: [name], reason: reason || null });
    return done(`${name}: paused`);
  },
});

const MORE = "; more remain, repeat to continue";

/** @template {Child} T @param {T} message @returns {T} */
function done(message) {
  reload();
  return message;
}

/** @type {Field[]} */
const WHEN = [
  { name: "at", label: "At, in UTC", kind: "datetime-local" },
  { name: "delay_seconds", label: "Or after this many seconds", kind: "number" },
];
/** @type {Field} */
const PRIORITY = { name: "priority", label: "Priority", kind: "number", hint: "-100 to 100, the highest first", check: numberFrom(-100, 100) };

/** @param {Values} given */
const sent = ({ at: when, delay_seconds: delay, priority }) => ({ at: when ? `${when}Z` : null, delay_seconds: numeric(delay), priority: numeric(priority) });

/** @param {string} id @param {string} name @param {number | ""} priority */
function reschedule(id, name, priority) {
  askFor({
    title: `Reschedule ${name}`, verb: "Reschedule", text: "Without a time, the state and the due time are kept.", fields: [...WHEN, { ...PRIORITY, value: priority }],
    async act(given) {
      const isChanged = given.priority !== String(priority); // otherwise others may have changed it meanwhile
      const changes = sent(isChanged ? given : { ...given, priority: "" });
      if (Object.values(changes).every((value) => value === null)) return "Nothing was changed";
      await post(`/jobs/${encodeURIComponent(id)}/reschedule`, changes);
      return done("Rescheduled");
    },
  });
}

/** @param {string} id @param {string} name */
function remove(id, name) {
  askFor({
    title: `Delete the job ${name}?`, verb: "Delete", kind: "danger", text: `Deletes the job ${id} and its history. ${UNDO}`,
    async act() {
      const { undo } = await ask("DELETE", `/jobs/${encodeURIComponent(id)}`);
      return done(withUndo("Job deleted", undo));
    },
  });
}

/** @param {string} path @param {string} past @param {string[]} ids */
async function change(path, past, ids) {
  const { changed, of, is_complete: isAll, undo } = await post(`/jobs/${path}`, { ids });
  list.selection.clear();
  return done(withUndo(`${number(changed)} of ${many(of, "job")} ${past}${isAll ? "" : MORE}`, undo));
}

/** @param {string[]} ids */
const retrySelected = (ids) => attempt(async () => toast(await change("retry", "queued to run now", ids)));

/** @param {string} path @param {string} verb @param {string} past @param {string} text */
const confirmed = (path, verb, past, text) => (/** @type {string[]} */ ids) => askFor({
  title: `${verb} ${many(ids.length, "job")}?`, verb: `${verb} jobs`, kind: "danger", text, act: () => change(path, past, ids),
});

function run() {
  askFor({
    title: "Run a job", verb: "Run", text: "Without a time, it is due at once.",
    fields: [
      { name: "name", label: "Name", kind: "select", options: queues.map(({ name }) => [name, name]), value: list.values.name },
      { name: "arguments", label: "Arguments, as a JSON list", kind: "area", value: "[]", check: (value) => jsonProblem(value, "a JSON list") },
      ...WHEN, { ...PRIORITY, value: 0 },
      { name: "unique", label: "Unique: only if there is no such job, in any state", kind: "check" },
      { name: "singular", label: "Singular: only if no such job is pending, failed or executing", kind: "check" },
    ],
    async act({ name, arguments: text, unique, singular, ...given }) {
      await post("/jobs", bodyOf(text, { name, unique: unique === "on", singular: singular === "on", ...sent(given) })).catch((error) => {
        throw error.status === 404 ? new Problem(404, { field: "name", message: error.message }) : error;
      });
      return done(`Stored a job ${name}`);
    },
  });
}

// The body is composed as text, so that the arguments arrive as they were typed.
/** @param {string} text @param {object} others */
const bodyOf = (text, others) => `${JSON.stringify(others).slice(0, -1)},"arguments":${text}}`;

function clear() {
  const { name, state } = list.values;
  askFor({
    title: "Delete jobs", verb: "Continue …", text: "Choose which jobs to delete. The next step shows how many there are.",
    fields: [
      { name: "name", label: "Name", kind: "select", options: [["", "All names"], ...queues.map((queue) => [queue.name, queue.name])], value: name },
      ...CLEARED.map((one) => /** @type {Field} */ ({ name: one, label: one, kind: "check", value: one === state })),
    ],
    async act({ name: of, ...checked }, signal) {
      const states = /** @type {JobState[]} */ (Object.keys(checked));
      if (!states.length) throw new Problem(422, { message: "Choose at least one state" });
      const { deleted: found, is_complete: isAll } = await ask("POST", "/jobs/clear", { states, name: of || null, preview: true }, { signal });
      if (!found) throw new Problem(422, { message: "No job is in any of these states, except declared ones" });
      setTimeout(confirm, 0, states, of, found, isAll);
    },
  });
}

/** @param {JobState[]} states @param {string} name @param {number} found @param {boolean} isAll */
function confirm(states, name, found, isAll) {
  askFor({
    title: `Delete ${isAll ? many(found, "job") : `${number(found)}+ jobs`} of ${name || ALL_NAMES}?`, verb: "Delete", kind: "danger",
    text: `Deletes all jobs in the state ${states.join(" or ")}, including those that enter it meanwhile, except declared ones. ${isAll ? UNDO : "More than 100,000 cannot be restored."}`,
    typed: found > TYPED_FROM && { name: name || ALL_NAMES },
    async act() {
      const { deleted, is_complete: isAll, undo } = await post("/jobs/clear", { states, name: name || null });
      return done(withUndo(`${many(deleted, "job")} deleted${isAll ? "" : MORE}`, undo));
    },
  });
}

// Live updates

/** @param {JobEvent} event */
function receive({ id, kind, job }) {
  const known = list.rows.get(id)?.row;
  if (kind === "deleted") list.remove([id]);
  else if (known) list.change({ ...job, arguments: known.arguments }); // which never change, and keep their digits there
  if (records.isOpen(id)) records.follow();
  list.refresh();
  recount();
}

function reload() {
  list.refresh();
  recount();
  records.follow();
}

choices(new URLSearchParams(location.search).get("name"));
/** @type {List<Job>} */
const list = new List({ load, search, cells, id: (job) => job._id });
setTimeout(readLatencies, LATENCY_DELAY);
attempt(readNames, () => {}).finally(recount);
new Events("/jobs/events", "job-update", { event: receive, reload });
list.selection.on("retry", retrySelected);
list.selection.on("cancel", confirmed("cancel", "Cancel", "canceled", "Executing jobs are asked to stop; finished jobs are not changed."));
list.selection.on("delete", confirmed("delete", "Delete", "deleted", `Their history is deleted, too. ${UNDO} Executing jobs are skipped.`));
byId("run")?.addEventListener("click", () => withNames(run));
byId("clear")?.addEventListener("click", () => withNames(clear));
