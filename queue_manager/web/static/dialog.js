// Dialogs: a form or a record, with buttons.

import { Problem, attempt } from "./api.js";
import { button, byId, element, link, put, toast, valuesOf } from "./dom.js";
import { seldom } from "./pace.js";

const FOLLOW_INTERVAL = 250; // ms between two readings of the record that is open

export const isDialogOpen = () => document.querySelector("dialog[open]") !== null;

/** Returns a function that finds the link of the row that has `from`, or of the row that has taken its place. @param {Element | null} from */
function placeOf(from) {
  const row = /** @type {HTMLElement | null | undefined} */ (from?.closest("tr[data-id]"));
  const rows = /** @type {HTMLCollectionOf<HTMLElement> | undefined} */ (row?.parentElement?.children);
  if (!row || !rows) return () => null;
  const index = [...rows].indexOf(row);
  return () => ([...rows].find(({ dataset }) => dataset.id === row.dataset.id) ?? rows[Math.min(index, rows.length - 1)])?.querySelector("a");
}

/** @param {...Child} content */
function open(...content) {
  const from = document.activeElement;
  const linkInPlace = placeOf(from);
  const dialog = element("dialog", { "aria-labelledby": "dialog-title" }, ...content);
  if (dialog.querySelector("#dialog-text")) dialog.setAttribute("aria-describedby", "dialog-text");
  dialog.addEventListener("close", () => {
    if (dialog.contains(byId("toasts"))) ([...document.querySelectorAll("dialog[open]")].at(-1) ?? document.body).append(byId("toasts"));
    const isMoved = ![from, document.body].includes(document.activeElement) && !dialog.contains(document.activeElement);
    dialog.remove();
    if (isMoved) return; // by a key that was pressed before this event
    if (from instanceof HTMLElement && from.isConnected) from.focus();
    if (document.activeElement !== from) (linkInPlace() ?? byId("main")).focus(); // it was removed or is hidden
  });
  document.body.append(dialog);
  dialog.showModal();
  dialog.append(byId("toasts")); // elsewhere they could not be seen or pressed
  return dialog;
}

export const TYPED_FROM = 1000; // entries; who deletes more has to type their name

/** What is wrong with a text that must be JSON. @param {string} value */
export function jsonProblem(value, what = "JSON") {
  try {
    JSON.parse(value);
    return "";
  } catch (error) {
    return `Must be ${what} (${/** @type {Error} */ (error).message})`;
  }
}

/** A check of a number that may be missing. @param {number} min @param {number} max */
export const numberFrom = (min, max, isWhole = true) => (/** @type {string} */ value) => {
  const given = Number(value);
  const isValid = value === "" || (given >= min && given <= max && (!isWhole || Number.isInteger(given)));
  return isValid ? "" : `Must be a ${isWhole ? "whole " : ""}number from ${min} to ${max}`;
};

/** A number for the API. A text that is not a number is sent unchanged, so that the API returns its error. @param {string} [text] */
export const numeric = (text) => (!text || Number.isNaN(Number(text)) ? text || null : Number(text));

/** The problems that the page itself can find. @param {Field[]} fields @param {Values} given @returns {Failure[]} */
const problemsOf = (fields, given) => fields
  .map(({ name, isNeeded, check }) => ({ field: name, message: check?.(given[name]) || (isNeeded && !given[name] ? "Must not be empty" : "") }))
  .filter(({ message }) => message);

/** A form; what is wrong is shown next to its field. If a dialog is open, nothing is asked. @param {Question} question */
export function askFor({ title, text, fields: asked = [], verb, kind = "", typed, act }) {
  if (isDialogOpen()) return; // it opened while this one waited for a response
  const fields = [...asked];
  if (typed) fields.push({ name: "typed", label: `Type ${typed.name} to confirm`, isNeeded: true, check: (value) => (value === typed.name ? "" : `Must be exactly: ${typed.name}`) });
  const whole = element("p", { class: "field-problem", role: "alert" });
  const submit = element("button", { class: `primary ${kind}` }, verb);
  const form = /** @type {Form} */ (element("form", { method: "dialog", novalidate: true, onsubmit: send },
    element("h2", { id: "dialog-title" }, title),
    text && element("p", { class: "soft", id: "dialog-text" }, text),
    fields.map(fieldOf),
    whole,
    element("menu", {}, button("Cancel", () => dialog.close()), submit)));
  const dialog = open(form);
  const closing = new AbortController();
  dialog.addEventListener("close", () => closing.abort());

  /** @param {Event} event */
  async function send(event) {
    event.preventDefault();
    submit.disabled = true; // and with it Enter in a field
    for (const note of form.querySelectorAll(".field-problem")) note.textContent = "";
    for (const control of form.elements) control.ariaInvalid = null;
    const given = valuesOf(form);
    const problems = problemsOf(fields, given);
    if (problems.length) return refuse(problems);
    try {
      const message = await act(given, closing.signal);
      dialog.close();
      if (message) toast(message);
    } catch (error) {
      if (!dialog.open && /** @type {Error} */ (error).name === "AbortError") return;
      if (!(error instanceof Problem)) {
        submit.disabled = false;
        throw error;
      }
      if (dialog.open) refuse([error]);
      else toast(error.message);
    }
  }

  /** @param {Failure[]} problems */
  function refuse(problems) {
    submit.disabled = false;
    for (const { field, message } of problems) {
      const control = field ? form.elements[field] : undefined;
      const note = control && form.querySelector(`#${control.id}-problem`);
      (note ?? whole).textContent = message;
      if (control) control.ariaInvalid = "true";
    }
    (form.querySelector("[aria-invalid]") ?? (document.activeElement === document.body ? submit : null))?.focus(); // which lost it
  }
}

