// The time that is left, counted down once a second by the server's clock. Visual only: nothing here acts.

import { isKnown, now, span } from "./clock.js";
import { element } from "./dom.js";

/** @param {Countdown["deadline"]} deadline @param {Countdown["say"]} say */
export function countdown(deadline, say = seconds) {
  const shown = Object.assign(element("span", { class: "countdown nowrap" }), { deadline, say });
  tell(shown);
  return shown;
}

/** @param {number} left */
const seconds = (left) => (left > 0 ? `${Math.ceil(left / 1000)} s` : "Overdue");

/** For what may be hours away and is not overdue at once. @param {number} left */
export function until(left) {
  const whole = Math.ceil(left / 1000) * 1000;
  return whole > 0 ? `in ${span(whole)}` : whole > -2000 ? "now" : `${span(whole)} ago`;
}

/** @param {Countdown} shown */
function tell(shown) {
  const { deadline, say } = shown;
  const text = deadline === null ? "—" : deadline === undefined || !isKnown() ? "..." : say(deadline - now());
  if (shown.textContent !== text) shown.textContent = text;
  shown.classList.toggle("bad", text === "Overdue");
}

setInterval(() => document.querySelectorAll(".countdown").forEach(tell), 1000);
