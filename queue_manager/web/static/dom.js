// Elements made here contain foreign texts as text, never as markup.

/** @template {keyof ElementsById} K @param {K} id */
export const byId = (id) => /** @type {ElementsById[K]} */ (document.getElementById(id));
/** The name of a principal in a sentence. @param {string} name */
export const person = (name) => (name === "loopback" ? "someone on this machine" : name);
export const mayAct = document.body.hasAttribute("data-may-act");

/** @template {keyof HTMLElementTagNameMap} K @param {K} name @param {Attributes} [properties] @param {...Child} children */
export const element = (name, properties, ...children) => filled(document.createElement(name), properties, ...children);

/** @param {string} name @param {Attributes} attributes @param {...Child} children */
export const svg = (name, attributes, ...children) => filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, ...children);

/** @template {Element} E @param {E} made @param {Attributes} properties @param {...Child} children */
export function filled(made, properties = {}, ...children) {
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") made.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked") Object.assign(made, { [key]: value });
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...nodes(children));
  return made;
}

/** Without undefined, null and false; numbers that JavaScript cannot hold, with all digits. @param {Child[]} children @returns {(Node | string)[]} */
export const nodes = (children) => /** @type {any[]} */ (children).flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false).map((child) => (JSON.isRawJSON?.(child) ? child.rawJSON : child));

/** @param {Element} place @returns {HTMLElement[]} */
const controlsIn = (place) => [...place.querySelectorAll("a, button, input, select, summary, [tabindex]")].filter((one) => one instanceof HTMLElement);

/** Hide a part of the page, or show it. The focus moves from a hidden part to the content of the page. @param {HTMLElement} place */
export function hide(place, isHidden = true) {
  if (isHidden && place.contains(document.activeElement)) byId("main").focus({ preventScroll: true });
  place.hidden = isHidden;
}

/**
 * Call `change`, which replaces `before` and returns its replacement. The focus stays on the same control, and never moves
 * to a button with another name, except in a dialog, where *Close* is the first.
 * @param {Element} before @param {() => Element} change
 */
export function keepingFocus(before, change) {
  const focused = /** @type {HTMLElement} */ (document.activeElement);
  const index = controlsIn(before).indexOf(focused);
  const after = change();
  if (index < 0) return;
  const all = controlsIn(after);
  /** @param {HTMLElement | undefined} one */
  const isSame = (one) => one?.tagName === focused.tagName && (one.tagName !== "BUTTON" || (one.textContent === focused.textContent && one.ariaLabel === focused.ariaLabel));
  const same = isSame(all[index]) ? all[index] : all.find(isSame);
  (same ?? all.find((one) => one.tagName !== "BUTTON" || one.closest("dialog")) ?? byId("main")).focus({ preventScroll: true });
}

/**
 * Show `make(value)`, unless it is shown already: that keeps the selection.
 * @template T
 * @param {HTMLElement} place @param {T} value @param {(value: T) => Child} make
 */
export function put(place, value, make) {
  const json = JSON.stringify(value);
  if (place.json === json) return;
  place.json = json;
  keepingFocus(place, () => {
    place.replaceChildren(...nodes([make(value)]));
    return place;
  });
}

/**
 * Readable JSON, in which characters that change the direction of text are escaped.
 * @param {unknown} value @param {number} [indent]
 */
