// The history is at the end of most pages: its scripts are loaded when it scrolls into view.

import { byId } from "./dom.js";

const RETRY_INTERVAL = 2000; // ms after a script could not be loaded
const place = byId("past");

const observer = new IntersectionObserver((entries) => {
  if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
  observer.disconnect();
  import("./history.js").catch((error) => {
    setTimeout(() => observer.observe(place), RETRY_INTERVAL);
    throw error;
  });
}, { rootMargin: "200px" });
observer.observe(place);
