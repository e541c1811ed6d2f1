// The field of every page that finds any id: its keys.

import { byId } from "./dom.js";

addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  const hasCommand = event.ctrlKey || event.metaKey;
  const isTyping = /** @type {Element} */ (event.target).matches("input, textarea, select");
  const isFree = !hasCommand && !isTyping && !document.getElementById("filter"); // "/" is the list's own search
  if (hasCommand ? event.key.toLowerCase() !== "k" : !isFree || event.key !== "/") return;
  event.preventDefault();
  byId("find").select();
});
