// The saved views of a page and the columns of its list, which this browser stores. A view is a link.

import { Problem, attempt } from "./api.js";
import { keep, kept } from "./choices.js";
import { askFor, show } from "./dialog.js";
import { byId, button, copier, element, filled, toast } from "./dom.js";

const HIDDEN = `hidden ${location.pathname}`;
const NONE = "none"; // of the columns are hidden
const KEPT = "Kept in this browser only.";

export class Views {
  constructor() {
    const here = /** @type {HTMLAnchorElement | null} */ (document.querySelector(".side nav [aria-current]"));
    this.key = `views ${here?.pathname ?? location.pathname}`; // the tabs of a page have the same views
    this.sheet = new CSSStyleSheet();
    document.adoptedStyleSheets.push(this.sheet);
    /** The columns that can be hidden, by position. The first column names the row. */
    this.columns = [...byId("list").querySelectorAll("th")].map((head, index) => ({ title: (head.textContent ?? "").trim(), place: index + 1 })).slice(byId("pick-all") ? 2 : 1);
    byId("save-view").addEventListener("click", () => this.save("Save", "", this.address));
    byId("columns").addEventListener("click", () => this.choose());
    addEventListener("storage", () => this.show());
  }

  /** The URLs by name. @returns {Record<string, string>} */
  get all() {
    try {
      return JSON.parse(kept(this.key) ?? "{}");
    } catch {
      return {};
    }
  }

  /** Change the views as they are now, also by other tabs; undefined removes one. @param {Record<string, string | undefined>} changes */
  keep(changes) {
    if (!keep(this.key, JSON.stringify({ ...this.all, ...changes }))) throw new Problem(0, { message: "This browser does not allow this site to store data: allow it in the browser's settings" });
    this.show();
  }

  /** The titles of the columns that are hidden: those of the URL, or else those that were chosen here. */
  get hidden() {
    return (new URLSearchParams(location.search).get("hide") ?? kept(HIDDEN) ?? "").split(",");
  }

  // The URL of the list as it is shown, from its beginning.
  get address() {
    const values = new URLSearchParams(location.search);
    values.delete("cursor");
    values.set("hide", this.hidden.join() || NONE);
    values.sort();
    return `${location.pathname}?${values}`;
  }

  // Prints have all columns.
  show() {
    const { hidden, address, all } = this;
    const rules = this.columns.filter(({ title }) => hidden.includes(title)).map(({ place }) => `#list tr > :nth-child(${place}) { display: none !important; }`);
    this.sheet.replaceSync(`@media screen { ${rules.join(" ")} }`);
    const chips = Object.entries(all).sort(([one], [other]) => one.localeCompare(other)).map(([name, url]) => element("span", { class: "chip" },
      element("a", { href: url, "aria-current": url === address && "page" }, name),
      filled(button("…", () => this.manage(name, url), "quiet"), { "aria-label": `Change the view ${name}` })));
    byId("views").hidden = !chips.length;
    byId("views").replaceChildren(...chips);
  }

  /** @param {string} name @param {string} url */
  manage(name, url) {
    const change = (/** @type {string | undefined} */ changed, /** @type {Child} */ text) => attempt(async () => {
      this.keep({ [name]: changed });
      toast(text);
    });
    show(name, [element("p", { class: "soft" }, `${KEPT} The link shows others the same list.`), element("div", {}, copier("link", location.origin + url))], [
      ["Delete", () => change(undefined, [`Deleted ${name}. `, button("Undo", () => change(url, `Restored ${name}`), "quiet")]), "danger"],
      ["Rename …", () => this.save("Rename", name, url)],
      ["Replace with this list", () => change(this.address, `Replaced ${name}`)],
    ]);
  }

  /** @param {string} verb @param {string} before the name of a view that is renamed @param {string} url */
  save(verb, before, url) {
    askFor({
      title: `${verb} the view`, verb, text: `Saves the filter, order, tab and columns of the list. ${KEPT}`,
      fields: [{ name: "name", label: "Name", value: before, isNeeded: true, hint: "Replaces the view that has this name" }],
      act: async ({ name }) => {
        this.keep({ [before]: undefined, [name]: url });
      },
    });
  }

  choose() {
    const { columns, hidden } = this;
    askFor({
      title: "Columns", verb: "Show", text: `${KEPT} Exports and printouts have all columns.`,
      fields: columns.map(({ title, place }) => ({ name: `column-${place}`, label: title, kind: "check", value: !hidden.includes(title) })),
      act: async (chosen) => {
        const titles = columns.filter(({ place }) => !(`column-${place}` in chosen)).map(({ title }) => title).join();
        const url = new URL(location.href);
        if (!keep(HIDDEN, titles) || url.searchParams.has("hide")) url.searchParams.set("hide", titles || NONE);
        history.replaceState(history.state, "", url);
        this.show();
      },
    });
  }
}
