// The audit: who changed what.

import { get, onOverview, query, undoButton } from "./api.js";
import { at as ms, moment, now, number } from "./clock.js";
import { element, filled, link, mayAct, pill } from "./dom.js";
import { List, cell, systemTitle } from "./list.js";

const PAGE = 50;
const SHOWN_IDS = 3;
const OUTCOMES = { done: "good", failed: "bad", unknown: "warn" };
const VIAS = { page: "page", api: "API", cli: "command line" };

/** What a field for a time has, in UTC. @param {string | null | undefined} text */
const utc = (text) => text && `${text}Z`;

/** @param {Values} values @param {Options} options */
async function load({ from, to, ...values }, options) {
  /** @type {AuditPage} */
  const { entries, cursor } = await get(`/audit${query({ ...values, from: utc(from), to: utc(to), limit: PAGE })}`, options);
  return { rows: entries, cursor };
}

/** @param {AuditedChange} entry */
function cells({ id, at, who, via, address, action, system, outcome, undo_until: until, ...about }) {
  return [
    element("th", { scope: "row" }, moment(at)),
    cell("Who", element("span", {}, element("b", {}, who), element("div", { class: "hint soft" }, `${VIAS[via]} · ${address}`))),
    cell("Action", element("span", {}, element("b", {}, action), system && element("div", { class: "hint soft" }, systemTitle(system))), "nowrap"),
    element("td", { class: "text" }, what(about)),
    cell("Changed", number(about.count), "number"),
    cell("Outcome", element("span", {}, pill(outcome, OUTCOMES[outcome]), canUndo(until) && filled(undoButton(id, refresh), { "aria-label": `Undo: ${[action, ...about.ids.slice(0, 1)].join(" ")}` })), "nowrap"),
  ];
}

/** @param {Pick<AuditedChange, "ids" | "total" | "count" | "page" | "filter" | "before" | "after" | "detail" | "error">} about @returns {Child[]} */
function what({ ids, total, count, page, filter, before, after, detail, error }) {
  const shown = ids.slice(0, SHOWN_IDS);
  const more = (count || total || 0) - shown.length;
  return [
    shown.length > 0 && element("div", {}, shown.flatMap((id, index) => [index ? ", " : "", link(page && `${page}/${encodeURIComponent(id)}`, id)]), more > 0 && ` and ${number(more)} more`),
    filter && element("div", {}, Object.entries(filter).map(([name, value]) => `${name}: ${value}`).join(", ")),
    Object.entries({ ...before, ...after }).map(([name]) => element("div", {}, `${name} `, value(before?.[name]), " → ", value(after?.[name]))),
    detail && element("div", {}, detail),
    error && element("div", { class: "bad" }, error),
  ];
}

/** @param {Moment | null} until */
const canUndo = (until) => mayAct && until && ms(until) > now();

/** @param {unknown} text */
const value = (text) => element("code", {}, String(text ?? "none"));

const list = new List({ load, cells, id: ({ id }) => id });
const refresh = () => list.refresh();
onOverview(refresh); // at least every 5 s: not every action changes the overview
