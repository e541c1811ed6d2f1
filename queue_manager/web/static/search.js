// The search for any id: lists what was found, or opens the page of a single result.

import { answer, unreadable } from "./answer.js";
import { attempt, get, query } from "./api.js";
import { PREFIX, byId, complain, element, link } from "./dom.js";

const { id = "" } = byId("found").dataset;

/** @param {Found} found */
const card = (found) => answer(found, link(found.page, `${found.kind} ${found.id}`));

async function read() {
  /** @type {Diagnosis} */
  const { found, unread } = await get(`/search${query({ id })}`);
  const isOne = found.length === 1 && !Object.keys(unread).length;
  if (isOne) return location.replace(PREFIX + found[0].page);
  const none = element("div", { class: "empty" }, element("h2", {}, "No results"), element("p", {}, "Searched: the items of every system, messages, jobs, and the tasks of the last day."));
  byId("found").replaceChildren(...found.map(card), ...unreadable(unread), ...(found.length ? [] : [none]));
}

byId("find").value = id;
if (id) await attempt(read, ({ message }) => complain(message));
else byId("found").append(element("div", { class: "empty" }, element("h2", {}, "Find any id"), element("p", {}, "Enter the id of an item, a message, a job or a task above.")));
