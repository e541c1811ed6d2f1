// The page of the messages in one state, with the actions.

import { Events, UNDO, ask, attempt, get, parseExactly, post, query, stream, withUndo } from "./api.js";
import { at, countdown, many, moment, number, zonedMoment } from "./clock.js";
import { Records, TYPED_FROM, askFor, jsonProblem, numberFrom, numeric } from "./dialog.js";
import { byId, button, copier, countInTitle, element, errorInList, errorText, facts, filled, hide, jsonText, link, mayAct, pill, put, reasonText, recordLink, toast } from "./dom.js";
import { List, cell } from "./list.js";
import { nextFrame, seldom } from "./pace.js";
import { PAUSE_REASON, pauseNote } from "./systems.js";

const PAGE = 50;
/** @type {Record<MessageState, string>} */
const PLACES = { main: "Waiting", processing: "Processing", dead: "Failed", acknowledged: "Acknowledged", archived: "Archived" };
const tabs = byId("tabs").dataset;
const place = /** @type {MessageState} */ (tabs.place);
/** @type {QueueConfig} */
const config = JSON.parse(tabs.config ?? "");
const MAX_EVENTS = 500; // that are shown at once
const MAX_SUGGESTIONS = 100;
const MAX_ACK_TIMEOUT = 604800; // s
const MAX_ATTEMPTS = 10000;
const RETRY_INTERVAL = 2000; // ms
const RECOUNT_INTERVAL = 500; // ms
const FILL_DELAY = 1000; // ms, and up to as many more, so that not all open pages ask at once
/** @type {number | undefined} */
let size; // messages in this place, when it is known

// Reading

/** @param {Values} values */
const asked = ({ sort, order, ...values }) => query({ ...values, sortBy: sort, sortOrder: order, limit: PAGE });

/** @param {Values} values @param {Options} options */
async function load(values, options) {
  /** @type {MessagePage} */
  const { messages, pagination } = await get(`/queue/${place}/messages${asked(values)}`, { ...options, parse: exactly });
  return { rows: messages, cursor: pagination.cursor, total: pagination.total, isPartial: pagination.is_partial };
}

/** @param {Values} values @param {Options} options */
const search = (values, options) => stream(`/queue/${place}/messages/search${asked(values)}`, { ...options, parse: exactly });

// Only the numbers in payloads keep their digits: the page calculates with the others.
/** @param {string} text */
function exactly(text) {
  const answer = JSON.parse(text);
  const messagesOf = (/** @type {any} */ parsed) => (Array.isArray(parsed) ? parsed : parsed.messages ?? [parsed]);
  const exact = messagesOf(parseExactly(text));
  for (const [index, message] of messagesOf(answer).entries()) message.payload = exact[index].payload;
  return answer;
}

// The list also shows messages from events, before it is read again.

/** @extends {List<Message>} */
class MessageList extends List {
  /** @type {number | undefined} */
  filling;

  // True if the first page is shown, without a filter, and messages that arrive are its first rows.
  get isByArrival() {
    return place !== "processing" && !Object.keys(this.values).length;
  }

  /** Show messages that have arrived as the first rows. @param {Message[]} messages the latest last, at most a page */
  put(messages) {
    this.isAhead = true;
    const rows = new Map(messages.toReversed().map((message) => [message.id, message]));
    for (const [id, { row }] of this.rows) if (!rows.has(id)) rows.set(id, row);
    this.isCut ||= rows.size > PAGE;
    this.arrange([...rows.values()].slice(0, PAGE));
    this.showWhere();
  }

  // Read again soon, if removed rows have left room for others.
  fill() {
    if (this.rows.size >= Math.min(this.total ?? 0, PAGE)) return;
    this.filling ??= setTimeout(() => {
      this.filling = undefined;
      this.refresh();
    }, FILL_DELAY + Math.random() * FILL_DELAY);
  }
}

// Showing

/** @param {Message} message */
const timeoutOf = (message) => message.custom_ack_timeout ?? config.ack_timeout_seconds;
/** @param {Message} message */
const mostOf = (message) => message.custom_max_attempts ?? config.max_attempts;

