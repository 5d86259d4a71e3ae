// The prompt: a plain text that goes to the model as it is, or its parts, made from the server's schema of them.
import { fieldBox, groupBox } from "./box.js";
import { button, el, fill } from "./dom.js";
import { fieldsOf, loadFields, readFields } from "./fields.js";
import { resolve } from "./schema.js";

/** What the form of the base tasks has no place for. */
const REFERENCE_ONLY = ["summary", "task_types", "subjects", "retention"];

export function createPrompt(schema, context, onChange) {
  const text = fieldBox("Prompt", el("textarea", { rows: "6", required: "" }), "What happens in the clip, and what is heard.", { wide: true });
  const object = (schema.anyOf || []).map((kind) => resolve(kind, context.schemas)).find((kind) => kind.properties);
  const { fields, elements } = fieldsOf(object, { ...context, onChange });
  const parts = groupBox("Prompt by its parts", el("div", { class: "grid" }, ...elements), { hint: "The server puts them into the form that the model was trained on." });
  const chips = el("div", { class: "chips", role: "group", "aria-label": "Labels to insert" });
  const isParts = fieldBox("By its parts: shots, dialogue, sound", el("input", { type: "checkbox", role: "switch" }));
  const element = el("section", { class: "block", "aria-label": "Prompt" }, text.element, parts.element, chips, isParts.element);
  let last = text.control;

  function arrange() {
    const structured = isParts.control.checked;
    text.element.hidden = structured;
    text.control.required = !structured;
    parts.element.hidden = !structured;
    last = structured ? parts.element.querySelector("textarea") : text.control;
  }

  isParts.control.addEventListener("change", () => {
    arrange();
    onChange();
  });
  text.control.addEventListener("input", onChange);
  element.addEventListener("focusin", (event) => {
    if (event.target.tagName === "TEXTAREA") last = event.target;
  });
  arrange();

  function insert(label) {
    last.setRangeText(label, last.selectionStart, last.selectionEnd, "end");
    last.focus();
    onChange();
  }

  return {
    element,
    focus: () => text.focus(),
    isEmpty: () => !isParts.control.checked && text.control.value.trim() === "",
    /** forReferences: the parts that only a clip with references takes are there. */
    arrangeFor(forReferences) {
      for (const name of REFERENCE_ONLY) {
        if (!fields[name]) continue;
        fields[name].element.hidden = !forReferences;
        if (!forReferences) fields[name].load(undefined);
      }
    },
    setLabels(labels) {
      chips.hidden = labels.length === 0;
      fill(chips, ...labels.map((label) => button(label, () => insert(label), { class: "chip", "aria-label": `Insert ${label} into the prompt` })));
    },
    write(request) {
      const structured = isParts.control.checked;
      const value = structured ? readFields(fields) || {} : text.control.value;
      if (structured || value.trim()) request.prompt = value;
    },
    load({ prompt = "" }) {
      isParts.control.checked = typeof prompt === "object";
      if (typeof prompt === "object") loadFields(fields, prompt);
      else text.control.value = prompt;
      arrange();
    },
    at([first, ...rest]) {
      if (!isParts.control.checked) return text;
      return (first !== undefined && fields[first]?.at(rest)) || parts;
    },
  };
}
