// Rooms as they wake: those of `?account=…&account=…`, of the token in `#token=…`, or of the accounts seen last.

import { Connection } from "./connection.js";

const KEPT = 100;
const ASK_AGAIN = 10000;

const wanted = new URLSearchParams(location.search).getAll("account");
const token = new URLSearchParams(location.hash.slice(1)).get("token");
const byId = (id) => document.getElementById(id);
let asking;

function say(text, kind) {
  byId("state").textContent = text;
  byId("state").className = kind;
}

async function join(accounts) {
  const answers = await Promise.all(accounts.map((account) => connection.ask("join", account)));
  const joined = answers.flatMap((answer) => answer.joined ?? []);
  const refused = answers.filter((answer) => answer.error).map((answer) => answer.message);
  const heard = joined.length ? `Listening to ${joined.length} account${joined.length > 1 ? "s" : ""}. ` : "No account yet. ";
  byId("accounts").textContent = heard + refused.join(". ");
}

function listen() {
  say("Live", "live");
  clearInterval(asking);
  if (wanted.length) return join(wanted);
  if (token) return undefined; // the server has put us into the token's rooms
  asking = setInterval(() => join(["*"]), ASK_AGAIN);
  return join(["*"]);
}

function stop(message) {
  clearInterval(asking);
  say(message, "off");
}

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function show(name, { room_id: room, action, timestamp }) {
  if (name !== "support_room_updated") return;
  const time = element("time", new Date(timestamp).toLocaleTimeString());
  time.dateTime = timestamp;
  const row = document.createElement("li");
  row.append(time, element("code", room), element("span", action));
  byId("rooms").prepend(row);
  byId("nothing").hidden = true;
  while (byId("rooms").children.length > KEPT) byId("rooms").lastChild.remove();
}

const connection = new Connection(token ? { token } : {}, { live: listen, off: stop, refused: stop, event: show });
