// A list in the page: filters, order and place in the URL, pages by cursor, rows that stay where they are when they are
// read again. The template `list.html` has its parts.

import { Problem, query } from "./api.js";
import { number } from "./clock.js";
import { byId, complain, element } from "./dom.js";

const TYPING_DELAY = 250; // ms after the last key until a filter is applied
const REFRESH_INTERVAL = 250; // ms

/** @template Row */
export class List {
  /** @param {ListHandlers<Row>} on */
  constructor(on) {
    this.on = on;
    this.form = byId("filter");
    /** @type {Map<string, Shown<Row>>} by id */
    this.shown = new Map();
    /** @type {string | null | undefined} */
    this.cursor = undefined;
    /** @type {number | undefined} */
    this.total = undefined;
    /** @type {Reading | undefined} */
    this.reading = undefined;
    this.isAhead = this.isStale = false;
    this.form.addEventListener("input", () => this.typed());
    this.form.addEventListener("change", () => this.settled());
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("reset", () => setTimeout(() => this.ask(this.written())));
    for (const head of document.querySelectorAll("th[data-sort]")) {
      head.querySelector("button").addEventListener("click", () => this.sort(head.dataset.sort ?? ""));
    }
    byId("next").addEventListener("click", () => this.turn([...this.trail, this.values.cursor ?? ""], this.cursor));
    byId("previous").addEventListener("click", () => this.turn(this.trail.slice(0, -1), this.trail.at(-1)));
    addEventListener("popstate", () => this.restore());
    addEventListener("keydown", (event) => this.shortcut(event));
    this.restore();
  }

  // What is wanted, as the URL says it

  /** @returns {Values} */
  get values() {
    return Object.fromEntries(new URLSearchParams(location.search));
  }

  /** @returns {string[]} cursors of the pages before */
  get trail() {
    return history.state?.trail ?? [];
  }

  written() {
    const { sort, order } = this.values;
    return { .../** @type {Values} */ (Object.fromEntries(new FormData(this.form))), sort, order };
  }

  restore() {
    const { values } = this;
    this.isWriting = false;
    for (const control of this.form.elements) if (control.name) control.value = values[control.name] ?? "";
    this.showOrder();
    this.refresh();
  }