/** @param {Message} message */
function deadlineOf(message) {
  const began = message.dequeued_at ?? message.processing_started_at;
  if (message.deadline_at) return at(message.deadline_at);
  return began ? at(began) + timeoutOf(message) * 1000 : null;
}

/** @type {Record<string, (message: Message) => Child>} */
const CELLS = {
  type: (message) => cell("Type", message.undecodable ? pill("no message", "bad") : message.type),
  priority: (message) => cell("Priority", message.priority, "number"),
  payload: (message) => element("td", { class: "text" }, element("code", { class: "clip" }, jsonText(message.payload).slice(0, 300))),
  created: (message) => cell("Created", moment(message.created_at), "nowrap"),
  started: (message) => cell("Started", moment(message.processing_started_at ?? message.dequeued_at), "nowrap"),
  failed: (message) => cell("Failed", moment(message.failed_at), "nowrap"),
  acknowledged: (message) => cell("Acknowledged", moment(message.acknowledged_at), "nowrap"),
  attempts: (message) => cell("Attempts", `${message.attempt_count} / ${mostOf(message)}`, "number nowrap"),
  timeout: (message) => cell("Ack timeout", `${timeoutOf(message)} s`, "number nowrap"),
  consumer: (message) => cell("Consumer", element("span", { class: "clip" }, message.consumer_id ?? "—")),
  left: (message) => cell("Time remaining", countdown(deadlineOf(message)), "number"),
  reason: (message) => element("td", { class: "text" }, element("span", { class: "clip bad" }, message.last_error ? reasonText(errorInList(message.last_error)) : "—")),
};
const COLUMNS = {
  main: ["type", "priority", "payload", "created", "attempts", "timeout"],
  processing: ["type", "payload", "started", "left", "attempts", "consumer"],
  dead: ["type", "payload", "failed", "reason", "attempts"],
  acknowledged: ["type", "payload", "acknowledged", "attempts"],
  archived: ["type", "payload", "created", "attempts"],
};

/** @type {Set<string>} */
const types = new Set(); // that were shown; the filter suggests them

/** @param {string} type */
function suggest(type) {
  if (types.has(type) || types.size === MAX_SUGGESTIONS) return;
  types.add(type);
  byId("types").append(element("option", { value: type }));
}

/** @param {string} id */
const pageOf = (id) => `/messages/${encodeURIComponent(id)}`;

/** @param {Message} message */
function cells(message) {
  suggest(message.type);
  const id = element("th", { scope: "row" }, recordLink(message.id, pageOf(message.id), () => showMessage(message)));
  return [id, COLUMNS[place].map((name) => CELLS[name](message))];
}

/** @param {Message & { state: MessageState }} message */
const describe = (message) => [
  facts("pairs", [
    ["State", PLACES[message.state]],
    ["Reason", message.last_error && errorText(reasonText(message.last_error), "Reason")],
    ["Type", message.type],
    ["Priority", message.priority],
    ["Attempts", `${message.attempt_count} of ${mostOf(message)}`],
    ["Ack timeout", `${timeoutOf(message)} s`],
    ["Added", zonedMoment(message.created_at)],
    ["Started", zonedMoment(message.processing_started_at ?? message.dequeued_at)],
    ["Time remaining", message.state === "processing" ? countdown(deadlineOf(message)) : null],
    ["Consumer", message.consumer_id],
    ["Token", message.state === "processing" ? element("code", {}, message.lock_token) : null],
    ["Acknowledged", zonedMoment(message.acknowledged_at)],
    ["Failed", zonedMoment(message.failed_at)],
  ]),
  element("div", {}, copier("payload", jsonText(message.payload, 2))),
  element("pre", { tabindex: 0, "aria-label": "Payload" }, jsonText(message.payload, 2)),
];

/** @param {Message} message */
function showMessage(message) {
  const { id } = message;
  const page = pageOf(id);
  const content = element("div", { class: "links" }, link(page, "What happened to it"), copier("id", id));
  records.open(id, { ...message, state: place }, { title: id, page, content });
}

