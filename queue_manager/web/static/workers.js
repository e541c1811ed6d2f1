// The workers that are online, and what each of their processes does.

import { attempt, get, onOverview } from "./api.js";
import { at, countdown, number, span } from "./clock.js";
import { byId, complain, element, facts, link, pill, put } from "./dom.js";
import { cell, fill } from "./list.js";
import { seldom } from "./pace.js";

const MEGABYTE = 1e6; // bytes
const REFRESH_INTERVAL = 500; // ms
/** @type {Record<string, string>} */
const PAGES = JSON.parse(byId("workers").dataset.pages ?? "{}"); // of the systems, by the queue of their items

const read = seldom(() => attempt(async () => {
  /** @type {Workers} */
  const { workers, count, queues_without_worker: queues } = await get("/workers");
  complain();
  show(workers, count, queues);
}, ({ message }) => complain(message)), REFRESH_INTERVAL);

/** @param {OneWorker[]} workers @param {number} count @param {Workers["queues_without_worker"]} queues */
function show(workers, count, queues) {
  put(byId("unconsumed"), queues, () => queues.length > 0 && unconsumed(queues));
  byId("empty").hidden = count > 0;
  byId("where").textContent = count > workers.length ? `${number(workers.length)} of ${number(count)} workers` : "";
  // A card is drawn again when its worker does something else, not at each heartbeat.
  fill(byId("workers"), workers.map(({ seen_at: _, ...worker }) => worker), card);
  const seen = byId("workers").querySelectorAll(".seen");
  workers.forEach((worker, index) => seen[index].replaceChildren(countdown(at(worker.seen_at), ago)));
}

/** A link to the system whose items the queue has, if any. @param {string} queue */
const linked = (queue, text = queue) => link(PAGES[queue], text);

/** @param {Workers["queues_without_worker"]} queues */
const unconsumed = (queues) => [
  element("p", {}, `No worker consumes ${queues.length === 1 ? "this queue" : "these queues"}: `, queues.map(({ queue, title }, index) => [index > 0 && ", ", element("code", {}, queue), " (", linked(queue, title), ")"])),
  element("p", { class: "hint" }, "Start one: ", element("code", {}, `celery -A tasks worker --queues ${queues.map(({ queue }) => queue).join(",")}`)),
];

/** @param {Omit<OneWorker, "seen_at">} worker */
function card({ name, pid, queues, release, paused, pool, size, busy, done_per_minute: rate, memory_bytes: memory, processes }) {
  return element("article", { class: "card stack", "aria-label": name },
    element("header", { class: "head" }, element("h2", {}, name), paused ? pill("Takes no items", "bad") : busy ? pill("Working", "good") : pill("Idle")),
    paused && element("p", { class: "bad" }, paused),
    facts("facts", [
      ["Pool", pool && `${pool}, ${number(size)}`],
      ["Busy", pool && `${number(busy)} of ${number(size)}`],
      ["Done / min", pool && number(rate)],
      ["Memory", pool && bytes(memory)],
      ["Version", release ?? "before 0.2"],
      ["PID", pid],
      ["Last seen", element("span", { class: "seen" })],
      ["Queues", element("span", { class: "queues" }, queues?.map((queue, index) => [index > 0 && ", ", linked(queue)]) ?? "unknown")],
    ]),
    processes.length > 0 && table(name, processes));
}

/** @param {string} name @param {WorkerProcess[]} processes */
const table = (name, processes) => element("div", { class: "sheet" }, element("table", { "aria-label": `Processes of ${name}` },
  element("thead", {}, element("tr", {}, ["PID", "Task", "Running for", "Memory"].map((title) => element("th", { scope: "col", class: title === "Memory" && "number" }, title)))),
  element("tbody", {}, processes.flatMap(rows))));

// A thread pool has one process, with a row for each task.
/** @param {WorkerProcess} process */
const rows = ({ pid, memory_bytes: memory, running }) => (running.length ? running : [undefined]).map((task, index) => element("tr", {},
  element("th", { scope: "row", class: "nowrap" }, index === 0 && pid),
  element("td", { class: "does" }, task ? does(task) : element("span", { class: "soft" }, "idle")),
  cell("Running for", task ? countdown(at(task.since), length) : "", "nowrap"),
  cell("Memory", index === 0 ? bytes(memory) : "", "number nowrap")));

/** @param {WorkerTask} task @returns {Child} */
function does({ task, task_id: id, tasks, item, job_name: job, page }) {
  if (!task) return element("span", { class: "soft" }, "works for another system");
  const what = tasks > 1 ? `${number(tasks)} items` : item ?? job;
  const to = page ? link(page, what || task) : element("code", { title: id }, task);
  return what && page ? [job && item && `${job} `, to, " ", element("code", { class: "soft", title: id }, task)] : to;
}

/** @param {number | null} value */
const bytes = (value) => (value === null ? "—" : `${number(Math.round(value / MEGABYTE))} MB`);
/** @param {number} left */
const ago = (left) => (left > -1000 ? "now" : `${span(left)} ago`);
/** @param {number} left */
const length = (left) => span(Math.min(left, 0));

onOverview(read);
