// A list in the page: filters, order and place in the URL, pages by cursor, rows that stay where they are when they are
// read again, and what is picked of them. The template `list.html` has its parts.

import { byId, complain, element } from "./dom.js";
import { number } from "./clock.js";

const TYPING = 250; // ms without a key, until a filter counts
const AGAIN = 250; // ms between two readings, however much happens
const FILL = 1000; // ms, and up to as many more, so that not all open pages ask at once

export class List {
  // `on` has: load(values, options) → {rows, cursor, total?, isPartial?}, id(row), cells(row) → td elements, and
  // size, the rows of a page, if rows are put into it.
  constructor(on) {
    this.on = on;
    this.form = byId("filter");
    this.shown = new Map(); // id → {tr, said, row}
    this.picked = new Set();
    this.form.addEventListener("input", () => this.typed());
    this.form.addEventListener("change", () => this.settled());
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("reset", () => setTimeout(() => this.ask(this.written())));
    for (const head of document.querySelectorAll("th[data-sort]")) {
      head.querySelector("button").addEventListener("click", () => this.sort(head.dataset.sort));
    }
    byId("next").addEventListener("click", () => this.turn([...this.trail, this.values.cursor ?? ""], this.cursor));
    byId("previous").addEventListener("click", () => this.turn(this.trail.slice(0, -1), this.trail.at(-1)));
    byId("pick-all")?.addEventListener("change", (event) => this.pickAll(event.target.checked));
    addEventListener("popstate", () => this.restore());
    addEventListener("keydown", (event) => this.shortcut(event));
    this.restore();
  }

  // What is wanted, as the URL says it

  get values() {
    return Object.fromEntries(new URLSearchParams(location.search));
  }

  get trail() {
    return history.state?.trail ?? [];
  }

  written() {
    const { sort, order } = this.values;
    return { ...Object.fromEntries(new FormData(this.form)), sort, order };
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
    this.typing = setTimeout(() => this.filter(), TYPING);
  }

  // However long somebody writes in one control: it is one step to go back.
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

  ask(values, how = "pushState", trail = []) {
    clearTimeout(this.typing);
    this.typing = undefined;
    const given = Object.entries(values).filter(([, value]) => value);
    history[how]({ trail }, "", `${location.pathname}${given.length ? `?${new URLSearchParams(given)}` : ""}${location.hash}`);
    this.showOrder();
    this.refresh();
  }

  turn(trail, cursor) {
    this.picked.clear();
    this.ask({ ...this.values, cursor }, "pushState", trail);
    byId("rows").closest(".sheet").scrollIntoView({ block: "nearest" });
  }

  sort(by) {
    const { sort, order } = this.values;
    this.ask({ ...this.written(), sort: by, order: sort === by && order !== "asc" ? "asc" : "desc" });
  }

