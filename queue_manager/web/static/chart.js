// What was done and what failed in 24 hours: done above the line, failed below it, in one scale.

import { at, number } from "./clock.js";
import { element } from "./dom.js";

const UP = 30;
const DOWN = 12;
const SEEN = 1.2; // height of the smallest bar that can be seen

const clock = (ms) => new Date(ms).toISOString().slice(11, 16);

function svg(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function bars(kind, counts, scale, direction) {
  const one = (count, index) => (count ? `M${index + 0.1} ${UP}v${direction * Math.max(count * scale, SEEN)}h.8V${UP}z` : "");
  return svg("path", { class: kind, d: counts.map(one).join("") });
}

// A figure of `counts` ({done, failed, retried}, oldest first). A bucket says its counts under the pointer, and by the
// arrow keys while the chart has the focus.
export function chart(title, counts, begins, seconds) {
  const { done, failed } = counts;
  const told = (of) => Object.keys(counts).map((name) => [of(counts[name]), name]).filter(([count, name]) => count || name === "done").map(([count, name]) => `${number(count)} ${name}`).join(", ");
  const from = (index) => at(begins) + index * seconds * 1000;
  const bucket = (index) => `${clock(from(index))} to ${clock(from(index + 1))} UTC: ${told((list) => list[index])}`;
  const total = `24 h: ${told((list) => list.reduce((sum, count) => sum + count, 0))}`;
  const scale = Math.min(UP / Math.max(...done, 1), DOWN / Math.max(...failed, 1));
  const caption = element("figcaption", { "aria-live": "polite" }, total);
  let shown = done.length;
  const drawn = svg("svg", { class: "chart", viewBox: `0 0 ${done.length} ${UP + DOWN}`, preserveAspectRatio: "none", role: "img", tabindex: 0, "aria-label": `${title}, ${total}` },
    bars("done", done, scale, -1), bars("failed", failed, scale, 1),
    svg("rect", { class: "axis", y: UP, width: done.length, height: 0.4 }),
    ...done.map((_, index) => svg("rect", { class: "bucket", x: index, width: 1, height: UP + DOWN }, svg("title", {}, bucket(index)))));
  const point = (index) => {
    drawn.querySelector(".pointed")?.classList.remove("pointed");
    drawn.querySelectorAll(".bucket")[(shown = index)]?.classList.add("pointed");
    caption.textContent = shown < done.length ? bucket(shown) : total;
  };
  drawn.addEventListener("keydown", ({ key }) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (step) point(Math.min(Math.max(shown + step, 0), done.length - 1));
  });
  drawn.addEventListener("pointerover", ({ target }) => target.matches(".bucket") && point([...drawn.querySelectorAll(".bucket")].indexOf(target)));
  for (const name of ["blur", "pointerleave"]) drawn.addEventListener(name, () => point(done.length));
  return element("figure", {}, drawn, caption);
}
