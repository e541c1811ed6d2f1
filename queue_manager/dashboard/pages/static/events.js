// Server-sent events that go on where they stopped, also after answers that make a browser give up.

import { byId, toast } from "./dom.js";

const PAUSE = 1000;

// `on` has: event(data, name), and again(), which reads anew what events cannot tell: at first, and after a gap.
export class Events {
  constructor(path, names, on) {
    Object.assign(this, { path, names, on });
    this.open();
    addEventListener("pagehide", () => this.source.close());
    addEventListener("pageshow", (event) => event.persisted && this.open());
  }

  open() {
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

  opened() {
    say("Live", "live");
    if (!this.last) this.on.again();
  }

  heard(event, name) {
    this.last = event.lastEventId || this.last;
    this.on.event(JSON.parse(event.data), name);
  }

  failed() {
    say("Reconnecting …", "off");
    if (!this.last) this.on.again();
    if (this.source.readyState === EventSource.CLOSED) setTimeout(() => this.open(), PAUSE);
  }
}

export function say(text, kind) {
  byId("state").textContent = text;
  byId("state").className = `state ${kind}`;
}
