// A list in the page: filter, order and position in the URL, pages by cursor, and rows that stay in place when they are
// read again. The template `list.html` has its parts.

import { AWAY, Problem, attempt, query } from "./api.js";
import { number } from "./clock.js";
import { byId, complain, element, filled, hide, keepingFocus, setText, toast, valuesOf } from "./dom.js";
import { MAX_REST, Pace, nextFrame } from "./pace.js";
import { Views } from "./views.js";

const TYPING_DELAY = 250; // ms after the last key until a filter is applied
const REFRESH_INTERVAL = 250; // ms
const RETRY_INTERVAL = 2000; // ms after a failed request
const REST = 4; // times as long as a reading took, until it is repeated because something has changed
const ROWS_PER_FRAME = 10; // rows that are made in one task, layout included, so that none is long

/** @template Row */
export class List {
  /** @param {ListHandlers<Row>} on */
  constructor(on) {
    this.on = on;
    this.form = byId("filter");
    /** @type {Map<string, Listed<Row>>} by id, in order */
    this.rows = new Map();
    /** @type {Map<string, Drawn>} by id; those that are drawn already */
    this.drawn = new Map();
    this.isFirst = this.isDrawing = false;
    /** @type {string | null | undefined} */
    this.cursor = undefined;
    /** @type {number | undefined} */
    this.total = undefined;
    /** @type {Reading | undefined} */
    this.reading = undefined;
    this.isAhead = this.isStale = this.isStopped = this.isCut = false;
    /** @type {string | undefined} */
    this.complete = undefined; // the query whose list was read to its end
    /** @type {Progress | undefined} */
    this.progress = undefined; // of the search that runs, or was stopped
    /** @type {HTMLButtonElement | undefined} */
    this.unfocused = undefined; // the button that had the focus when it was disabled
    this.pace = new Pace();
    this.selection = new Selection(this);
    this.views = new Views();
    this.form.addEventListener("input", () => this.typed());
    this.form.addEventListener("change", () => this.settled());
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("reset", () => setTimeout(() => this.ask(this.written())));
    for (const head of document.querySelectorAll("th[data-sort]")) {
      head.querySelector("button").addEventListener("click", () => this.sort(head.dataset.sort ?? ""));
    }
    byId("next").addEventListener("click", () => attempt(() => this.older()));
    byId("previous").addEventListener("click", () => this.turn(this.trail.slice(0, -1), this.trail.at(-1)));
    byId("export").addEventListener("click", () => this.export());
    byId("stop").addEventListener("click", () => this.stop());
    addEventListener("popstate", () => this.restore());
    this.restore();
  }

  // The filter, order and position of the URL

  /** @returns {Values} */
  get values() {
    const { hide, ...values } = Object.fromEntries(new URLSearchParams(location.search));
    return values;
  }

  /** @returns {string[]} cursors of the pages before */
  get trail() {
    return history.state?.trail ?? [];
  }

  written() {
    const { sort, order } = this.values;
    return { ...valuesOf(this.form), sort, order };
  }

  restore() {
    const { values } = this;
    this.isWriting = this.isStopped = false;
    for (const control of this.form.elements) if (control.name) control.value = values[control.name] ?? "";
    this.showOrder();
    this.views.show();
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
    const hide = new URLSearchParams(location.search).get("hide");
    history[how]({ trail }, "", `${location.pathname}${query({ ...values, hide })}${location.hash}`);
    this.isStopped = false;
    this.showOrder();
    this.views.show();
    this.refresh();
  }

  /** @param {string[]} trail @param {string | null | undefined} cursor */
  turn(trail, cursor) {
    this.selection.clear();
    this.ask({ ...this.values, cursor }, "pushState", trail);
    byId("rows").closest(".sheet").scrollIntoView({ block: "nearest" });
  }

  // Rows that arrived since the list was read have pushed others off the page: the next page begins with those.
  async older() {
    const { search } = location;
    const { cursor } = this.isCut ? await this.on.load(this.values, {}) : this;
    if (search === location.search) this.turn([...this.trail, this.values.cursor ?? ""], cursor);
  }

