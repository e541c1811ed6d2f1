// Failures of all kinds, grouped by what failed and why.

import { get, onOverview, post, query } from "./api.js";
import { many, moment, number } from "./clock.js";
import { askFor } from "./dialog.js";
import { byId, countInTitle, element, errorInList, link, mayAct, reasonText, rowButton, setText, svg } from "./dom.js";
import { List, cell, systemTitle } from "./list.js";
import { seldom } from "./pace.js";

const REFRESH_INTERVAL = 5000; // ms between two readings because something happened
const VERBS = { message: "Replay", item: "Retry", job: "Retry", broker: "Replay" };

/** @param {Values} values @param {Options} options */
async function load(values, options) {
  /** @type {GroupedFailures} */
  const { groups, of, lists } = await get(`/failures${query(values)}`, options);
  const bounds = lists.filter((list) => !list.is_complete).map(({ title, read, problem }) => `${title}: ${problem ?? `only the newest ${number(read)} are counted`}`);
  setText(byId("bounds"), bounds.join(" · "));
  byId("bounds").hidden = !bounds.length;
  countInTitle(of);
  return { rows: groups, cursor: null, total: of, isCut: of > groups.length };
}

/** @param {FailureGroup} group */
function cells(group) {
  const { kind, system, name, reason, sample, count, first_at: first, last_at: last, page } = group;
  const text = reasonText(reason);
  return [
    element("th", { scope: "row", class: "text" }, element("div", { class: "clip" }, link(page, text)), errorInList(sample).trim() !== reason && element("div", { class: "clip hint" }, errorInList(sample))),
    cell("Name", element("span", {}, name || "no type", name !== system && element("div", { class: "hint" }, systemTitle(system)))),
    cell("Count", number(count), "number"),
    cell("First seen", moment(first), "nowrap"),
    cell("Last seen", moment(last), "nowrap"),
    cell("Last 24 hours", spark(group.by_hour), "nowrap"),
    mayAct && element("td", { class: "number" }, rowButton(`${VERBS[kind]} …`, `${name || "no type"}, ${text}`, () => replay(group))),
  ];
}

/** A bar for each hour. @param {number[]} hours */
function spark(hours) {
  const most = Math.max(...hours, 1);
  const total = hours.reduce((sum, count) => sum + count, 0);
  const bars = hours.map((count, hour) => `M${hour} 16h.8v${count ? -2 - (14 * count) / most : -1}h-.8z`);
  return svg("svg", { class: "spark", viewBox: `0 0 ${hours.length} 16`, preserveAspectRatio: "none", role: "img", "aria-label": `${number(total)} in the last 24 hours` }, svg("path", { d: bars.join("") }));
}

/** @param {FailureGroup} group */
function replay({ id, kind, name, reason, count, last_at: until }) {
  const verb = VERBS[kind];
  askFor({
    title: `${verb} ${many(count, "failure")} of ${name || "no type"}?`, verb, text: `${reasonText(reason)}. Later failures with this reason are left alone.`,
    async act() {
      const { replayed, of, is_complete: isAll } = await post(`/failures/${id}/replay`, { until });
      list.refresh();
      return `${number(replayed)} of ${number(of)} ${verb === "Retry" ? "retried" : "replayed"}${isAll ? "" : "; there may be more"}`;
    },
  });
}

const list = new List({ load, cells, id: ({ id }) => id });
const refresh = seldom(async () => list.refresh(), REFRESH_INTERVAL);
onOverview(refresh);
