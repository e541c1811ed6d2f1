// The parts of every page, with their keys: the field that finds any id, the search of its list, the display settings.

import { AWAY } from "./api.js";
import { ARE_RELATIVE, ZONE } from "./clock.js";
import { byId, toast } from "./dom.js";

const display = byId("display");
const search = document.getElementById("filter-search"); // of the list

const showDisplay = () => import("./display.js").then((display) => display.showDisplay(search !== null), () => toast(AWAY.message));

display.textContent = ARE_RELATIVE ? "Relative times" : `Times in ${ZONE}`;
display.hidden = false;
display.addEventListener("click", showDisplay);

// The second click of a double click would act on what the first one has put in the same place, such as the next row. The
// buttons of pages and of orders are pressed repeatedly.
addEventListener("click", (event) => {
  const pressed = event.detail > 1 && /** @type {Element} */ (event.target).closest("button, a");
  if (!pressed || pressed.closest(".pages, th[data-sort]")) return;
  event.preventDefault();
  event.stopPropagation();
}, true);

addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  const hasCommand = event.ctrlKey || event.metaKey;
  const isTyping = /** @type {Element} */ (event.target).matches("input:not([type=checkbox]), textarea, select");
  if (event.key === "?" && !hasCommand && !isTyping) return showDisplay();
  if (hasCommand ? event.shiftKey || event.key.toLowerCase() !== "k" : isTyping || event.key !== "/") return;
  event.preventDefault();
  if (search && !hasCommand) search.focus();
  else byId("find").select();
});
