// Rooms as they wake: those of `?account=…&account=…`, of the token in `#token=…`, or of the accounts seen last.

import { moment, number } from "./clock.js";
import { Connection } from "./connection.js";
import { byId, element, showState } from "./dom.js";

const MAX_ROOMS = 100;
const JOIN_INTERVAL = 10000; // ms

const hash = new URLSearchParams(location.hash.slice(1));
for (const account of new URLSearchParams(location.search).getAll("account")) hash.append("account", account);
const wanted = hash.getAll("account");
const token = hash.get("token");
if (wanted.length) history.replaceState(history.state, "", `#${hash}`); // where the filters of the list leave it
/** @type {number | undefined} */
let joining;

/** @param {string[]} accounts */
async function join(accounts) {
  /** @type {Joined[]} */
  const answers = await Promise.all(accounts.map((account) => connection.ask("join", account)));
  const joined = answers.flatMap((answer) => answer.joined ?? []);
  const refused = answers.filter((answer) => answer.error).map((answer) => answer.message);
  const heard = joined.length ? `Listening to ${number(joined.length)} account${joined.length > 1 ? "s" : ""}. ` : "No account yet. ";
  byId("waking-accounts").textContent = heard + refused.join(". ");
}

function listen() {
  showState("Live", "live", "waking-state");
  clearInterval(joining);
  if (wanted.length) return join(wanted);
  if (token) return undefined; // the server has put us into the token's rooms
  joining = setInterval(() => join(["*"]), JOIN_INTERVAL);
  return join(["*"]);
}

/** @param {string} message */
function stop(message) {
  clearInterval(joining);
  showState(message, "off", "waking-state");
}

/** @param {string} name @param {RoomUpdate} update */
function show(name, { room_id: room, action, timestamp }) {
  if (name !== "support_room_updated") return;
  byId("rooms").prepend(element("li", {}, moment(timestamp), element("code", {}, room), element("span", {}, action)));
  byId("rooms").hidden = false;
  byId("waking-nothing").hidden = true;
  while (byId("rooms").children.length > MAX_ROOMS) byId("rooms").lastElementChild?.remove();
}

const connection = new Connection(token ? { token } : {}, { live: listen, off: stop, event: show });
