// The time that is left, counted down once a second by the server's clock. Visual only: nothing here acts.

import { isKnown, now, span } from "./clock.js";
import { element } from "./dom.js";

// `deadline` in ms; undefined: it is not known yet; null: there is none. `say(ms left)`: how it is said.
export function countdown(deadline, say = seconds) {
  const shown = element("span", { class: "countdown nowrap" });
  Object.assign(shown, { deadline, say });
  tell(shown);
  return shown;
}

const seconds = (left) => (left > 0 ? `${Math.ceil(left / 1000)} s` : "Overdue");

// For what is not late the moment its time has come, and may be hours away.
export function until(left) {
  const whole = Math.ceil(left / 1000) * 1000;
  return whole > 0 ? `in ${span(whole)}` : whole > -2000 ? "now" : `${span(whole)} ago`;
}

function tell(shown) {
  const { deadline, say } = shown;
  const text = deadline === null ? "—" : deadline === undefined || !isKnown() ? "..." : say(deadline - now());
  if (shown.textContent !== text) shown.textContent = text;
  shown.classList.toggle("bad", text === "Overdue");
}

setInterval(() => document.querySelectorAll(".countdown").forEach(tell), 1000);
