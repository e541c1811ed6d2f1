// The export of a list with its filter, to a file that the browser writes. Loaded when it is requested.

import { many, number } from "./clock.js";
import { askFor } from "./dialog.js";
import { element, toast } from "./dom.js";

const MAX_ROWS = 10000; // that a page reads; the API and the commands export all
const TOLD_ROWS = 2000; // between two notes of progress
/** @type {Record<string, { text: string, type: string, write: (rows: object[]) => string }>} */
const FORMATS = {
  csv: { text: "CSV, for spreadsheets", type: "text/csv", write: csv },
  jsonl: { text: "JSON lines, for programs", type: "application/jsonl", write: (rows) => rows.map((row) => `${JSON.stringify(row)}\n`).join("") },
};

/** @param {{ values: Values, on: { load: (values: Values, options: Options) => Promise<Page<any>> } }} list @param {string} name */
export function askExport({ values, on: { load } }, name) {
  askFor({
    title: "Export", verb: "Export", text: `Exports the rows that match the filter, in the order of the list: at most ${number(MAX_ROWS)}.`,
    fields: [{ name: "format", label: "Format", kind: "select", value: "csv", options: Object.entries(FORMATS).map(([key, { text }]) => [key, text]) }],
    async act({ format }, signal) {
      const { rows, isAll } = await read(values, load, signal);
      const { type, write } = FORMATS[format];
      save(`${name}.${format}`, new Blob([write(rows)], { type }));
      return isAll ? `Exported ${many(rows.length, "row")}` : `Exported the first ${many(rows.length, "row")}; there are more`;
    },
  });
}

/** @param {Values} values @param {(values: Values, options: Options) => Promise<Page<object>>} load @param {AbortSignal} signal */
async function read({ cursor: _, ...values }, load, signal) {
  /** @type {object[]} */
  const rows = [];
  /** @type {string | null} */
  let cursor = "";
  let isCut; // by the server
  do {
    const before = rows.length;
    /** @type {Page<object>} */
    const page = await load(cursor ? { ...values, cursor } : values, { signal });
    rows.push(...page.rows);
    ({ cursor, isCut } = page);
    if (Math.floor(rows.length / TOLD_ROWS) > Math.floor(before / TOLD_ROWS)) toast(`${number(rows.length)} read`);
  } while (cursor && rows.length < MAX_ROWS);
  return { rows: rows.slice(0, MAX_ROWS), isAll: !cursor && !isCut && rows.length <= MAX_ROWS };
}

/** @param {object[]} rows */
function csv(rows) {
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const lines = rows.map((row) => columns.map((name) => csvCell(/** @type {Record<string, unknown>} */ (row)[name])));
  return `\ufeff${[columns.map(csvCell), ...lines].map((line) => `${line.join(",")}\r\n`).join("")}`; // by this mark, Excel recognizes UTF-8
}

// A spreadsheet would execute a text that begins like a formula.
/** @param {unknown} value */
function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "string") return quoted(JSON.stringify(value));
  return quoted(/^[=+\-@\t\r]/.test(value) ? `'${value}` : value);
}

/** @param {string} text */
const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

/** @param {string} name @param {Blob} content */
function save(name, content) {
  const url = URL.createObjectURL(content);
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}