/** @type {Records<Message & { state: MessageState }>} */
const records = new Records({
  read: (id) => get(`/queue/message/${encodeURIComponent(id)}`, { parse: exactly }),
  describe,
  actionsOf: (message) => (message.state === place ? actionsOf(message) : []), // this page acts only on messages in its state
});

/** @param {Message} message @returns {(Action | false)[]} */
function actionsOf(message) {
  const { id, undecodable } = message;
  if (!mayAct) return [];
  return [
    ["Delete …", () => remove([id]), "danger"],
    ["Move …", () => move([id])],
    place !== "processing" && !undecodable && ["Edit …", () => edit(message)],
    place === "dead" && !undecodable && ["Replay", () => replay([id]), "primary"],
  ];
}

// Acting

/** @param {string[]} ids */
const messagesOf = (ids) => (ids.length === 1 ? `message ${ids[0]}` : many(ids.length, "message"));

/** @param {Partial<Message>} message @returns {Field[]} */
function fieldsOf(message = {}) {
  const highest = config.max_priority_levels - 1;
  return [
    { name: "type", label: "Type", value: message.type, isNeeded: true },
    { name: "payload", label: "Payload, as JSON", kind: "area", value: message.id ? jsonText(message.payload, 2) : "{}", check: jsonProblem },
    { name: "priority", label: "Priority", kind: "number", value: message.priority ?? 0, hint: `0 to ${highest}, the highest first`, check: numberFrom(0, highest) },
    { name: "ackTimeout", label: "Ack timeout, in seconds", kind: "number", value: message.custom_ack_timeout ?? "", hint: `Leave empty to use the queue default (${config.ack_timeout_seconds} s)`, check: numberFrom(0.001, MAX_ACK_TIMEOUT, false) },
    { name: "maxAttempts", label: "Max attempts", kind: "number", value: message.custom_max_attempts ?? "", hint: `Leave empty to use the queue default (${config.max_attempts})`, check: numberFrom(1, MAX_ATTEMPTS) },
  ];
}

// The body is composed as text, so that the payload arrives as it was typed. An empty number becomes null.
/** @param {Values} values */
function bodyOf({ type, payload, ...numbers }) {
  const members = Object.entries(numbers).map(([name, value]) => [JSON.stringify(name), value === "" ? "null" : String(Number(value))]);
  if (type !== undefined) members.push(['"type"', JSON.stringify(type)]);
  if (payload !== undefined) members.push(['"payload"', payload]);
  return `{${members.map((member) => member.join(":")).join()}}`;
}

/** The fields that `is` finds. @param {Values} values @param {(value: string, name: string) => boolean} is @returns {Values} */
const those = (values, is) => Object.fromEntries(Object.entries(values).filter(([name, value]) => is(value, name)));

// `randomUUID` is missing on plain HTTP.
const randomId = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

function create() {
  /** @type {Record<string, string>} */
  const ids = {}; // by the message: one of which the outcome is unknown is not added twice
  askFor({
    title: "Add a message", verb: "Add", fields: fieldsOf(),
    async act(given) {
      const body = bodyOf(those(given, (value) => value !== ""));
      ids[body] ??= randomId();
      const { id } = await post("/queue/message", `{"id":"${ids[body]}",${body.slice(1)}`);
      return `Added ${id}`;
    },
  });
}

/** @param {Message} message */
function edit(message) {
  /** @type {Field[]} */
  const more = place === "dead" ? [{ name: "isReplayed", label: "Replay it", kind: "check", value: true }] : [];
  const fields = fieldsOf(message);
  const before = Object.fromEntries(fields.map(({ name, value }) => [name, String(value).trim()]));
  askFor({
    title: `Edit ${message.id}`, verb: "Save", fields: [...fields, ...more],
    async act({ isReplayed, ...given }) {
      const changed = those(given, (value, name) => value !== before[name]); // others may have changed the rest meanwhile
      const isChanged = Object.keys(changed).length > 0;
      if (isChanged) await ask("PUT", `/queue/message/${encodeURIComponent(message.id)}?queueType=${place}`, bodyOf(changed));
      if (isReplayed) return done(await post("/queue/replay", { messageIds: [message.id] }));
      list.refresh();
      return isChanged ? `Changed ${message.id}` : "Nothing was changed";
    },
  });
}

