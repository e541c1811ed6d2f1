// The display settings that this browser stores.

/** By name, the values with their texts; the first is the default. @type {Record<Choice, Record<string, string>>} */
export const CHOICES = {
  times: { utc: "UTC", local: "Local time", relative: "Relative, such as 5 min ago" },
  theme: { system: "As the device", light: "Light", dark: "Dark" },
};

/** @param {Choice} name */
export function chosen(name) {
  const value = kept(name) ?? "";
  return value in CHOICES[name] ? value : Object.keys(CHOICES[name])[0];
}

/** @param {string} key */
export function kept(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null; // this browser keeps nothing
  }
}

/** Return false if this browser stores no data. @param {string} key @param {string} value */
export function keep(key, value) {
  try {
    localStorage.setItem(key, value);
    return true;
  } catch {
    return false;
  }
}
