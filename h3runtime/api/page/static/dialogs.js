// Dialogs: one asks for the key, one shows text to copy, one asks whether to go on. Escape closes each of them.
import { button, el, say } from "./dom.js";

/** Shows a modal dialog until it closes; resolves to its return value ("" for Escape). */
function show(dialog) {
  document.body.append(dialog);
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue);
    });
    dialog.showModal();
  });
}

function frame(heading, ...content) {
  const id = `dialog-${heading.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return el("dialog", { "aria-labelledby": id }, el("h2", { id }, heading), ...content);
}

/** The key, or null if none is given. wasRefused: there was one, and the server didn't take it. */
export async function askForKey(wasRefused) {
  const why = wasRefused ? "The server does not accept this key." : "This server asks for a key.";
  const input = el("input", { id: "key", type: "password", autocomplete: "off", spellcheck: "false", required: true });
  const form = el(
    "form",
    { method: "dialog" },
    el("p", { role: "status" }, `${why} It stays in this tab and is forgotten when the tab closes.`),
    el("label", { for: "key" }, "Key"),
    input,
    el(
      "div",
      { class: "actions" },
      el("button", { value: "use", class: "primary" }, "Use this key"),
      el("button", { value: "", formnovalidate: "" }, "Not now"),
    ),
  );
  const answer = await show(frame("Key needed", form));
  return answer === "use" ? input.value.trim() : null;
}

/** Puts text on the clipboard. A page that isn't served over https or from this machine has no other way. */
async function copyText(text, from) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    from.select();
    return document.execCommand("copy");
  }
}

export async function showText(heading, text, note) {
  const area = el("textarea", { readonly: "", rows: "12", spellcheck: "false", "aria-label": heading, class: "code" });
  area.value = text;
  const told = el("span", { role: "status", class: "muted" });
  const copy = button(
    "Copy",
    async () => {
      told.textContent = (await copyText(text, area)) ? "Copied." : "Press Ctrl+C to copy.";
    },
    { class: "primary" },
  );
  const dialog = frame(heading, note ? el("p", { class: "muted" }, note) : null, area);
  dialog.append(el("div", { class: "actions" }, copy, button("Close", () => dialog.close()), told));
  dialog.classList.add("wide");
  await show(dialog);
}

/** Whether the person says yes. */
export async function confirmed(heading, text, yes) {
  const dialog = frame(
    heading,
    el("p", {}, text),
    el(
      "form",
      { method: "dialog", class: "actions" },
      el("button", { value: "yes", class: "danger" }, yes),
      el("button", { value: "" }, "Keep it"),
    ),
  );
  return (await show(dialog)) === "yes";
}

/** Copies a short text without a dialog where the browser lets it, and says so. */
export async function copyQuietly(what, text) {
  try {
    await navigator.clipboard.writeText(text);
    say(`${what} copied.`);
  } catch {
    await showText(what, text);
  }
}
