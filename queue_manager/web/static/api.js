// Requests to the API, and its live events.

import { sync } from "./clock.js";
import { PREFIX, button, hide, showConnecting, showState, toast } from "./dom.js";

const RETRY_DELAY = 1000; // ms
const MAX_SILENCE = 20000; // ms without an event; the server sends a ping every 15 s
const HIDDEN_CONNECTED = 10000; // ms, and then
const HIDDEN_CLOSED = 50000; // ms

// A failed request; `status` is 0 if there was no response.
export class Problem extends Error {
  /** @param {number} status @param {Failure} failure */
  constructor(status, { message, field }) {
    super(message);
    this.status = status;
    this.field = field;
  }
}

export const AWAY = { message: "Queue Manager does not answer" };
const UNKNOWN = { message: `${AWAY.message}; the outcome of the request is unknown` };

const { rawJSON } = JSON;
/** Parse JSON; numbers that JavaScript would write otherwise keep their digits, if this browser supports it. @param {string} text */
export const parseExactly = (text) => JSON.parse(text, rawJSON && ((_, value, { source }) => (typeof value === "number" && String(value) !== source ? rawJSON(source) : value)));

/**
 * Send a request and return its response. A `body` that is a string is JSON already.
 * @template [T=any]
 * @param {string} method @param {string} path @param {unknown} [body] @param {Options} [options]
 * @returns {Promise<T>}
 */
export async function ask(method, path, body, { signal, parse = JSON.parse } = {}) {
  const began = performance.now();
  const response = await send(method, path, body, signal);
  const answer = await answered(async () => parse(await response.text()), method, signal); // a proxy may send HTML
  if (answer.server_time !== undefined) sync(answer.server_time, began);
  return answer;
}

export const UNDO = "It can be undone for 10 minutes.";

/** What was deleted, with a button that restores it. @param {string} text @param {string | null} [undo] @returns {Child} */
export const withUndo = (text, undo) => (undo ? [`${text}. `, undoButton(undo)] : text);

/** Restores what an action deleted. @param {string} id @param {() => void} [done] */
export const undoButton = (id, done) => {
  /** @param {string} message */
  const failed = (message) => {
    Object.assign(pressed, { ariaDisabled: null, textContent: "Undo" });
    toast(message);
  };
  const pressed = button("Undo", () => attempt(async () => {
    if (pressed.ariaDisabled) return undefined;
    Object.assign(pressed, { ariaDisabled: "true", textContent: "Restoring …" }); // `disabled` would lose the focus
    const { message, is_complete: isAll } = await post(`/audit/${id}/undo`);
    if (!isAll) return failed(message);
    const note = /** @type {HTMLElement | null} */ (pressed.closest("#toasts p"));
    if (note) hide(note); // which moves the focus
    note?.remove(); // a list draws its row again
    toast(message);
    return done?.();
  }, (problem) => failed(problem.message)), "quiet");
  return pressed;
};

/**
 * Send a request that is answered by server-sent events, and yield them.
 * @param {string} path @param {Options} [options] @returns {AsyncGenerator<{ name: string, data: any }>}
 */
export async function* stream(path, { signal, parse = JSON.parse } = {}) {
  const { body } = await send("GET", path, undefined, signal);
  const reader = /** @type {ReadableStream<BufferSource>} */ (body).pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await answered(() => reader.read(), "GET", signal);
    if (done) return;
    const blocks = (text + value).split("\r\n\r\n");
    text = blocks.pop() ?? "";
    for (const lines of blocks.map((block) => block.split("\r\n"))) {
      const [name, data] = ["event: ", "data: "].map((field) => lines.filter((line) => line.startsWith(field)).map((line) => line.slice(field.length)).join("\n"));
      if (name) yield { name, data: parse(data) };
    }
  }
}

/** @param {string} method @param {string} path @param {unknown} body @param {AbortSignal} [signal] */
async function send(method, path, body, signal) {
  const options = body === undefined ? {} : { body: typeof body === "string" ? body : JSON.stringify(body), headers: { "content-type": "application/json" } };
  const response = await answered(() => fetch(`${PREFIX}/api${path}`, { method, signal, ...options }), method, signal);
  // Stay on the page, so that the contents of a form are not lost.
  if (response.status === 401 && document.querySelector("dialog form")) throw new Problem(401, { message: "The session has ended. Log in again in another tab, then repeat this" });
  if (response.status === 401) location.assign(`${PREFIX}/login?next=${encodeURIComponent(location.pathname.slice(PREFIX.length) + location.search)}${location.hash}`);
  if (!response.ok) throw new Problem(response.status, problemOf(await answered(() => response.text(), method, signal), response));
  return response;
}

