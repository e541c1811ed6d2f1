// The list of messages: it also shows messages that events contain, before it is read again.

import { List } from "./list.js";

const FILL_DELAY = 1000; // ms, and up to as many more, so that not all open pages ask at once

/** @extends {List<Message>} */
export class MessageList extends List {
  /** @param {ListHandlers<Message>} on @param {number} size messages per page */
  constructor(on, size) {
    super(on);
    this.size = size;
    /** @type {number | undefined} */
    this.filling = undefined;
  }

  // Showing

  // Make every row anew: what they show besides themselves has changed.
  redraw() {
    for (const drawn of this.drawn.values()) drawn.json = "";
    this.draw();
  }

  // True if the first page is shown in its default order, with any filter.
  get isUsual() {
    return location.search === "";
  }

  /**
   * Show messages that are new or have changed, the latest last. Only for a list in its usual order.
   * @param {string[]} ids of all of them @param {Message[]} messages the latest, as many as a page can show
   */
  put(ids, messages) {
    this.isAhead = true;
    if (this.total !== undefined) this.total += ids.filter((id) => !this.rows.has(id)).length;
    const latest = new Map(messages.map((message) => [message.id, message]));
    const added = messages.filter(({ id }) => !this.rows.has(id));
    this.arrange([...added.reverse(), ...[...this.rows].map(([id, { row }]) => latest.get(id) ?? row)].slice(0, this.size));
    this.showWhere();
  }

  // Read again before long, if rows that went away have left room for others.
  fill() {
    if (this.rows.size >= Math.min(this.total ?? 0, this.size)) return;
    this.filling ??= setTimeout(() => {
      this.filling = undefined;
      this.refresh();
    }, FILL_DELAY + Math.random() * FILL_DELAY);
  }
}
