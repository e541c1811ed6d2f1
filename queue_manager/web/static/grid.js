// Tables that are shown once, as they are.

import { element } from "./dom.js";
import { cell } from "./list.js";

/** A table of `rows`, each with a value per title; the last may be long. @param {string[]} titles @param {Child[][]} rows */
export const grid = (titles, rows) => element("div", { class: "sheet" }, element("table", {},
  element("thead", {}, element("tr", {}, titles.map((title) => element("th", { scope: "col" }, title)))),
  element("tbody", {}, rows.map((row) => element("tr", {}, row.map((value, index) => cell(titles[index], value, index < row.length - 1 ? "nowrap" : "")))))));
