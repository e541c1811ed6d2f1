// The list of messages: it also shows messages that events contain, before it is read again, and has picked rows.

import { number } from "./clock.js";
import { byId, element } from "./dom.js";
import { List } from "./list.js";

const FILL_DELAY = 1000; // ms, and up to as many more, so that not all open pages ask at once

/** @extends {List<Message>} */
export class MessageList extends List {
  /** @param {ListHandlers<Message>} on @param {number} size messages per page */
  constructor(on, size) {
    super(on);
    this.size = size;
    /** @type {Set<string>} ids */
    this.picked = new Set();
    /** @type {number | undefined} */
    this.filling = undefined;
    byId("pick-all")?.addEventListener("change", ({ target }) => this.pickAll(/** @type {Control} */ (target).checked));
  }

  // Showing

  /** @param {Message} message */
  make(message) {
    const { id } = message;
    const row = super.make(message);
    if (byId("pick-all")) row.prepend(element("td", { class: "pick" }, element("input", {
      type: "checkbox", "aria-label": `Select ${id}`, checked: this.picked.has(id),
      onchange: (event) => this.pick(id, event.target.checked),
    })));
    return row;
  }

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

  /** @type {List<Message>["turn"]} */
  turn(trail, cursor) {
    this.picked.clear();
    super.turn(trail, cursor);
  }

  showWhere() {
    super.showWhere();
    for (const id of this.picked) if (!this.rows.has(id)) this.picked.delete(id);
    this.showPicked();
  }

  // Picking

  /** @param {string} id @param {boolean} isPicked */
  pick(id, isPicked) {
    this.picked[isPicked ? "add" : "delete"](id);
    this.showPicked();
  }

  /** @param {boolean} isPicked */
  pickAll(isPicked) {
    this.picked = new Set(isPicked ? this.rows.keys() : []);
    for (const { tr } of this.drawn.values()) tr.querySelector("input").checked = isPicked;
    this.showPicked();
  }

  showPicked() {
    const all = byId("pick-all");
    if (!all) return;
    all.checked = this.rows.size > 0 && this.picked.size === this.rows.size;
    all.indeterminate = this.picked.size > 0 && !all.checked;
    if (!this.picked.size && byId("picked").contains(document.activeElement)) byId("main").focus(); // what has it goes away
    byId("picked").hidden = this.picked.size === 0;
    byId("picked-count").textContent = `${number(this.picked.size)} selected`;
  }
}
