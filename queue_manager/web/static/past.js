// The history is at the end of most pages: its scripts are loaded when it scrolls into view.

import { byId } from "./dom.js";

new IntersectionObserver((entries, observer) => {
  if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
  observer.disconnect();
  import("./history.js");
}, { rootMargin: "200px" }).observe(byId("past"));