  typed() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.filter(), TYPING_DELAY);
  }

  // Typing in one control is one step in the history.
  filter() {
    const how = this.isWriting ? "replaceState" : "pushState";
    this.isWriting = true;
    this.ask(this.written(), how);
  }

  // A control was left, or Enter was pressed in it.
  settled() {
    if (this.typing) this.filter();
    this.isWriting = false;
  }

  /** @param {Record<string, unknown>} values @param {"pushState" | "replaceState"} how @param {string[]} trail */
  ask(values, how = "pushState", trail = []) {
    clearTimeout(this.typing);
    this.typing = undefined;
    history[how]({ trail }, "", `${location.pathname}${query(values)}`);
    this.showOrder();
    this.refresh();
  }

  /** @param {string[]} trail @param {string | null | undefined} cursor */
  turn(trail, cursor) {
    this.ask({ ...this.values, cursor }, "pushState", trail);
    byId("rows").closest(".sheet").scrollIntoView({ block: "nearest" });
  }

  /** @param {string} by */
  sort(by) {
    const { sort, order } = this.values;
    this.ask({ ...this.written(), sort: by, order: sort === by && order !== "asc" ? "asc" : "desc" });
  }

  showOrder() {
    const { sort, order } = this.values;
    for (const head of document.querySelectorAll("th[data-sort]")) {
      head.ariaSort = head.dataset.sort !== sort ? null : order === "asc" ? "ascending" : "descending";
    }
  }

  /** @param {KeyboardEvent} event */
  shortcut(event) {
    const isTyping = /** @type {Element} */ (event.target).matches("input, textarea, select") || document.querySelector("dialog[open]");
    if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.form.elements.search?.focus();
  }

  // Reading and showing

  // Read the list again: at once, and then at most once per `REFRESH_INTERVAL`.
  refresh() {
    const wanted = location.search;
    if (this.reading?.wanted === wanted) {
      this.isStale = true;
      return;
    }
    this.reading?.controller.abort();
    this.reading = { wanted, controller: new AbortController() };
    this.read(this.reading);
  }

  /** @param {Reading} reading */
  async read(reading) {
    this.isStale = this.isAhead = false;
    try {
      const page = await this.on.load(this.values, { signal: reading.controller.signal });
      if (this.reading === reading) this.show(page);
      if (this.isAhead) this.isStale = true; // the page may be older than events received meanwhile
    } catch (error) {
      if (reading.controller.signal.aborted) return;
      this.fail(error);
    }
    await new Promise((resolve) => setTimeout(resolve, REFRESH_INTERVAL));
    if (this.reading !== reading) return;
    this.reading = undefined;
    if (this.isStale) this.refresh();
  }

  /** @param {unknown} error */
  fail(error) {
    if (!(error instanceof Problem)) throw error;
    const control = error.field && this.form.elements[error.field];
    complain(error.message);
    if (control) control.ariaInvalid = "true";
    if (error.status === 0 || error.status === 503) setTimeout(() => this.refresh(), 2000);
  }

  /** @param {Page<Row>} page */
  show({ rows, cursor, total, isPartial }) {
    complain();
    for (const control of this.form.elements) control.ariaInvalid = null;
    this.cursor = cursor;
    this.total = total;
    this.isPartial = isPartial;
    const body = byId("rows");
    const old = this.shown;
    const ids = new Set(rows.map(this.on.id));
    for (const [id, { tr }] of old) if (!ids.has(id)) tr.remove(); // first: a row that is moved would lose the focus
    this.shown = new Map();
    rows.forEach((row, index) => {
      const tr = this.rowOf(row, old);
      if (body.children[index] !== tr) body.insertBefore(tr, body.children[index] ?? null);
    });
    this.showWhere();
  }

  /** @param {Row} row @param {Map<string, Shown<Row>>} old */
  rowOf(row, old) {
    const id = this.on.id(row);
    const json = JSON.stringify(row);
    const known = old.get(id);
    const tr = known?.json === json ? known.tr : this.make(row);
    if (!known && old.size) tr.className = "new";
    if (known && known.tr !== tr) replace(known.tr, tr);
    this.shown.set(id, { tr, json, row });
    return tr;
  }

  /** @param {Row} row */
  make(row) {
    return element("tr", { "data-id": this.on.id(row) }, this.on.cells(row));
  }

  /** Show a changed row before the list is read again. @param {Row} row */
  change(row) {
    if (this.shown.has(this.on.id(row))) this.rowOf(row, this.shown);
  }

  /** Remove rows before the list is read again. @param {string[]} ids */
  remove(ids) {
    this.isAhead = true;
    for (const id of ids) {
      this.shown.get(id)?.tr.remove();
      if (this.shown.delete(id) && this.total) this.total -= 1;
    }
    this.showWhere();
  }

  /** A hidden field is no filter: resetting the form keeps it. @param {string} name */
  isFilter(name) {
    const control = this.form.elements[name];
    return control !== undefined && control.type !== "hidden";
  }

  showWhere() {
    const isEmpty = this.shown.size === 0;
    const { cursor, ...values } = this.values;
    const isFiltered = Object.keys(values).some((name) => this.isFilter(name));
    byId("rows").closest(".sheet").hidden = isEmpty;
    byId("empty").hidden = !isEmpty || isFiltered || Boolean(cursor);
    byId("nothing").hidden = !isEmpty || !(isFiltered || cursor);
    byId("nothing").querySelector("h2").textContent = this.cursor ? "Nothing found so far" : "Nothing matches";
    byId("more").hidden = !(isEmpty && this.cursor);
    const found = this.total === undefined ? "" : ` of ${number(this.total)}${this.isPartial ? " or more" : ""}`;
    byId("where").textContent = isEmpty ? "" : `${number(this.shown.size)}${found}`;
    byId("previous").disabled = !this.trail.length;
    byId("next").disabled = !this.cursor;
    byId("previous").closest(".pages").hidden = isEmpty && !this.trail.length && !this.cursor;
  }
}

/** Replace a row; the focus stays on the same control. @param {Element} before @param {Element} after */
function replace(before, after) {
  const controls = "button, a, input";
  const index = [...before.querySelectorAll(controls)].indexOf(/** @type {HTMLElement} */ (document.activeElement));
  before.replaceWith(after);
  after.querySelectorAll(controls)[index]?.focus();
}

/** Unchanged rows stay. @template T @param {HTMLElement} body @param {T[]} all @param {(one: T) => HTMLElement} make */
export function fill(body, all, make) {
  all.forEach((one, index) => {
    const old = body.children[index];
    const json = JSON.stringify(one);
    if (old?.json === json) return;
    const tr = Object.assign(make(one), { json });
    if (old) replace(old, tr);
    else body.append(tr);
  });
  while (body.children.length > all.length) body.lastElementChild?.remove();
}

/** A cell; on a narrow screen its label stands before it. @param {string} label @param {Child} content */
export const cell = (label, content, kind = "") => element("td", { "data-label": label, class: kind }, content);

/** A table of `rows`, each with a value per title; the last may be long. @param {string[]} titles @param {Child[][]} rows */
export const grid = (titles, rows) => element("div", { class: "sheet" }, element("table", {},
  element("thead", {}, element("tr", {}, titles.map((title) => element("th", { scope: "col" }, title)))),
  element("tbody", {}, rows.map((row) => element("tr", {}, row.map((value, index) => cell(titles[index], value, index < row.length - 1 ? "nowrap" : "")))))));