  /** @param {string} by */
  sort(by) {
    const { sort, order } = this.values;
    this.ask({ ...this.written(), sort: by, order: sort === by && order !== "asc" ? "asc" : "desc" });
  }

  showOrder() {
    const { sort, order } = this.values;
    for (const head of document.querySelectorAll("th[data-sort]")) {
      head.ariaSort = sort ? (head.dataset.sort !== sort ? null : order === "asc" ? "ascending" : "descending") : head.dataset.default ?? null;
    }
  }

  // Reading and showing

  // Read the list again: at once, and then at most once per `REFRESH_INTERVAL`, or as often as it can be drawn.
  refresh() {
    const wanted = location.search;
    if (this.isStopped) return;
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
    const began = performance.now();
    let rest = 0; // after a failure, it is read again after `RETRY_INTERVAL`
    try {
      for await (const page of this.pages(reading.controller.signal)) {
        // A list that is read again is replaced when it has been read to its end.
        const isShown = this.reading === reading && !(page.progress && this.complete === reading.wanted);
        if (isShown) this.pace.draw(() => this.show(page));
      }
      this.complete = reading.wanted;
      if (this.isAhead) this.isStale = true; // the page may be older than events received meanwhile
      rest = Math.min((performance.now() - began) * REST, MAX_REST);
    } catch (error) {
      if (reading.controller.signal.aborted) return;
      this.fail(error);
    }
    await new Promise((resolve) => setTimeout(resolve, Math.max(REFRESH_INTERVAL, this.pace.rest, rest)));
    if (this.reading !== reading) return;
    this.reading = undefined;
    if (this.isStale) this.refresh();
  }

  /** The page; during a search by a filter, the part that was found so far. @param {AbortSignal} signal @returns {AsyncGenerator<Page<Row>>} */
  async *pages(signal) {
    const { values, on: { search } } = this;
    if (!search || !this.isFiltered) return yield await this.on.load(values, { signal });
    /** @type {Row[]} */
    const rows = [];
    for await (const { name, data } of search(values, { signal })) {
      if (name === "error") throw new Problem(503, data);
      if (name === "matches") rows.push(...data);
      else yield { rows, cursor: data.cursor, total: data.found, isPartial: data.cursor !== null, progress: name === "end" ? undefined : data };
      if (name === "end") return undefined;
    }
    throw new Problem(0, AWAY);
  }

  export() {
    const name = location.pathname.split("/").filter(Boolean).slice(-1)[0] ?? "list";
    import("./export.js").then(({ askExport }) => askExport(this, name), () => toast(AWAY.message));
  }

  // End a search where it is.
  stop() {
    this.reading?.controller.abort();
    this.reading = undefined;
    this.isStopped = true;
    this.showWhere();
  }

  /** @param {unknown} error */
  fail(error) {
    if (!(error instanceof Problem)) throw error;
    const control = error.field && this.form.elements[error.field];
    complain(error.status ? error.message : `${error.message}; trying again`);
    if (control) filled(control, { "aria-invalid": "true", "aria-describedby": "problem" });
    if (error.status === 0 || error.status === 429 || error.status >= 500) {
      clearTimeout(this.again);
      this.again = setTimeout(() => this.refresh(), RETRY_INTERVAL);
    }
  }

  /** @param {Page<Row>} page */
  show({ rows, cursor, total, isPartial, progress }) {
    complain();
    this.progress = progress;
    for (const control of this.form.elements) control.ariaInvalid = null;
    this.cursor = cursor;
    this.isCut = false;
    this.total = total;
    this.isPartial = isPartial;
    this.arrange(rows);
    this.showWhere();
  }

  /** Show these rows: unchanged ones stay, the others are drawn frame by frame, from the top. @param {Row[]} rows */
  arrange(rows) {
    const old = this.rows;
    this.isFirst ||= !this.drawn.size;
    this.rows = new Map(rows.map((row) => {
      const id = this.on.id(row);
      const known = old.get(id);
      return [id, known?.row === row ? known : { row, json: JSON.stringify(row) }];
    }));
    this.draw();
  }

