// Rooms as they wake: those of `?account=…&account=…`, of the token in `#token=…`, or of the accounts seen last.

import { moment, number } from "./clock.js";
import { Connection } from "./connection.js";
import { byId, element } from "./dom.js";

const KEPT = 100;
const ASK_AGAIN = 10000;

const asked = new URLSearchParams(location.hash.slice(1));
for (const account of new URLSearchParams(location.search).getAll("account")) asked.append("account", account);
const wanted = asked.getAll("account");
const token = asked.get("token");
if (wanted.length) history.replaceState(history.state, "", `#${asked}`); // where the filters of the list leave it
/** @type {number | undefined} */
let asking;

/** @param {string} text @param {string} kind */
function say(text, kind) {
  byId("waking-state").textContent = text;
  byId("waking-state").className = `state ${kind}`;
}

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
  say("Live", "live");
  clearInterval(asking);
  if (wanted.length) return join(wanted);
  if (token) return undefined; // the server has put us into the token's rooms
  asking = setInterval(() => join(["*"]), ASK_AGAIN);
  return join(["*"]);
}

/** @param {string} message */
function stop(message) {
  clearInterval(asking);
  say(message, "off");
}

/** @param {string} name @param {RoomUpdate} update */
function show(name, { room_id: room, action, timestamp }) {
  if (name !== "support_room_updated") return;
  byId("rooms").prepend(element("li", {}, moment(timestamp), element("code", {}, room), element("span", {}, action)));
  byId("rooms").hidden = false;
  byId("waking-nothing").hidden = true;
  while (byId("rooms").children.length > KEPT) byId("rooms").lastElementChild?.remove();
}

const connection = new Connection(token ? { token } : {}, { live: listen, off: stop, refused: stop, event: show });
