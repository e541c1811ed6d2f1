// Every system in one look: what needs somebody first, then each with its figures and its day.

import { Events, attempt, get } from "./api.js";
import { countdown, moment, now, number, span } from "./clock.js";
import { byId, complain, element, facts, pill } from "./dom.js";
import { days, figures, howToTurnOn, needs, put, scans, standing } from "./systems.js";

/** @type {Map<string, { title: string, state: HTMLElement, body: HTMLElement, day: HTMLElement }>} */
const cards = new Map(); // by name: the parts of a card that change

/** @param {string} text */
const code = (text) => element("code", {}, text);
/** @param {...Child} text */
const note = (...text) => element("small", { class: "soft" }, ...text);

// What needs somebody

/** @param {Overview} overview */
function urgent({ servers, problems, systems }) {
  /** @type {(Urgent | "" | null)[]} */
  const all = [
    servers.mongodb && ["bad", "MongoDB does not answer", [[servers.mongodb]]],
    servers.redis && ["bad", "Redis does not answer", [[servers.redis]]],
    ...problems.map(general),
    ...systems.map(need),
  ];
  return all.filter((one) => !!one).sort(([one], [other]) => (one === other ? 0 : one === "bad" ? -1 : 1));
}

// A problem of no one system: what is wrong stands before its first colon.
/** @param {string} problem @returns {Urgent} */
function general(problem) {
  const [title, ...words] = problem.split(": ");
  return ["bad", title, [[words.join(": ")]]];
}

/** @param {System} system @returns {Urgent | null} */
function need(system) {
  const all = needs(system);
  const isOne = all.length === 1;
  return all.length ? [all[0][0], system.title, all.map(([, words, page]) => [words, isOne ? null : page]), (isOne && all[0][2]) || system.page] : null;
}

/** @param {Urgent[]} list */
function attention(list) {
  if (!list.length) return [pill("All well", "good"), " Nothing needs attention."];
  /** @param {Urgent[2][number]} reason */
  const said = ([words, page]) => element("span", { class: "clip", title: words }, page ? element("a", { href: page }, words) : words);
  /** @param {Urgent} urgent */
  const one = ([kind, title, all, page]) => element("li", {}, pill(kind === "bad" ? "Act" : "Look", kind), element("div", {}, page ? element("a", { href: page }, title) : element("b", {}, title), ...all.map(said)));
  return [element("h2", {}, "Needs attention"), element("ul", {}, list.map(one))];
}

// Who is there

/** @param {string | null} reason */
const server = (reason) => (reason ? pill("Away", "bad") : pill("Answers", "good"));

/** @param {Overview} overview @returns {Child} */
function lead({ leader, servers }) {
  if (!leader) return servers.redis ? "—" : [pill("No leader", "bad"), note("Start ", code("celery -A tasks beat"))];
  const lease = countdown(now() + leader.lease_left_seconds * 1000, (left) => `lease ${span(Math.max(Math.ceil(left / 1000), 0) * 1000)} left`);
  return [code(leader.holder), note("since ", moment(leader.since), " · ", lease)];
}

/** @param {Overview} overview @returns {Child} */
function crew({ workers }) {
  if (!workers) return "—";
  if (!workers.length) return [pill("No workers", "bad"), note("Start one: ", code("celery -A tasks worker"), ", or all: ", code("make up"))];
  return [pill(`${number(workers.length)} online`, "good"), note(workers.map(({ name }) => name).join(", "))];
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
    element("header", { class: "head" }, element("h2", {}, element("a", { href: page }, title)), parts.state), parts.body, parts.day));
  return parts;
}

/** @param {System} system */
function showSystem(system) {
  const { state, body, day } = cards.get(system.name) ?? card(system);
  put(state, system, standing);
  put(body, system, () => (system.is_on ? [figures(system), scans(system)] : element("p", { class: "soft" }, ...howToTurnOn(system))));
  day.hidden = !system.is_on;
}

/** @param {Overview} overview */
function show(overview) {
  complain();
  put(byId("strip"), [overview.leader, overview.workers, overview.servers], () => strip(overview));
  put(byId("attention"), urgent(overview), attention);
  overview.systems.forEach(showSystem);
}

const read = () => attempt(async () => show(await get("/overview")), ({ message }) => complain(message));

await read();
new Events("/overview/events", "overview", { event: show, reload: read });
days((name) => cards.get(name)?.day, (name) => cards.get(name)?.title ?? name);