  draw() {
    let left = ROWS_PER_FRAME;
    let place = /** @type {HTMLElement | null} */ (byId("rows").firstElementChild); // of the next row
    for (const [id, { row, json }] of this.rows) {
      const known = this.drawn.get(id);
      if (known?.json !== json && !left--) return this.drawLater();
      const tr = known?.json === json ? known.tr : this.make(row);
      if (known && known.tr === place) place = tr;
      if (known && known.tr !== tr) replace(known.tr, tr);
      if (!known && !this.isFirst) tr.className = "new";
      this.drawn.set(id, { tr, json });
      while (place && place !== tr && !this.rows.has(place.dataset.id ?? "")) {
        place = this.erase(place);
        if (!known) break; // a new row takes the place of one that is gone, so that the page keeps its height
      }
      if (place === tr) place = /** @type {HTMLElement | null} */ (tr.nextElementSibling);
      else byId("rows").insertBefore(tr, place); // a row that stays is not moved, and keeps the focus
    }
    while (place) place = this.erase(place);
    this.isFirst = false;
  }

  drawLater() {
    if (this.isDrawing) return;
    this.isDrawing = true;
    nextFrame(() => {
      this.isDrawing = false;
      this.pace.draw(() => this.draw());
    });
  }

  /** Remove a row that is gone; return the next one. @param {HTMLElement} tr */
  erase(tr) {
    const next = /** @type {HTMLElement | null} */ (tr.nextElementSibling);
    if (tr.contains(document.activeElement)) ((next ?? tr.previousElementSibling)?.querySelector("a") ?? byId("main")).focus();
    tr.remove();
    this.drawn.delete(tr.dataset.id ?? "");
    return next;
  }

  /** @param {Row} row */
  make(row) {
    const id = this.on.id(row);
    return element("tr", { "data-id": id }, byId("pick-all") && this.selection.cell(id), this.on.cells(row));
  }

  /** Show a changed row before the list is read again. @param {Row} row */
  change(row) {
    const id = this.on.id(row);
    if (this.rows.has(id)) this.arrange([...this.rows].map(([other, known]) => (other === id ? row : known.row)));
  }

  /** Remove rows before the list is read again. @param {string[]} ids */
  remove(ids) {
    this.isAhead = true;
    for (const id of ids) this.rows.delete(id);
    this.draw();
    this.showWhere();
  }

  /** A hidden field is no filter: resetting the form keeps it. @param {string} name */
  isFilter(name) {
    const control = this.form.elements[name];
    return control !== undefined && control.type !== "hidden";
  }

  get isFiltered() {
    const { cursor, ...values } = this.values;
    return Object.keys(values).some((name) => this.isFilter(name));
  }

  // A disabled button loses the focus: it gets the focus back, or the next button does.
  /** @param {HTMLButtonElement} button @param {boolean} isEnabled */
  enable(button, isEnabled) {
    if (!isEnabled && document.activeElement === button) this.unfocused = button;
    button.disabled = !isEnabled;
  }

  restoreFocus() {
    const { unfocused } = this;
    this.unfocused = undefined;
    if (!unfocused || (document.activeElement !== unfocused && document.activeElement !== document.body)) return;
    ([unfocused, byId("next"), byId("previous")].find((one) => !one.disabled) ?? byId("main")).focus();
  }