  showOrder() {
    const { sort, order } = this.values;
    for (const head of document.querySelectorAll("th[data-sort]")) {
      if (head.dataset.sort === sort) head.setAttribute("aria-sort", order === "asc" ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
  }

  shortcut(event) {
    const isTyping = event.target.matches("input, textarea, select") || document.querySelector("dialog[open]");
    if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.form.elements.search?.focus();
  }

  // Reading and showing

  // Read again what is shown: at once, and then not again for a moment, however often it is asked.
  refresh() {
    const wanted = location.search;
    if (this.reading && this.reading.wanted === wanted) return void (this.isStale = true);
    this.reading?.controller.abort();
    this.read((this.reading = { wanted, controller: new AbortController() }));
  }

  async read(reading) {
    this.isStale = this.isAhead = false;
    try {
      const page = await this.on.load(this.values, { signal: reading.controller.signal });
      if (this.reading === reading) this.show(page);
      if (this.isAhead) this.isStale = true; // what was read may be older than what events said meanwhile
    } catch (error) {
      if (error.name === "AbortError") return;
      this.fail(error);
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN));
    if (this.reading !== reading) return;
    this.reading = undefined;
    if (this.isStale) this.refresh();
  }

  fail(error) {
    if (error.status === undefined) throw error; // a mistake of ours
    const control = error.field && this.form.elements[error.field];
    complain(error.message);
    if (control) control.setAttribute("aria-invalid", "true");
    if (error.status === 0 || error.status === 503) setTimeout(() => this.refresh(), 2000);
  }

  show({ rows, cursor, total, isPartial }) {
    complain();
    for (const control of this.form.elements) control.removeAttribute("aria-invalid");
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

  // Make every row anew: what they show besides themselves has changed.
  redraw() {
    for (const shown of this.shown.values()) shown.said = "";
    this.refresh();
  }

  rowOf(row, old) {
    const id = this.on.id(row);
    const said = JSON.stringify(row);
    const known = old.get(id);
    const isSame = known?.said === said;
    const tr = isSame ? known.tr : this.make(id, row);
    if (!known && old.size) tr.className = "new";
    if (known && !isSame) replace(known.tr, tr);
    this.shown.set(id, { tr, said, row });
    return tr;
  }

  make(id, row) {
    const box = byId("pick-all") && element("td", { class: "pick" }, element("input", {
      type: "checkbox", "aria-label": `Select ${id}`, checked: this.picked.has(id),
      onchange: (event) => this.pick(id, event.target.checked),
    }));
    return element("tr", { "data-id": id }, box, this.on.cells(row));
  }

  // Show a row as it is known to be now, before the list is read again.
  change(row) {
    if (this.shown.has(this.on.id(row))) this.rowOf(row, this.shown);
  }

  // Show rows that are new or have changed, the latest last. Only for a list in its usual order.
  put(rows) {
    this.isAhead = true;
    for (const row of rows) this.change(row);
    const added = rows.filter((row) => !this.shown.has(this.on.id(row)));
    byId("rows").prepend(...added.slice(-this.on.size).reverse().map((row) => this.rowOf(row, this.shown)));
    if (this.total !== undefined) this.total += added.length;
    for (const last of [...byId("rows").children].slice(this.on.size)) this.shown.delete(last.dataset.id), last.remove();
    this.showWhere();
  }

  // Whether the newest are shown, in their usual order, whatever they are.
  get isUsual() {
    return location.search === "";
  }

  // Take out rows that are known to be gone, before they are read again.
  remove(ids) {
    this.isAhead = true;
    for (const id of ids) {
      this.shown.get(id)?.tr.remove();
      if (this.shown.delete(id) && this.total) this.total -= 1;
    }
    this.showWhere();
  }

  // Read again before long, if rows that went away have left room for others.
  fill() {
    if (this.shown.size >= Math.min(this.total ?? 0, this.on.size)) return;
    this.filling ??= setTimeout(() => ((this.filling = undefined), this.refresh()), FILL + Math.random() * FILL);
  }

  // A hidden field of the form is a place, which an emptied filter keeps.
  isFilter(name) {
    const control = this.form.elements[name];
    return Boolean(control) && control.type !== "hidden";
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
    byId("previous").parentElement.hidden = isEmpty && !this.trail.length && !this.cursor;
    for (const id of [...this.picked]) if (!this.shown.has(id)) this.picked.delete(id);
    this.showPicked();
  }

  // Picking

  pick(id, isPicked) {
    this.picked[isPicked ? "add" : "delete"](id);
    this.showPicked();
  }

  pickAll(isPicked) {
    this.picked = new Set(isPicked ? this.shown.keys() : []);
    for (const [, { tr }] of this.shown) tr.querySelector("input").checked = isPicked;
    this.showPicked();
  }

  showPicked() {
    const all = byId("pick-all");
    if (!all) return;
    all.checked = this.shown.size > 0 && this.picked.size === this.shown.size;
    all.indeterminate = this.picked.size > 0 && !all.checked;
    if (!this.picked.size && byId("picked").contains(document.activeElement)) byId("main").focus(); // what has it goes away
    byId("picked").hidden = this.picked.size === 0;
    byId("picked-count").textContent = `${number(this.picked.size)} selected`;
  }
}

// A row that changed is made anew: whoever is in it by keyboard stays there.
function replace(before, after) {
  const controls = "button, a, input";
  const index = [...before.querySelectorAll(controls)].indexOf(document.activeElement);
  before.replaceWith(after);
  after.querySelectorAll(controls)[index]?.focus();
}

// Fill `body` with a row that `make` makes for each of `all`; those that say the same as before stay.
export function fill(body, all, make) {
  all.forEach((one, index) => {
    const old = body.children[index];
    const said = JSON.stringify(one);
    if (old?.said === said) return;
    const tr = Object.assign(make(one), { said });
    if (!old) return body.append(tr);
    replace(old, tr);
  });
  while (body.children.length > all.length) body.lastChild.remove();
}

// A cell; on a narrow screen its label stands before it.
export const cell = (label, content, kind = "") => element("td", { "data-label": label, class: kind }, content);
