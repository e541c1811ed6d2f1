// What the reasons of failures mean that the message queue itself records.

/** @type {Record<string, string>} */
const NOTES = JSON.parse(document.getElementById("filter")?.dataset.reasons ?? "{}");

/** @param {string} reason */
export const reasonText = (reason) => (Object.hasOwn(NOTES, reason) ? `${reason}: ${NOTES[reason]}` : reason);