/** Throw a `Problem` if the server does not answer. @template T @param {() => Promise<T>} read @param {string} method @param {AbortSignal} [signal] */
async function answered(read, method, signal) {
  try {
    return await read();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, method === "GET" ? AWAY : UNKNOWN);
  }
}

/** @param {string} text @param {Response} response @returns {Failure} */
function problemOf(text, response) {
  try {
    const failure = JSON.parse(text);
    if (failure?.message) return failure;
  } catch {
    // Not a response of this server.
  }
  return { message: `${response.status} ${response.statusText}` };
}

/** @template [T=any] @param {string} path @param {Options} [options] @returns {Promise<T>} */
export const get = (path, options) => ask("GET", path, undefined, options);
/** @param {string} path @param {unknown} [body] */
export const post = (path, body = {}) => ask("POST", path, body);

/**
 * Call `act`; pass a `Problem` to `refused`, or show it.
 * @template T, [U=void]
 * @param {() => Promise<T>} act @param {(problem: Problem) => U} [refused]
 */
export async function attempt(act, refused) {
  try {
    return await act();
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return refused ? refused(error) : toast(error.message);
  }
}

/** A query string of the values that are not empty. @param {Record<string, unknown>} values */
export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}` : "";
}

// Server-sent events that resume where they stopped, even after responses that make a browser give up. A hidden page is
// connected for only some seconds of each minute, because a browser has six connections to a server for all its tabs.
export class Events {
  /** @param {string} path @param {string} name @param {EventHandlers} on */
  constructor(path, name, on) {
    this.path = path;
    this.name = name;
    this.on = on;
    this.last = ""; // id of the last event
    showConnecting();
    this.open();
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", (event) => event.persisted && this.open());
    addEventListener("visibilitychange", () => this.rest());
  }

  rest() {
    clearTimeout(this.turn);
    if (document.hidden) this.turn = setTimeout(() => this.rotate(), this.isClosed ? HIDDEN_CLOSED : HIDDEN_CONNECTED);
    else if (this.isClosed) this.open();
  }

  rotate() {
    if (this.isClosed) this.open();
    else this.close();
    this.rest();
  }

  // A connection may be lost without an error: then no ping arrives either.
  watch() {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => {
      showState("Not answering …", "off");
      this.open();
    }, MAX_SILENCE);
  }

  open() {
    this.close();
    this.isClosed = false;
    this.watch();
    this.source = new EventSource(`${PREFIX}/api${this.path}${this.last ? `?lastEventId=${encodeURIComponent(this.last)}` : ""}`);
    this.source.onopen = () => this.opened();
    this.source.onerror = () => this.failed();
    this.source.addEventListener(this.name, (event) => this.received(event));
    this.source.addEventListener("ping", (event) => this.moved(event));
    this.source.addEventListener("reset", (event) => {
      this.last = event.lastEventId;
      toast("Some updates were missed. The list was reloaded");
      this.on.reload();
    });
  }

  close() {
    clearTimeout(this.retry);
    clearTimeout(this.silence);
    this.isClosed = true;
    this.source?.close();
  }

  opened() {
    this.watch();
    showState("Live", "live");
    if (!this.last) this.on.reload();
  }

  /** @param {MessageEvent<string>} event */
  moved(event) {
    this.watch();
    this.last = event.lastEventId || this.last;
  }

  /** @param {MessageEvent<string>} event */
  received(event) {
    this.moved(event);
    this.on.event((this.on.parse ?? JSON.parse)(event.data));
  }

  failed() {
    showState("Reconnecting …", "off");
    const isRefused = this.source?.readyState === EventSource.CLOSED;
    if (isRefused || !this.last) this.on.reload(); // reading says why, and leads to the log-in when the session is over
    if (isRefused) this.retry = setTimeout(() => this.open(), RETRY_DELAY);
  }
}

/** Call `event` with the overview whenever it changes. @param {(overview: Overview) => void} event @param {() => void} reload */
export const onOverview = (event, reload = /** @type {() => void} */ (event)) => new Events("/overview/events", "overview", { event, reload });
