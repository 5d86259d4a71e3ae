// Shows what the server refuses beside the fields that it names, and in one list that can be followed by keyboard.
import { button, el, fill } from "./dom.js";

/** place(field): who shows errors of a field, or null. summary: the element of the list. */
export function createProblems(place, summary) {
  let shown = [];

  function clear() {
    for (const host of new Set(shown)) host.setError("");
    shown = [];
    summary.hidden = true;
    fill(summary);
  }

  /** errors: [{field, message, legal}]. loud: after a press of the button, so that they are read out at once. */
  function show(errors, { heading, loud }) {
    clear();
    const texts = new Map();
    for (const error of errors) {
      const host = place(error.field);
      if (host) texts.set(host, [...(texts.get(host) || []), wording(error)]);
    }
    for (const [host, lines] of texts) host.setError(lines.join("; "));
    shown = [...texts.keys()];
    const strays = errors.filter((error) => !place(error.field));
    if (!loud && strays.length === 0) return;
    summary.setAttribute("role", loud ? "alert" : "status");
    summary.hidden = false;
    fill(summary, el("p", {}, heading), el("ul", {}, ...(loud ? errors : strays).map(line)));
  }

  function line(error) {
    const host = place(error.field);
    const text = `${error.field}: ${error.message}`;
    return el("li", {}, host ? button(text, () => host.focus(), { class: "link" }) : text);
  }

  return { show, clear };
}

function wording(error) {
  const legal = error.legal && !error.message.includes(error.legal) ? ` (legal: ${error.legal})` : "";
  return `${error.message}${legal}`;
}
