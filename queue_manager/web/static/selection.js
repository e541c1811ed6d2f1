// The selected rows of a list: one, a range by Shift, or the whole page; and the buttons of what is done with them.

import { number } from "./clock.js";
import { byId, element } from "./dom.js";

/** @template Row */
export class Selection {
  /** @param {import("./list.js").List<Row>} list */
  constructor(list) {
    this.list = list;
    /** @type {Set<string>} */
    this.ids = new Set();
    /** @type {string | undefined} */
    this.last = undefined; // the row that was selected or cleared last, where a range begins
    this.isRange = false;
    byId("pick-all")?.addEventListener("change", ({ target }) => this.pick([...list.rows.keys()], /** @type {Control} */ (target).checked));
  }

  /** Do something with what is selected, by a button. @param {string} id @param {(ids: string[]) => unknown} act */
  on(id, act) {
    document.getElementById(id)?.addEventListener("click", () => act([...this.ids]));
  }

  /** The cell with the box of a row. @param {string} id */
  cell(id) {
    return element("td", { class: "pick" }, element("input", {
      type: "checkbox", "aria-label": `Select ${id}`, checked: this.ids.has(id), disabled: byId("pick-all")?.disabled,
      onclick: (/** @type {MouseEvent} */ { shiftKey }) => { this.isRange = shiftKey; },
      onchange: (event) => this.changed(id, event.target.checked),
    }));
  }

  /** @param {string} id @param {boolean} isPicked */
  changed(id, isPicked) {
    const all = [...this.list.rows.keys()];
    const [first, last] = [all.indexOf(id), this.isRange && this.last !== undefined ? all.indexOf(this.last) : -1];
    this.last = id;
    this.pick(last < 0 ? [id] : all.slice(Math.min(first, last), Math.max(first, last) + 1), isPicked);
  }

  /** @param {string[]} ids @param {boolean} isPicked */
  pick(ids, isPicked) {
    for (const id of ids) {
      this.ids[isPicked ? "add" : "delete"](id);
      const box = this.list.drawn.get(id)?.tr.querySelector("input");
      if (box) box.checked = isPicked;
    }
    this.show();
  }

  clear() {
    this.pick([...this.ids], false);
    this.last = undefined;
  }

  // Rows that are gone are not selected any more.
  show() {
    for (const id of this.ids) if (!this.list.rows.has(id)) this.ids.delete(id);
    const all = byId("pick-all");
    if (!all) return;
    all.checked = this.list.rows.size > 0 && this.ids.size === this.list.rows.size;
    all.indeterminate = this.ids.size > 0 && !all.checked;
    const bar = byId("picked");
    if (!this.ids.size && bar.contains(document.activeElement)) byId("main").focus(); // what has it goes away
    bar.hidden = this.ids.size === 0;
    byId("picked-count").textContent = `${number(this.ids.size)} selected`;
  }
}
