// Server-sent events that go on where they stopped, also after answers that make a browser give up.

import { byId, toast } from "./dom.js";

const PAUSE = 1000;

export class Events {
  /** @param {string} path @param {string[]} names @param {EventHandlers} on */
  constructor(path, names, on) {
    this.path = path;
    this.names = names;
    this.on = on;
    this.last = ""; // id of the last event
    this.open();
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", (event) => event.persisted && this.open());
  }

  open() {
    this.close();
    this.source = new EventSource(`/api${this.path}${this.last ? `?lastEventId=${encodeURIComponent(this.last)}` : ""}`);
    this.source.onopen = () => this.opened();
    this.source.onerror = () => this.failed();
    for (const name of this.names) this.source.addEventListener(name, (event) => this.heard(event, name));
    this.source.addEventListener("reset", (event) => {
      this.last = event.lastEventId;
      toast("What happened meanwhile is not kept any more: everything was read anew");
      this.on.again();
    });
  }

  close() {
    clearTimeout(this.retry);
    this.source?.close();
  }

  opened() {
    say("Live", "live");
    if (!this.last) this.on.again();
  }

  /** @param {MessageEvent<string>} event @param {string} name */
  heard(event, name) {
    this.last = event.lastEventId || this.last;
    this.on.event((this.on.parse ?? JSON.parse)(event.data), name);
  }

  failed() {
    say("Reconnecting …", "off");
    const isRefused = this.source?.readyState === EventSource.CLOSED;
    if (isRefused || !this.last) this.on.again(); // reading says why, and leads to the log-in when the session is over
    if (isRefused) this.retry = setTimeout(() => this.open(), PAUSE);
  }
}

/** @param {string} text @param {string} kind */
export function say(text, kind) {
  byId("state").textContent = text;
  byId("state").className = `state ${kind}`;
}