/** @param {string[]} ids */
function move(ids) {
  const others = Object.entries(PLACES).filter(([name]) => name !== place && name !== "processing");
  askFor({
    title: `Move ${messagesOf(ids)}`, verb: "Move",
    fields: [
      { name: "toQueue", label: "To", kind: "select", options: others, value: others[0][0] },
      { name: "errorReason", label: "Reason", hint: "Optional; shown with the message" },
    ],
    async act({ toQueue, errorReason }) {
      return done(await post("/queue/move", { messages: ids, fromQueue: place, toQueue, errorReason: errorReason || null }));
    },
  });
}

/** @param {string[]} ids */
function remove(ids) {
  askFor({
    title: `Delete ${messagesOf(ids)}?`, text: UNDO, verb: "Delete", kind: "danger",
    act: async () => done(await post(`/queue/messages/delete?queueType=${place}`, { messageIds: ids })),
  });
}

/** @param {string[]} ids */
const replay = (ids) => attempt(async () => toast(done(await post("/queue/replay", { messageIds: ids }))));

async function replayAll() {
  const filter = filterOf(list.values);
  const { sort, order, cursor, ...shown } = list.values;
  /** @type {MatchCount} */
  const { count, is_complete: isAll } = await get(`/queue/dead/count${query(shown)}`);
  if (!count) return toast("Nothing matches");
  const what = `${number(count)}${isAll ? "" : " or more"} failed message${count === 1 ? "" : "s"}`;
  return askFor({
    title: `Replay ${what}?`, verb: "Replay", text: "They go back to the end of their queue, and their attempts are reset.",
    act: async () => done(await post("/queue/replay", { filter })),
  });
}

/** @param {Values} values */
function filterOf({ filterType, filterPriority, filterAttempts, startDate, endDate, search }) {
  return { type: filterType, priority: numeric(filterPriority), attempts: numeric(filterAttempts), startDate, endDate, search };
}

function clear() {
  const name = PLACES[place];
  const isMany = size === undefined || size > TYPED_FROM;
  const what = size === undefined ? "messages" : many(size, "message");
  askFor({
    title: `Delete all ${what} in ${name}?`, text: `This ignores the filters above, and includes messages that arrive before you confirm. ${(size ?? 0) > 1e5 ? "More than 100,000 cannot be restored." : UNDO}`, verb: "Delete all", kind: "danger",
    typed: isMany && { name },
    act: async () => done(await ask("DELETE", `/queue/${place}/clear`)),
  });
}

// Pauses

/** @param {{ pauses: Record<string, Pause> }} status */
function showPauses({ pauses }) {
  put(byId("pauses"), pauses, () => Object.entries(pauses).map(([type, made]) => element("div", { class: "bar" },
    element("b", {}, type), mayAct && filled(button("Resume", () => resume(type), "quiet"), { "aria-label": `Resume ${type}` }), pauseNote(made))));
}

/** @param {string} action @param {string} type @param {string} [reason] */
const change = async (action, type, reason) => showPauses(await post(`/queue/${action}`, { types: [type], ...(reason && { reason }) }));

/** @param {string} type */
const resume = (type) => attempt(async () => {
  await change("resume", type);
  toast(`Resumed ${type}`);
});

const pause = () => askFor({
  title: "Pause a type?", verb: "Pause", text: "Its messages wait until it is resumed.",
  fields: [{ name: "type", label: "Type", isNeeded: true }, PAUSE_REASON],
  async act({ type, reason }) {
    await change("pause", type, reason);
    return `Paused ${type}`;
  },
});

/** @param {{ message: string, failed?: number, undo?: string | null }} answer */
function done({ message, failed, undo }) {
  list.selection.clear();
  list.refresh();
  return withUndo(failed ? `${message}: ${failed === 1 ? "one is" : `${number(failed)} are`} no longer in ${PLACES[place]}` : message, undo);
}

// Live updates

