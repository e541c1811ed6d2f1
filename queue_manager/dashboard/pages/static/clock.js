// The server's clock, as far as this page knows it: a browser that is an hour wrong must show the truth.

let base; // the server's time, in ms, at this page's own `performance.now()` of 0
let certainty = Infinity; // ms by which it may be wrong

// Every answer says the server's time: seconds since 1970, or ISO 8601. It was told somewhere between the two moments.
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

// A moment of the API as ms: the queue says seconds, everything else ISO 8601.
export const at = (moment) => (typeof moment === "number" ? moment * 1000 : Date.parse(moment));

const two = (number) => String(number).padStart(2, "0");

// A moment in UTC: the time of today, the day besides otherwise; in full on hovering.
export function moment(value) {
  const time = document.createElement("time");
  if (value === undefined || value === null) {
    time.textContent = "—";
    return time;
  }
  const date = new Date(at(value));
  const clock = `${two(date.getUTCHours())}:${two(date.getUTCMinutes())}:${two(date.getUTCSeconds())}`;
  const isToday = new Date(now()).toISOString().slice(0, 10) === date.toISOString().slice(0, 10);
  const day = date.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: date.getUTCFullYear() === new Date(now()).getUTCFullYear() ? undefined : "numeric", timeZone: "UTC" });
  time.dateTime = date.toISOString();
  time.title = `${date.toISOString().replace("T", " ").slice(0, 23)} UTC`;
  time.textContent = isToday ? clock : `${day} ${clock}`;
  return time;
}

// A time span in words short enough for a column.
export function span(ms) {
  const seconds = Math.abs(ms) / 1000;
  if (seconds < 1) return `${Math.round(Math.abs(ms))} ms`;
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${Math.round(seconds)} s`;
}

export const number = (value) => (value === undefined || value === null ? "—" : value.toLocaleString("en"));
