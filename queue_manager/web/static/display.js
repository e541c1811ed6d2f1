// The dialog of the display settings: times, colors, and the keys of a page. Loaded when it is opened.

import { CHOICES, chosen, keep } from "./choices.js";
import { show } from "./dialog.js";
import { element, facts } from "./dom.js";

/** @type {Record<string, string>} */
const LABELS = { times: "Times", theme: "Colors" };

/** @param {Choice} name */
function select(name) {
  /** @param {Event} event */
  const onchange = ({ target }) => {
    const { value } = /** @type {HTMLSelectElement} */ (target);
    keep(name, value);
    if (name === "times") location.reload();
    else document.documentElement.dataset.theme = value;
  };
  const options = Object.entries(CHOICES[name]).map(([value, text]) => element("option", { value, selected: value === chosen(name) }, text));
  return element("div", { class: "field" }, element("label", { for: `choice-${name}` }, LABELS[name]), element("select", { id: `choice-${name}`, onchange }, options));
}

/** @param {...string} names */
const keys = (...names) => names.flatMap((name, index) => [index > 0 && " or ", element("kbd", {}, name)]);

/** @param {boolean} hasSearch true if the page has a list that can be searched */
export function showDisplay(hasSearch) {
  show("Display and keys", [select("times"), select("theme"), facts("pairs", [
    ["Find any id", keys("Ctrl K", "⌘ K", ...(hasSearch ? [] : ["/"]))],
    ["Search this list", hasSearch ? keys("/") : null],
    ["Values of a chart", keys("←", "→")],
    ["Close a dialog", keys("Esc")],
    ["Show this", keys("?")],
  ])]);
}