/** @type {string[]} */
const waiting = []; // events, as text, until the next frame
let isCut = false; // whether they were too many to keep

/** @param {string} event */
function receive(event) {
  waiting.push(event);
  if (waiting.length === 1) setTimeout(nextFrame, list.pace.rest, showReceived);
  if (waiting.length > 2 * MAX_EVENTS) {
    waiting.splice(0, MAX_EVENTS);
    isCut = true;
  }
}

// At most once per frame, for any number of events. If there are too many, only the latest are shown, and the list is read
// again.
function showReceived() {
  const events = waiting.splice(0);
  const isAll = !isCut && events.length <= MAX_EVENTS;
  isCut = false;
  list.pace.draw(() => happened(events.slice(-MAX_EVENTS)));
  if (!isAll) list.refresh();
}

// An event contains its messages, if they are few, and the counts by state.
/** @param {string[]} texts */
function happened(texts) {
  /** @type {QueueEvent[]} */
  const events = texts.map((text) => JSON.parse(text));
  const counts = events.findLast((event) => event.counts)?.counts;
  if (counts) {
    countsReceived += 1;
    showCounts(counts);
    if (!list.isFiltered) list.total = counts[place];
  }
  if (!counts || events.some(({ type }) => /pause|resume/.test(type))) recount();
  if (events.some(({ type, messages }) => !messages || type === "clear")) {
    list.refresh();
    return records.follow();
  }
  /** @type {Map<string, number | null>} */
  const latest = new Map(); // by id, the event that has the message; null where it is not here any more
  for (const [index, { payload, messages }] of events.entries()) {
    for (const id of [...(payload.ids ?? []), ...(payload.dlq_ids ?? [])]) {
      latest.delete(id);
      latest.set(id, null);
    }
    for (const message of messages ?? []) if (message.place === place) latest.set(message.id, index);
  }
  if ([...latest.keys()].some((id) => records.isOpen(id))) records.follow();
  list.remove([...latest.keys()].filter((id) => latest.get(id) === null));
  // Only the list shows whether an update has moved its message.
  if (!list.isByArrival || events.some(({ type }) => type === "update")) return list.refresh();
  const here = [...latest].filter(([, index]) => index !== null).slice(-PAGE);
  list.put(here.map(([id, index]) => messageIn(texts[index ?? 0], id)));
  list.fill();
}

/** @param {string} text @param {string} id @returns {Message} */
const messageIn = (text, id) => exactly(text).messages.find((/** @type {Message} */ message) => message.id === id);

let countsReceived = 0; // events that had counts
/** @type {number | undefined} */
let recounting; // the repetition of a count that failed

async function count() {
  const before = countsReceived;
  try {
    const counts = await get("/queue/status?include_messages=false");
    showPauses(counts);
    if (countsReceived === before) showCounts(counts); // otherwise they may be older than an event received meanwhile
  } catch {
    clearTimeout(recounting); // of another failed count: each reload starts one
    recounting = setTimeout(count, RETRY_INTERVAL); // the list shows errors
  }
}

const recount = seldom(count, RECOUNT_INTERVAL);

/** @param {MessageCounts} counts */
function showCounts(counts) {
  for (const shown of document.querySelectorAll("[data-count]")) shown.textContent = number(counts[/** @type {MessageState} */ (shown.dataset.count)]);
  const here = counts[place];
  size = here;
  countInTitle(here);
  const clearing = byId("clear");
  if (!clearing) return;
  clearing.textContent = `Clear ${PLACES[place]}: ${many(here, "message")} …`;
  hide(clearing, !here);
}

function reload() {
  list.refresh();
  count();
  records.follow();
}

const list = new MessageList({ load, search, cells, id: ({ id }) => id });
new Events("/queue/events", "queue-update", { event: receive, parse: String, reload });
for (const [id, act] of /** @type {const} */ ([["create", create], ["pause", pause], ["clear", clear], ["replay-all", () => attempt(replayAll)]])) byId(id)?.addEventListener("click", act);
for (const [id, act] of /** @type {const} */ ([["replay", replay], ["move", move], ["delete", remove]])) list.selection.on(id, act);