  showWhere() {
    const isEmpty = this.rows.size === 0;
    const { isFiltered, progress, isStopped, values: { cursor } } = this;
    const isSearching = progress !== undefined && !isStopped;
    hide(byId("rows").closest(".sheet"), isEmpty);
    const isPartOfList = isFiltered || Boolean(cursor || this.cursor);
    byId("empty").hidden = !isEmpty || isPartOfList;
    hide(byId("nothing"), !isEmpty || !isPartOfList);
    byId("nothing").querySelector("h2").textContent = this.cursor ? "Nothing found so far" : "Nothing matches";
    byId("further").hidden = !this.cursor || Boolean(progress);
    byId("nothing").querySelector("button").hidden = !isFiltered;
    this.enable(byId("stop"), isSearching);
    byId("searching").hidden = !progress;
    byId("stop").hidden = !isSearching;
    if (progress) {
      Object.assign(byId("searched"), { value: progress.searched, max: progress.total });
      byId("more").textContent = `${isStopped ? "Stopped after" : "Searched"} ${number(progress.searched)} of ${number(progress.total)}${isStopped ? ": “Older” continues" : " …"}`;
    }
    // If a search began at a later page or has not ended, only a part is counted.
    const isPart = isFiltered && (cursor || this.isPartial);
    const total = isPart ? undefined : this.total ?? (this.cursor || cursor ? undefined : this.rows.size);
    const found = total === undefined ? "shown" : `of ${number(total)}`;
    setText(byId("where"), isEmpty ? "" : `${number(this.rows.size)} ${found}`);
    byId("announced").ariaLive = this.complete === location.search ? "off" : "polite"; // live changes are not announced
    const shown = byId(!isEmpty ? "where" : isPartOfList ? "nothing" : "empty");
    if (!isSearching) setText(byId("announced"), (shown.querySelector("h2") ?? shown).textContent ?? "");
    // The link of a page does not say what comes before it.
    byId("previous").textContent = cursor && !this.trail.length ? "Newest" : "Newer";
    this.enable(byId("previous"), Boolean(cursor));
    this.enable(byId("next"), (Boolean(this.cursor) || this.isCut) && !isSearching);
    if (!isSearching) this.restoreFocus();
    hide(byId("previous").closest(".pages"), isEmpty && !cursor && !this.cursor);
    this.selection.show();
  }
}

// The selected rows of a list (one, a range with Shift, or the whole page) and the buttons of their actions.

/** @template Row */
class Selection {
  /** @param {List<Row>} list */
  constructor(list) {
    this.list = list;
    /** @type {Set<string>} */
    this.ids = new Set();
    /** @type {string | undefined} */
    this.last = undefined; // the row that was selected or cleared last, where a range begins
    this.isRange = false;
    byId("pick-all")?.addEventListener("change", ({ target }) => this.pick([...list.rows.keys()], /** @type {Control} */ (target).checked));
  }

  /** Call `act` with the selected ids when a button is pressed. @param {string} id @param {(ids: string[]) => unknown} act */
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

  // Rows that are gone are no longer selected.
  show() {
    for (const id of this.ids) if (!this.list.rows.has(id)) this.ids.delete(id);
    const all = byId("pick-all");
    if (!all) return;
    all.checked = this.list.rows.size > 0 && this.ids.size === this.list.rows.size;
    all.indeterminate = this.ids.size > 0 && !all.checked;
    const bar = byId("picked");
    hide(bar, this.ids.size === 0);
    setText(byId("picked-count"), `${number(this.ids.size)} selected`);
  }
}

/** @param {Element} before @param {Element} after */
const replace = (before, after) => keepingFocus(before, () => {
  before.replaceWith(after);
  return after;
});

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

/** The title of a system in the filter of the page. @param {string} name */
export const systemTitle = (name) => [...byId("filter-system").options].find(({ value }) => value === name)?.text ?? name;

/** A cell; on a narrow screen its label precedes it. @param {string} label @param {Child} content */
export const cell = (label, content, kind = "") => element("td", { "data-label": label, class: kind }, content);

/** A table of `rows`, each with a value per title; the last may be long. @param {string[]} titles @param {Child[][]} rows */
export const grid = (titles, rows) => element("div", { class: "sheet" }, element("table", {},
  element("thead", {}, element("tr", {}, titles.map((title) => element("th", { scope: "col" }, title)))),
  element("tbody", {}, rows.map((row) => element("tr", {}, row.map((value, index) => cell(titles[index], value, index < row.length - 1 ? "nowrap" : "")))))));
