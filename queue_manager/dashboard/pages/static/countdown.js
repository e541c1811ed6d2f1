// The time that is left, counted down once a second by the server's clock. Visual only: nothing here acts.

import { isKnown, now } from "./clock.js";
import { element } from "./dom.js";

// `deadline` in ms; undefined: it is not known yet; null: there is none.
export function countdown(deadline) {
  const shown = element("span", { class: "countdown nowrap" });
  shown.deadline = deadline;
  tell(shown);
  return shown;
}

function tell(shown) {
  const { deadline } = shown;
  const left = Math.ceil((deadline - now()) / 1000);
  const text = deadline === null ? "—" : deadline === undefined || !isKnown() ? "..." : left > 0 ? `${left} s` : "Overdue";
  if (shown.textContent !== text) shown.textContent = text;
  shown.classList.toggle("bad", text === "Overdue");
}

setInterval(() => document.querySelectorAll(".countdown").forEach(tell), 1000);
