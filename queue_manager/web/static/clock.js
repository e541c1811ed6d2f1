// The server's clock, as far as this page knows it: a browser that is an hour wrong must show the truth.

/** @type {number | undefined} */
let base; // the server's time, in ms, at this page's own `performance.now()` of 0
let certainty = Infinity; // ms by which it may be wrong

/** The server read its clock between the two moments. @param {Moment} serverTime @param {number} began */
export function sync(serverTime, began, ended = performance.now()) {
  const told = typeof serverTime === "number" ? serverTime * 1000 : Date.parse(serverTime);
  if (Number.isNaN(told)) return;
  const doubt = (ended - began) / 2;
  if (doubt > certainty + 50 && base !== undefined && Math.abs(told - now()) < 2000) return;
  base = told - (began + ended) / 2;
  certainty = doubt;
}

export const isKnown = () => base !== undefined;

export const now = () => (base === undefined ? Date.now() : base + performance.now());

/** A moment of the API as ms. @param {Moment} moment */
export const at = (moment) => (typeof moment === "number" ? moment * 1000 : Date.parse(moment));

// A formatter costs far more to make than to use.
/** @type {Intl.DateTimeFormatOptions} */
const months = { day: "numeric", month: "short", timeZone: "UTC" };
const days = new Intl.DateTimeFormat("en-GB", months);
const years = new Intl.DateTimeFormat("en-GB", { ...months, year: "numeric" });
const numbers = new Intl.NumberFormat("en");

/** A time in UTC, with the day if it is not today's. @param {Moment | null | undefined} value */
export function moment(value) {
  const time = document.createElement("time");
  if (value == null) {
    time.textContent = "—";
    return time;
  }
  const date = new Date(at(value));
  const full = date.toISOString();
  const today = new Date(now()).toISOString();
  const day = today.slice(0, 10) === full.slice(0, 10) ? "" : `${(today.slice(0, 4) === full.slice(0, 4) ? days : years).format(date)} `;
  time.dateTime = full;
  time.title = `${full.replace("T", " ").slice(0, 23)} UTC`;
  time.textContent = day + full.split("T")[1].slice(0, 8);
  return time;
}

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
