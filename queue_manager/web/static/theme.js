// Applies the chosen colors. Not a module, so that it runs before the page is drawn.

try {
  document.documentElement.dataset.theme = localStorage.getItem("theme") ?? "system";
} catch {
  // This browser stores no data; the colors are those of the system.
}
