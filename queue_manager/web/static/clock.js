// The server's clock, as far as this page knows it, and times in words: a browser's own clock may be an hour wrong.

import { chosen } from "./choices.js";
import { element } from "./dom.js";

const times = chosen("times");

/** The name of the zone of the times that the page shows, such as Europe/Berlin; relative ones have none. */
export const ZONE = times === "local" ? new Intl.DateTimeFormat().resolvedOptions().timeZone : "UTC";
export const ARE_RELATIVE = times === "relative";

/** A moment whose UTC fields are those of the zone. @param {number} ms */
export const zoned = (ms) => new Date(times === "local" ? ms - new Date(ms).getTimezoneOffset() * 60000 : ms);

/** @type {number | undefined} */
let base; // the server's time, in ms, at this page's own `performance.now()` of 0
let maxError = Infinity; // ms
/** The server read its clock between the two moments. @param {Moment} serverTime @param {number} began */
export function sync(serverTime, began, ended = performance.now()) {
  const time = typeof serverTime === "number" ? serverTime * 1000 : Date.parse(serverTime);
  if (Number.isNaN(time)) return;
  const uncertainty = (ended - began) / 2;
  if (uncertainty > maxError + 50 && base !== undefined && Math.abs(time - now()) < 2000) return;
  base = time - (began + ended) / 2;
  maxError = uncertainty;
}

export const now = () => (base === undefined ? Date.now() : base + performance.now());

/** A moment of the API as ms. @param {Moment} moment */
export const at = (moment) => (typeof moment === "number" ? moment * 1000 : Date.parse(moment));

const numbers = new Intl.NumberFormat("en");

/** A time in the format of the display settings: with the day if it is not today's, or how long ago. @param {Moment | null | undefined} value */
export function moment(value) {
  if (value == null) return element("time", {}, "—");
  const utc = new Date(at(value)).toISOString();
  const about = { datetime: utc, title: `${utc.replace("T", " ").slice(0, 23)} UTC` };
  if (ARE_RELATIVE) return countdown(at(value), until, element("time", { ...about, class: "countdown nowrap" }));
  return element("time", about, timeText(at(value)));
}

/** @param {number} ms */
function timeText(ms) {
  const date = zoned(ms);
  const full = date.toISOString();
  const [, day, month, year] = date.toUTCString().split(" "); // "Sun, 22 Nov 2026 18:00:00 GMT"
  const yearShown = dateOf(now()).startsWith(year) ? "" : `${year} `;
  const dayShown = dateOf(now()) === full.slice(0, 10) ? "" : `${Number(day)} ${month} ${yearShown}`;
  return dayShown + full.slice(11, 19);
}

/** @param {number} ms */
const dateOf = (ms) => zoned(ms).toISOString().slice(0, 10);

/** The same with its time zone, for places where the zone of the page is not shown. @param {Moment | null | undefined} value @returns {Child} */
export const zonedMoment = (value) => (value == null ? null : ARE_RELATIVE ? moment(value) : [moment(value), ` ${ZONE}`]);

/** A short text for a duration. @param {number} ms */
export function span(ms) {
  const seconds = Math.abs(ms) / 1000;
  if (seconds < 1) return `${Math.round(Math.abs(ms))} ms`;
  for (const [size, unit] of /** @type {const} */ ([[86400, "d"], [3600, "h"], [60, "min"]])) {
    if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${Math.round(seconds)} s`;
}

/** @param {number | null | undefined} value */
export const number = (value) => (value == null ? "—" : numbers.format(value));

/** A number of things: "1 job", "2 jobs". @param {number} count @param {string} noun */
export const many = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

// The remaining time, counted down once a second. It is only shown and has no effect.

/** @param {Countdown["deadline"]} deadline @param {Countdown["format"]} format @param {HTMLElement} place */
export function countdown(deadline, format = seconds, place = element("span", { class: "countdown nowrap" })) {
  const shown = Object.assign(place, { deadline, format });
  update(shown);
  return shown;
}

/** @param {number} left */
const seconds = (left) => (left > 0 ? `${Math.ceil(left / 1000)} s` : "Overdue");

/** For a time that may be hours away, and that is not overdue when it has passed. @param {number} left */
export function until(left) {
  const whole = Math.ceil(left / 1000) * 1000;
  return whole > 0 ? `in ${span(whole)}` : whole > -2000 ? "now" : `${span(whole)} ago`;
}

/** @param {Countdown} shown */
function update(shown) {
  const { deadline, format } = shown;
  const text = deadline === null ? "—" : base === undefined ? "..." : format(deadline - now());
  if (shown.textContent !== text) shown.textContent = text;
  shown.classList.toggle("bad", text === "Overdue");
}

let today = dateOf(now());

// When a new day begins, the times of the day before are shown with their day.
function showDay() {
  if (today === dateOf(now())) return;
  today = dateOf(now());
  for (const shown of document.querySelectorAll("time[datetime]:not(.countdown)")) shown.textContent = timeText(at(shown.getAttribute("datetime") ?? ""));
}

setInterval(() => {
  document.querySelectorAll(".countdown").forEach(update);
  showDay();
}, 1000);