export const jsonText = (value, indent) => JSON.stringify(value, null, indent).replace(/[\u202a-\u202e\u2066-\u2069]/g, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** The values of a form, without spaces around those of one line. @param {Form} form @returns {Values} */
export const valuesOf = (form) => Object.fromEntries(/** @type {[string, string][]} */ ([...new FormData(form)]).map(([name, value]) => [name, form.elements[name]?.tagName === "INPUT" ? value.trim() : value]));

/** @param {string} text @param {Listener} onclick */
export const button = (text, onclick, kind = "") => element("button", { type: "button", class: kind, onclick }, text);

/** A button of a row, whose name contains that of the row. @param {string} text @param {Child} row @param {Listener} onclick */
export const rowButton = (text, row, onclick) => element("button", { type: "button", class: "quiet", "aria-label": `${text}: ${row}`, onclick }, text);

/** True if a click on a link opens it in this tab. @param {MouseEvent} event */
export const isPlainClick = ({ altKey, ctrlKey, metaKey, shiftKey }) => !(altKey || ctrlKey || metaKey || shiftKey);

/** A link to a page of the dashboard, or the text alone if there is none. @param {string | null | undefined} page @param {Child} text @param {string} [kind] */
export const link = (page, text, kind) => (page ? element("a", { class: kind, href: PREFIX + page }, text) : text);

/** A link to the page of a record; a plain click calls `open` instead. @param {string} text @param {string} page @param {() => unknown} open */
export const recordLink = (text, page, open, kind = "") => element("a", {
  class: `link ${kind}`, href: PREFIX + page,
  onclick: (/** @type {MouseEvent} */ event) => {
    if (!isPlainClick(event)) return;
    event.preventDefault();
    open();
  },
}, text);

/** Text between backticks becomes code. @param {string} text */
export const withCode = (text) => text.split("`").map((part, index) => (index % 2 ? element("code", {}, part) : part));

/** @param {string} text */
export const pill = (text, kind = "") => element("span", { class: `pill ${kind}` }, text);

/** An error; one that is long or has several lines keeps its lines. @param {string} text */
export const errorText = (text, label = "Error") => (/\n|.{300}/.test(text) ? element("pre", { class: "bad", role: "group", tabindex: 0, "aria-label": label }, text) : element("span", { class: "bad" }, text));

/** An error for a list: of a Python traceback its last line, which is the exception. @param {string} error */
export const errorInList = (error) => (error.trimStart().startsWith("Traceback (most recent call last)") ? error.trim().split("\n").at(-1) ?? "" : error);

/** What the reasons mean that the message queue itself records. @type {Record<string, string>} */
const REASON_NOTES = JSON.parse(document.getElementById("filter")?.dataset.reasons ?? "{}");

/** @param {string} reason */
export const reasonText = (reason) => (Object.hasOwn(REASON_NOTES, reason) ? `${reason}: ${REASON_NOTES[reason]}` : reason);

/** Pairs without a value are left out. @param {string} kind @param {[string, Child][]} pairs */
export function facts(kind, pairs) {
  const shown = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return element("dl", { class: kind }, shown.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

// Where the process is published: QM_WEB_PREFIX, or nothing. This file is below it, in /static.
export const PREFIX = new URL("..", import.meta.url).pathname.slice(0, -1);

const NOTE_SHOWN = 6000; // ms
const UNDO_SHOWN = 30000; // ms, as somebody who wants to press the button has to read it first

/** A note with the focus stays. @param {Child} text */
export function toast(text) {
  const note = element("p", {}, text);
  byId("toasts").append(note);
  const end = () => (note.contains(document.activeElement) ? setTimeout(end, NOTE_SHOWN) : note.remove());
  setTimeout(end, note.querySelector("button") ? UNDO_SHOWN : NOTE_SHOWN);
}

/** A button that copies a text; null if the browser does not allow it. @param {string} what @param {string} text */
export const copier = (what, text) => navigator.clipboard && button(`Copy ${what}`, async () => {
  await navigator.clipboard.writeText(text);
  toast(`Copied the ${what}`);
}, "quiet");

/** Show a text, unless it is shown already: a screen reader announces each change. @param {HTMLElement} place @param {string} text */
export function setText(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

/** Say whether the page is live. @param {string} text @param {string} kind */
export function showState(text, kind) {
  setText(byId("state"), text);
  byId("state").className = `state ${kind}`;
}

export const showConnecting = () => showState("Connecting …", "");

const TITLE = document.title;

/** How much needs attention, seen in the browser's tab. @param {number} count */
export function countInTitle(count) {
  document.title = count ? `(${count}) ${TITLE}` : TITLE;
}

// Show an error of the whole page; an empty text hides it.
export const complain = (text = "") => setText(byId("problem"), text);

// On a narrow screen the navigation scrolls: show where we are.
for (const here of document.querySelectorAll("nav [aria-current]")) {
  const nav = here.closest("nav");
  nav.scrollLeft = here.offsetLeft - nav.offsetLeft - 16;
}
