// Makes and finds elements. Every string goes in as text, never as markup.

let count = 0;

/** An id that no other element has. */
export function freshId(stem) {
  count += 1;
  return `${stem}-${count}`;
}

/** An element. Attributes: functions under `on...` listen, booleans are set as properties, null is left out. */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (typeof value === "boolean") made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

/** Text in which pieces between backticks are code. */
export function prose(text) {
  return text.split("`").map((piece, index) => (index % 2 ? el("code", {}, piece) : piece));
}

/** A push button. */
export function button(text, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, text);
}

/** What the element shows becomes exactly these. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
}

/** Text that changes only if it differs: a live region would repeat itself otherwise. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const byId = (id) => document.getElementById(id);

/** Says something to a screen reader, without taking the focus. */
export function say(text) {
  setText(byId("say"), text);
}

/** Calls `work` once it hasn't been asked for during `wait` milliseconds. */
export function debounce(work, wait) {
  let timer = 0;
  const asked = () => {
    clearTimeout(timer);
    timer = setTimeout(work, wait);
  };
  asked.cancel = () => clearTimeout(timer);
  return asked;
}
