// Asking the API, as any program does.

import { sync } from "./clock.js";

// A refusal: `message` is for people, `field` names what was wrong in what they sent; `status` 0: no answer at all.
export class Problem extends Error {
  constructor(status, { message, field }) {
    super(message);
    Object.assign(this, { status, field });
  }
}

const AWAY = { message: "Queue Manager does not answer; trying again" };

// `body`: what is sent as JSON, or a text that is JSON already; `signal` gives up; `parse` reads the answer's text.
export async function ask(method, path, body, { signal, parse = JSON.parse } = {}) {
  const began = performance.now();
  const options = body === undefined ? {} : { body: typeof body === "string" ? body : JSON.stringify(body), headers: { "content-type": "application/json" } };
  let response, text;
  try {
    response = await fetch(`/api${path}`, { method, signal, ...options });
    text = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, AWAY);
  }
  if (response.status === 401) location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
  if (!response.ok) throw new Problem(response.status, problemOf(text, response));
  const answer = parse(text);
  if (answer.server_time !== undefined) sync(answer.server_time, began);
  return answer;
}

function problemOf(text, response) {
  try {
    return JSON.parse(text);
  } catch {
    return { message: `${response.status} ${response.statusText}` };
  }
}

export const get = (path, options) => ask("GET", path, undefined, options);
export const post = (path, body = {}) => ask("POST", path, body);

// Do it; a refusal goes to `refused`, a mistake of ours on.
export async function attempt(act, refused) {
  try {
    return await act();
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return refused(error);
  }
}

// A query string of what is not empty.
export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}
