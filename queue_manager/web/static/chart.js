// What was done and what failed in 24 hours: done above the line, failed below it, in one scale.

import { at, number } from "./clock.js";
import { element } from "./dom.js";

const UP = 30;
const DOWN = 12;
const SEEN = 1.2; // height of the smallest bar that can be seen

/** @param {string} name @param {Record<string, string | number>} attributes @param {...Node | string} children */
function svg(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  made.append(...children);
  return made;
}

/** @param {string} kind @param {number[]} counts @param {number} scale @param {1 | -1} direction */
function bars(kind, counts, scale, direction) {
  /** @param {number} count @param {number} index */
  const one = (count, index) => (count ? `M${index + 0.1} ${UP}v${direction * Math.max(count * scale, SEEN)}h.8V${UP}z` : "");
  return svg("path", { class: kind, d: counts.map(one).join("") });
}

/**
 * A bucket of `seconds` shows its counts when the pointer or the arrow keys select it.
 * @param {string} title @param {OutcomeCounts} counts @param {Moment} begins @param {number} seconds
 */
export function chart(title, counts, begins, seconds) {
  const { done, failed } = counts;
  /** @param {(list: number[]) => number} of */
  const text = (of) => Object.entries(counts).filter(([name, list]) => of(list) || name === "done").map(([name, list]) => `${number(of(list))} ${name}`).join(", ");
  /** @param {number} index */
  const time = (index) => new Date(at(begins) + index * seconds * 1000).toISOString().slice(11, 16);
  /** @param {number} index */
  const bucket = (index) => `${time(index)} to ${time(index + 1)} UTC: ${text((list) => list[index])}`;
  const total = `24 h: ${text((list) => list.reduce((sum, count) => sum + count, 0))}`;
  const scale = Math.min(UP / Math.max(...done, 1), DOWN / Math.max(...failed, 1));
  const caption = element("figcaption", { "aria-live": "polite" }, total);
  let shown = done.length;
  const drawn = svg("svg", { class: "chart", viewBox: `0 0 ${done.length} ${UP + DOWN}`, preserveAspectRatio: "none", role: "img", tabindex: 0, "aria-label": `${title}, ${total}` },
    bars("done", done, scale, -1), bars("failed", failed, scale, 1),
    svg("rect", { class: "axis", y: UP, width: done.length, height: 0.4 }),
    ...done.map((_, index) => svg("rect", { class: "bucket", x: index, width: 1, height: UP + DOWN }, svg("title", {}, bucket(index)))));
  /** @param {number} index */
  const point = (index) => {
    drawn.querySelector(".pointed")?.classList.remove("pointed");
    shown = index;
    drawn.querySelectorAll(".bucket")[shown]?.classList.add("pointed");
    caption.textContent = shown < done.length ? bucket(shown) : total;
  };
  drawn.addEventListener("keydown", ({ key }) => {
    const step = key === "ArrowLeft" ? -1 : key === "ArrowRight" ? 1 : 0;
    if (step) point(Math.min(Math.max(shown + step, 0), done.length - 1));
  });
  drawn.addEventListener("pointerover", ({ target }) => {
    const index = [...drawn.querySelectorAll(".bucket")].indexOf(/** @type {HTMLElement} */ (target));
    if (index >= 0) point(index);
  });
  for (const name of ["blur", "pointerleave"]) drawn.addEventListener(name, () => point(done.length));
  return element("figure", {}, drawn, caption);
}
