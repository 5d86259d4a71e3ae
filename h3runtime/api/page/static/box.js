// One labelled control with its hint and its error: what every field of the form is put into.
import { el, freshId, prose } from "./dom.js";

/** The control, with a label, a hint and a place for what is wrong with it. `setError("")` takes that back. */
export function fieldBox(label, control, hint = "", { wide = false } = {}) {
  control.id ||= freshId("field");
  const hintId = hint ? `${control.id}-hint` : null;
  const error = el("p", { class: "error", id: `${control.id}-error`, hidden: true });
  if (hintId) control.setAttribute("aria-describedby", hintId);
  const isCheck = control.type === "checkbox";
  const name = el("label", { for: control.id }, label);
  const element = el(
    "div",
    { class: `field${isCheck ? " check" : ""}${wide ? " wide" : ""}` },
    ...(isCheck ? [control, name] : [name, control]),
    hint ? el("p", { class: "hint", id: hintId }, ...prose(hint)) : null,
    error,
  );
  return { element, control, ...errorPlace(error, control, hintId) };
}

/** Shows an error in `place` and ties it to the control that is at fault. */
export function errorPlace(place, control, hintId = null) {
  return {
    setError(text) {
      place.textContent = text;
      place.hidden = !text;
      const described = [text ? place.id : null, hintId].filter(Boolean).join(" ");
      if (described) control.setAttribute("aria-describedby", described);
      else control.removeAttribute("aria-describedby");
      if (text) control.setAttribute("aria-invalid", "true");
      else control.removeAttribute("aria-invalid");
    },
    focus() {
      for (let node = control.parentElement; node; node = node.parentElement) {
        if (node.tagName === "DETAILS") node.open = true;
      }
      control.focus();
    },
  };
}

/** A group of controls that can be at fault as a whole. */
export function groupBox(label, content, { hint = "", element = "fieldset" } = {}) {
  const id = freshId("group");
  const error = el("p", { class: "error", id: `${id}-error`, hidden: true });
  const attributes = element === "fieldset" ? { tabindex: "-1" } : { tabindex: "-1", role: "group", "aria-label": label };
  const group = el(
    element,
    { class: "group", id, ...attributes },
    element === "fieldset" ? el("legend", {}, label) : null,
    hint ? el("p", { class: "hint" }, ...prose(hint)) : null,
    error,
    content,
  );
  return { element: group, ...errorPlace(error, group) };
}
