// One item, message or job: why it is in its state, what happened to it, and its document on demand.

import { answer, unreadable } from "./answer.js";
import { attempt, get, onOverview, parseExactly, post, query } from "./api.js";
import { moment, span } from "./clock.js";
import { byId, button, complain, copier, element, errorText, jsonText, link, mayAct, put, toast } from "./dom.js";
import { seldom } from "./pace.js";

const { id = "", system = "", list = "", item = "", items = "", product = "" } = byId("found").dataset;
const why = element("div");
const past = element("div");
const whole = element("pre", { role: "region", tabindex: 0, "aria-label": "Document" });
const document_ = element("details", { hidden: true, ontoggle: readDocument }, element("summary", {}, "Show the document"), whole);
const REFRESH_INTERVAL = 3000; // ms between two readings because something happened
const REST = 20; // times as long as a reading took, which searches the records of a day
const MESSAGES = "overdue-messages";
/** @type {Record<string, string>} */
const VERBS = { due: "Dispatch now", pending: "Run now" };
/** @type {Found | undefined} */
let known;

async function read() {
  /** @type {Diagnosis} */
  const { found, unread } = await get(`/search${query({ id, system })}`);
  complain();
  known = found.find((one) => one.id === id) ?? found[0];
  put(why, [known, unread], () => (known ? card(known) : nothing(unread)));
  put(past, known?.timeline, () => known && timeline(known));
  document_.hidden = !known;
  await readDocument();
}

/** @param {Found} found */
function card(found) {
  const { title, retry, retry_body: body, label, system: of } = found;
  return answer(found, title || "Why it is in this state",
    element("span", {},
      mayAct && retry && button(VERBS[label] ?? (of === MESSAGES ? "Replay" : "Retry"), () => again(retry, body, label), "primary"), " ",
      copier("id", found.id), " ",
      product && [element("a", { class: "button", href: product, rel: "noopener noreferrer" }, `Open the ${item}`), " "],
      toList()));
}

/** @param {Record<string, string>} unread */
const nothing = (unread) => element("div", { class: "empty" },
  element("h2", {}, "Not found"), element("p", {}, `No ${item} has this id; it may have been deleted.`), unreadable(unread),
  element("p", {}, toList(), " ", link(`/search${query({ id })}`, "Search everything for this id", "button")));

const toList = () => link(list, `All ${items}`, "button");

/** @param {Found} found */
const timeline = ({ timeline: all, has_whole_timeline: isWhole }) => element("section", {},
  element("h2", { class: "unseen" }, "What happened"),
  all.length ? element("ol", { class: "timeline" }, all.map(entry)) : element("p", { class: "soft" }, "Nothing is recorded yet. Dispatches and executions are recorded for 24 hours, failed attempts for 30 days."),
  !isWhole && element("p", { class: "hint" }, "There may be more: reading the records of the last day took too long."));

/** @param {TimelineEvent} event */
function entry({ at, event, detail, worker, duration_ms: took, error, task_id: task }) {
  const about = [worker && `on ${worker}`, took != null && `took ${span(took)}`, task && ["task ", element("code", {}, task)]].filter(Boolean);
  return element("li", { class: error ? "bad" : "" }, moment(at), element("div", {},
    element("b", {}, event), detail && ` ${detail}`,
    about.length > 0 && element("div", { class: "hint soft" }, about.flatMap((part, index) => (index ? [" · ", part] : [part]))),
    error && element("div", {}, errorText(error))));
}

/** @param {string} path @param {object} body @param {string} label */
const again = (path, body, label) => attempt(async () => {
  const { message } = await post(path.replace("/api", ""), body);
  toast(message ?? `${label in VERBS ? "Dispatched" : "Retry queued for"} ${item} ${id}`);
  await read();
});

async function readDocument() {
  if (!document_.open || !known) return;
  await attempt(async () => {
    const { server_time: _, ...answered } = await get(known?.document.replace("/api", "") ?? "", { parse: parseExactly });
    put(whole, jsonText(answered.document ?? answered.job ?? answered, 2), String);
  }, ({ message }) => put(whole, message, String));
}

const reload = seldom(() => attempt(read, ({ message }) => complain(message)), REFRESH_INTERVAL, { rest: REST });

byId("found").append(why, past, document_);
onOverview(reload);
