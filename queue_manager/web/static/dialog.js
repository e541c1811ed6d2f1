// Dialogs: a form or a record, with buttons.

import { Problem } from "./api.js";
import { PREFIX, button, byId, element, put, toast } from "./dom.js";

/** @param {...Child} content */
function open(...content) {
  const from = document.activeElement;
  const dialog = element("dialog", { "aria-labelledby": "dialog-title" }, ...content);
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (from instanceof HTMLElement && from.isConnected) from.focus();
    if (document.activeElement !== from) byId("main").focus(); // it was removed or is hidden
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

export const TYPED_FROM = 1000; // entries; who deletes more has to type their name

/** A form; a refusal is shown next to its field. @param {Question} question */
export function askFor({ title, text, fields = [], verb, kind = "", typed, act }) {
  const whole = element("p", { class: "field-problem", role: "alert" });
  const submit = element("button", { class: `primary ${kind}` }, verb);
  const form = /** @type {Form} */ (element("form", { method: "dialog", novalidate: true, onsubmit: send },
    element("h2", { id: "dialog-title" }, title),
    text && element("p", { class: "soft" }, text),
    fields.map(fieldOf),
    typed && fieldOf({ name: "typed", label: `Type ${typed.name} to confirm`, isNeeded: true }),
    whole,
    element("menu", {}, button("Cancel", () => dialog.close()), submit)));
  const dialog = open(form);

  /** @param {Event} event */
  async function send(event) {
    event.preventDefault();
    if (submit.disabled) return; // a second press while the first is under way
    submit.disabled = true;
    for (const note of form.querySelectorAll(".field-problem")) note.textContent = "";
    for (const control of form.elements) control.ariaInvalid = null;
    try {
      const given = /** @type {Values} */ (Object.fromEntries(new FormData(form)));
      if (typed && given.typed.trim() !== typed.name) throw new Problem(422, { field: "typed", message: `Type the name of the ${typed.of}: ${typed.name}` });
      const message = await act(given);
      dialog.close();
      if (message) toast(message);
    } catch (error) {
      submit.disabled = false;
      refuse(error);
    }
  }

  /** @param {unknown} error */
  function refuse(error) {
    if (!(error instanceof Problem)) throw error;
    const control = error.field ? form.elements[error.field] : undefined;
    const note = control && form.querySelector(`#${control.getAttribute("aria-describedby")}`);
    (note ?? whole).textContent = error.message;
    if (!control) return;
    control.ariaInvalid = "true";
    control.focus();
  }
}

/** @param {Field} field */
function fieldOf({ name, label, kind = "text", value = "", hint, options = [], isNeeded }) {
  const id = `field-${name}`;
  const about = { id, name, value, required: isNeeded, "aria-describedby": `${id}-problem` };
  const problem = element("p", { class: "field-problem", id: `${id}-problem`, role: "alert" });
  if (kind === "check") return element("div", { class: "field" }, element("label", {}, element("input", { ...about, type: "checkbox", value: "on", checked: Boolean(value) }), " ", label), problem);
  const control = kind === "select" ? element("select", { ...about, value: undefined }, options.map(([key, text]) => element("option", { value: key, selected: key === value }, text)))
    : kind === "area" ? element("textarea", { ...about, spellcheck: "false" })
    : element("input", { ...about, type: kind === "number" ? "text" : kind, inputmode: kind === "number" && "decimal", step: kind === "datetime-local" && "1" });
  return element("div", { class: "field" },
    element("label", { for: id }, label), control, problem,
    hint && element("p", { class: "hint" }, hint));
}

/**
 * A record. Returns a function that replaces its buttons.
 * @param {string} title @param {Child} content @param {(Action | false)[]} actions @param {string} [page]
 */
export function show(title, content, actions = [], page = "") {
  const menu = element("menu");
  /** @param {(Action | false)[]} actions */
  const offer = (actions) => put(menu, actions.map((action) => action && action[0]), () => [
    button("Close", () => dialog.close()),
    actions.map((action) => action && button(action[0], () => {
      dialog.close();
      action[1]();
    }, action[2])),
  ]);
  offer(actions);
  const dialog = open(element("div", { class: "inside" },
    element("h2", { id: "dialog-title" }, page ? element("a", { href: PREFIX + page }, title) : title), content, menu));
  return offer;
}
