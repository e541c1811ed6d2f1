// The colours that somebody chose in this browser. Not a module, so that it runs before the page is drawn.

try {
  document.documentElement.dataset.theme = localStorage.getItem("theme") ?? "system";
} catch {
  // This browser keeps nothing; the colours are those of the system.
}
