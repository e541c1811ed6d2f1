// What the reasons of failures mean that the message queue itself records.

/** @type {Record<string, string>} */
const NOTES = JSON.parse(document.getElementById("filter")?.dataset.reasons ?? "{}");

/** An error for a list: of a Python traceback its last line, which is the exception. @param {string} error */
export const errorInList = (error) => (error.trimStart().startsWith("Traceback (most recent call last)") ? error.trim().split("\n").at(-1) ?? "" : error);

/** @param {string} reason */
export const reasonText = (reason) => (Object.hasOwn(NOTES, reason) ? `${reason}: ${NOTES[reason]}` : reason);