/** @param {Field} field */
function fieldOf({ name, label, kind = "text", value = "", hint, options = [], isNeeded }) {
  const id = `field-${name}`;
  const about = { id, name, value, required: isNeeded, "aria-describedby": `${id}-problem${hint ? ` ${id}-hint` : ""}` };
  const problem = element("p", { class: "field-problem", id: `${id}-problem`, role: "alert" });
  if (kind === "check") return element("div", { class: "field" }, element("label", {}, element("input", { ...about, type: "checkbox", value: "on", checked: Boolean(value) }), " ", label), problem);
  const control = kind === "select" ? element("select", { ...about, value: undefined }, options.map(([key, text]) => element("option", { value: key, selected: key === value }, text)))
    : kind === "area" ? element("textarea", { ...about, spellcheck: "false" })
    : element("input", { ...about, type: kind === "number" ? "text" : kind, inputmode: kind === "number" && "decimal", step: kind === "datetime-local" && "1" });
  return element("div", { class: "field" },
    element("label", { for: id }, label), control, problem,
    hint && element("p", { class: "hint", id: `${id}-hint` }, hint));
}

/**
 * A record. Returns a function that replaces its buttons.
 * @param {string} title @param {Child} content @param {(Action | false)[]} actions @param {string} [page]
 */
export function show(title, content, actions = [], page = "") {
  const menu = element("menu");
  /** @type {Action[]} */
  let latest; // a button that stays acts on the record as it is when it is pressed
  /** @param {(Action | false)[]} actions */
  const offer = (actions) => {
    latest = actions.filter((action) => action !== false);
    put(menu, latest.map(([text]) => text), () => [
      button("Close", () => dialog.close()),
      latest.map(([text, , kind], index) => button(text, () => {
        dialog.close();
        latest[index][1]();
      }, kind)),
    ]);
  };
  offer(actions);
  const dialog = open(element("div", { class: "inside" },
    element("h2", { id: "dialog-title" }, link(page, title)), content, menu));
  return offer;
}

/**
 * The records of a list, of which one may be open. It is read and shown again when it has changed.
 * @template T
 */
export class Records {
  /** @param {RecordHandlers<T>} on */
  constructor(on) {
    this.on = on;
    /** @type {{ id: string, body: HTMLElement, offer: ReturnType<typeof show> } | undefined} */
    this.opened = undefined; // the part of the dialog that changes, and what replaces its buttons
    this.follow = seldom(() => attempt(() => this.read()), FOLLOW_INTERVAL);
  }

  /** @param {string} id @param {T} record @param {{ title: string, page: string, content: Child }} about what does not change */
  open(id, record, { title, page, content }) {
    const { describe, actionsOf } = this.on;
    const body = element("div", { class: "stack" });
    put(body, record, describe);
    this.opened = { id, body, offer: show(title, [content, body], actionsOf(record), page) };
  }

  /** @param {string} id */
  isOpen(id) {
    return this.opened?.id === id;
  }

  async read() {
    if (!this.opened?.body.isConnected) return;
    const { id, body, offer } = this.opened;
    const { read, describe, actionsOf } = this.on;
    try {
      const record = await read(id);
      put(body, record, describe);
      offer(actionsOf(record));
    } catch (error) {
      if (!(error instanceof Problem) || error.status !== 404) throw error;
      put(body, null, () => element("p", {}, "It no longer exists."));
      offer([]);
    }
  }
}
