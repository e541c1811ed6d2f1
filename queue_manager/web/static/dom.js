// Elements made here hold what others wrote as text, never as markup.

export const byId = (id) => document.getElementById(id);
export const mayAct = document.body.hasAttribute("data-may-act");

// `properties`: attributes by name, and `on…` listeners; what is undefined, null or false is left out.
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked") made[key] = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false));
  return made;
}

export const button = (text, onclick, kind = "") => element("button", { type: "button", class: kind, onclick }, text);

export const pill = (text, kind = "") => element("span", { class: `pill ${kind}` }, text);

// A list of facts: [name, value] pairs; those without a value are left out.
export function facts(kind, pairs) {
  const shown = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return element("dl", { class: kind }, shown.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

export function toast(text) {
  const note = element("p", {}, text);
  byId("toasts").append(note);
  setTimeout(() => note.remove(), 6000);
}

// Say what went wrong for the whole page; an empty text takes it back.
export function complain(text = "") {
  if (byId("problem").textContent !== text) byId("problem").textContent = text;
}

// On a narrow screen the navigation scrolls: show where we are.
for (const here of document.querySelectorAll("nav [aria-current]")) {
  here.parentElement.scrollLeft = here.offsetLeft - here.parentElement.offsetLeft - 16;
}
