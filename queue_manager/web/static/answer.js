// Why something is in its state, in words.

import { element, pill, withCode } from "./dom.js";

const TONES = { good: "good", neutral: "", warn: "warn", bad: "bad" };

/** A card with the answer. @param {Found} found @param {Child} heading @param {...Child} more */
export const answer = (found, heading, ...more) => element("section", { class: "card answer", "aria-label": `${found.kind} ${found.id}` },
  element("header", { class: "head" }, element("h2", {}, heading, " ", pill(found.label, TONES[found.tone])), ...more),
  element("p", {}, withCode(found.answer)));

/** Systems that could not be searched. @param {Record<string, string>} unread */
export const unreadable = (unread) => Object.entries(unread).map(([system, why]) => element("p", { class: "bad" }, `${system} could not be searched: ${why}`));
