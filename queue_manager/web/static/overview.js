// The overview of all systems: what needs attention first, then each system with its statistics and its last 24 hours.

import { attempt, get, onOverview } from "./api.js";
import { chart } from "./chart.js";
import { at, countdown, moment, now, number, span } from "./clock.js";
import { byId, complain, countInTitle, element, facts, link, pill, put, showConnecting } from "./dom.js";
import { speed } from "./latency.js";
import { awayServers, howToTurnOn, notice, pauseNote, scans, statistics, statusPill } from "./systems.js";

const DAY_INTERVAL = 60000; // ms between two readings of a day in buckets of ten minutes
const SPANS = [1, 3, 6, 12, 24]; // hours that the charts show: as many as something is known of
/** @type {Map<string, { title: string, state: HTMLElement, body: HTMLElement, day: HTMLElement }>} */
const cards = new Map(); // by name: the parts of a card that change

/** @param {string} text */
const code = (text) => element("code", {}, text);
/** @param {...Child} text */
const note = (...text) => element("small", { class: "soft" }, ...text);

// What needs attention

/** @type {Record<string, string>} */
const COMPONENTS = { mongodb: "MongoDB", redis: "Redis", broker: "Broker", beat: "Beat", workers: "Workers", clocks: "Clocks", settings: "Settings" };

/** @param {Overview} overview @returns {Urgent[]} */
function urgent({ problems, systems }) {
  const names = [...new Set(problems.map(({ system }) => system))];
  const components = names.map((name) => ({ title: COMPONENTS[name] ?? name, problems: problems.filter(({ system }) => system === name) }));
  /** @type {Urgent[]} */
  const all = [...components, ...systems.map((system) => ({ title: system.title, page: system.page, problems: system.problems }))];
  return all.filter((one) => one.problems.length).sort((one, other) => rank(one) - rank(other));
}

/** @param {Urgent} urgent */
const rank = ({ problems: [worst] }) => (worst.severity === "critical" ? 0 : 1);

/** @param {Urgent[]} list */
function attention(list) {
  if (!list.length) return [pill("All well", "good"), " Nothing needs attention."];
  /** @param {Urgent} urgent */
  const one = ({ title, page, problems }) => element("li", {}, page ? link(page, title, "strong") : element("b", {}, title), ...problems.map(notice));
  return [element("h2", {}, "Needs attention"), element("ul", {}, list.map(one))];
}

// Leader and workers

/** @param {string | null} reason */
const server = (reason) => (reason ? pill("Down", "bad") : pill("Up", "good"));

/** @param {Overview} overview @returns {Child} */
function lead({ leader, servers }) {
  if (!leader) return servers.redis ? "—" : [pill("No leader", "bad"), note("Start ", code("celery -A tasks beat"))];
  const lease = countdown(now() + leader.lease_left_seconds * 1000, (left) => `lease ${span(Math.max(Math.ceil(left / 1000), 0) * 1000)} left`);
  return [code(leader.holder), note("since ", moment(leader.since), " · ", lease)];
}

/** @param {Overview} overview @returns {Child} */
function crew({ workers }) {
  if (!workers) return "—";
  if (!workers.length) return [pill("No workers", "bad"), note("Start one: ", code("celery -A tasks worker"), ", or all: ", code("queue-manager start"))];
  return [pill(`${number(workers.length)} online`, "good"), note(workers.map(({ name, paused }) => (paused ? `${name} (takes no items)` : name)).join(", "))];
}

/** @param {Overview} overview */
function strip(overview) {
  /** @param {Child} content */
  const part = (content) => element("div", {}, content);
  return facts("facts card strip", [
    ["Leader", part(lead(overview))],
    ["Workers", part(crew(overview))],
    ["MongoDB", part(server(overview.servers.mongodb))],
    ["Redis", part(server(overview.servers.redis))],
  ]);
}

// Systems

/** @param {System} system */
function card({ name, title, page }) {
  const parts = { title, state: element("span"), body: element("div", { class: "stack" }), day: element("div") };
  cards.set(name, parts);
  byId("systems").append(element("article", { class: "card stack", "aria-label": title },
    element("header", { class: "head" }, element("h2", {}, link(page, title)), parts.state), parts.body, parts.day));
  return parts;
}

/** @param {System} system @param {string} away */
function showSystem(system, away) {
  const { state, body, day } = cards.get(system.name) ?? card(system);
  put(state, [system, away], () => statusPill(system, away));
  put(body, system, () => (system.is_on ? [pauseNote(system.pause), speed(system.latency, system.duration_names, "the last hour"), statistics(system), scans(system)] : element("p", { class: "soft" }, ...howToTurnOn(system))));
  day.hidden = !system.is_on;
}

// The last 24 hours, drawn again every minute.
async function days() {
  await attempt(async () => {
    /** @type {SystemsHistory} */
    const { systems, begins_at: begins, bucket_seconds: seconds } = await get("/overview/history");
    const hours = spanOf(Object.values(systems), seconds);
    for (const [name, counts] of Object.entries(systems)) {
      const card = cards.get(name);
      if (counts && card) put(card.day, [begins, counts], () => day(card.title, counts, begins, seconds, hours));
    }
  }, () => {}); // the statistics show which server is unavailable
  setTimeout(days, DAY_INTERVAL);
}

/** How many hours the charts of all systems show. @param {(OutcomeCounts | null)[]} all @param {number} seconds of a step */
function spanOf(all, seconds) {
  /** Steps since something was counted. @param {OutcomeCounts | null} counts */
  const known = (counts) => {
    const first = counts ? counts.done.findIndex((value, index) => value || counts.failed[index]) : -1;
    return counts && first >= 0 ? counts.done.length - first : 0;
  };
  const longest = Math.max(...all.map(known)) * seconds;
  return SPANS.find((hours) => hours * 3600 >= longest) ?? 24;
}

/** @param {string} title @param {OutcomeCounts} counts @param {Moment} begins @param {number} seconds @param {number} hours */
function day(title, { done, failed }, begins, seconds, hours) {
  /** @param {number[]} values */
  const total = (values) => number(values.reduce((sum, value) => sum + value, 0));
  const left = Math.max(done.length - (hours * 3600) / seconds, 0); // steps that are left out
  return chart({ title: hours === 1 ? "Last hour" : `Last ${hours} hours`, unit: "per 10 min", begins: at(begins) / 1000 + left * seconds, seconds, summary: `${title}: ${total(done)} done, ${total(failed)} failed.`,
    series: [{ name: "done", kind: "done", values: done.slice(left) }, { name: "failed", kind: "failed", values: failed.slice(left) }] });
}

/** @param {Overview} overview */
function show(overview) {
  complain();
  put(byId("strip"), [overview.leader, overview.workers, overview.servers], () => strip(overview));
  const found = urgent(overview);
  put(byId("attention"), found, attention);
  countInTitle(found.length);
  const away = awayServers(overview.servers);
  for (const system of overview.systems) showSystem(system, away);
}

const read = () => attempt(async () => show(await get("/overview")), ({ message }) => complain(message));

showConnecting();
await read();
onOverview(show, read);
days();
