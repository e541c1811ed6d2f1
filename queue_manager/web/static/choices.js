// What somebody chose in this browser.

/** By name, the values with their texts; the first is the default. @type {Record<Choice, Record<string, string>>} */
export const CHOICES = {
  times: { utc: "UTC", local: "Local time", relative: "Relative, such as 5 min ago" },
  theme: { system: "As the system", light: "Light", dark: "Dark" },
};

/** @param {Choice} name */
export function chosen(name) {
  let value = "";
  try {
    value = localStorage.getItem(name) ?? "";
  } catch {
    // This browser keeps nothing.
  }
  return value in CHOICES[name] ? value : Object.keys(CHOICES[name])[0];
}

/** @param {Choice} name @param {string} value */
export function choose(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // It holds until the page is left.
  }
}
