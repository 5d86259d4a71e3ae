// Controls made from schemas. Each has `read()` (undefined: not given), `load(value)` and `at(path)` for its errors.
import { errorPlace, fieldBox, groupBox } from "./box.js";
import { button, el, freshId } from "./dom.js";
import { choicesOf, kindOf, resolve } from "./schema.js";
import { title } from "./words.js";

/** context: schemas, onChange, and `options(name)`: a backend family's choices, from /ready. */
export function schemaField(name, raw, context, label = title(name)) {
  const schema = resolve(raw, context.schemas);
  const make = { choice, switch: toggle, number, text, prose, group, list, json }[kindOf(schema)];
  return make(label, schema, context, name);
}

function simple(label, control, schema, context, read, load, settings) {
  const box = fieldBox(label, control, schema.description || "", settings);
  control.addEventListener(control.tagName === "SELECT" || control.type === "checkbox" ? "change" : "input", context.onChange);
  return { ...box, read, load, at: () => box };
}

function choice(label, schema, context, name) {
  const absent = el("option", { value: "" }, schema.default === undefined ? "not given" : `${schema.default} (default)`);
  const known = choicesOf(schema);
  // A list has no empty choice where the server asks for one of its names.
  const listed = context.isRequired ? known : known.filter((value) => value !== schema.default);
  const options = listed.map((value) => {
    const why = context.whyNot?.(name, value);
    return el("option", { value: String(value), disabled: Boolean(why) }, why ? `${value}: ${why}` : String(value));
  });
  const control = el("select", {}, context.isRequired ? null : absent, ...options);
  const read = () => known.find((value) => control.value !== "" && String(value) === control.value);
  return simple(label, control, schema, context, read, (value) => {
    control.value = value === undefined || (!context.isRequired && value === schema.default) ? "" : String(value);
    if (context.isRequired && control.selectedIndex < 0) control.selectedIndex = 0;
  });
}

function toggle(label, schema, context) {
  const usual = schema.default === true;
  const control = el("input", { type: "checkbox", checked: usual });
  const read = () => (control.checked === usual ? undefined : control.checked);
  return simple(label, control, schema, context, read, (value) => {
    control.checked = value === undefined ? usual : Boolean(value);
  });
}

function number(label, schema, context) {
  const control = el("input", {
    type: "number",
    inputmode: "decimal",
    step: schema.type === "integer" ? "1" : "any",
    min: schema.minimum,
    max: schema.maximum,
    placeholder: schema.default,
  });
  // What isn't a number is sent as what it is, so that the server says so: left out, it would be ignored.
  const nothing = () => (control.validity.badInput ? "?" : undefined);
  const read = () => (control.value === "" ? nothing() : Number(control.value));
  return simple(label, control, schema, context, read, (value) => {
    control.value = value === undefined || value === schema.default ? "" : value;
  });
}

function text(label, schema, context) {
  const control = el("input", { type: "text", placeholder: schema.default, spellcheck: "false", autocomplete: "off" });
  const read = () => (control.value.trim() === "" ? undefined : control.value.trim());
  return simple(label, control, schema, context, read, (value) => {
    control.value = value === undefined || value === schema.default ? "" : String(value);
  });
}

function prose(label, schema, context) {
  // No `maxlength`: what is pasted would be cut without a word.
  const control = el("textarea", { rows: "2" });
  const read = () => (control.value.trim() === "" ? undefined : control.value);
  return simple(label, control, schema, context, read, (value = "") => {
    control.value = value;
  }, { wide: true });
}

function json(label, schema, context) {
  const control = el("textarea", { rows: "2", class: "code", spellcheck: "false", placeholder: "JSON" });
  const read = () => {
    if (control.value.trim() === "") return undefined;
    try {
      return JSON.parse(control.value);
    } catch {
      return control.value; // the server says what is wrong with it
    }
  };
  return simple(label, control, schema, context, read, (value) => {
    control.value = value === undefined ? "" : JSON.stringify(value);
  }, { wide: true });
}

/** An object: undefined while nothing in it is given. */
function group(label, schema, context) {
  const { fields, elements } = fieldsOf(schema, context);
  const box = groupBox(label, el("div", { class: "grid" }, ...elements), { hint: schema.description });
  return {
    ...box,
    fields,
    read: () => readFields(fields),
    load: (value) => loadFields(fields, value),
    at: ([first, ...rest]) => fields[first]?.at(rest) || box,
  };
}

/** The controls of an object's properties. leftOut: names that somebody else takes care of. */
export function fieldsOf(schema, context, leftOut = []) {
  const fields = {};
  for (const [name, property] of Object.entries(schema.properties)) {
    if (leftOut.includes(name)) continue;
    const isRequired = (schema.required || []).includes(name);
    fields[name] = schemaField(name, property, { ...context, isRequired });
  }
  return { fields, elements: Object.values(fields).map((field) => field.element) };
}

export function readFields(fields) {
  const read = {};
  for (const [name, field] of Object.entries(fields)) {
    const value = field.read();
    if (value !== undefined) read[name] = value;
  }
  return Object.keys(read).length ? read : undefined;
}

export function loadFields(fields, value) {
  for (const [name, field] of Object.entries(fields)) field.load(value?.[name]);
}

function list(label, schema, context, name) {
  const item = resolve(schema.items, context.schemas);
  if (kindOf(item) === "choice") return manyOf(label, schema, item, context);
  if (kindOf(item) === "group") return objects(label, schema, item, context, name);
  return item.type === "integer" ? numbers(label, schema, context) : json(label, schema, context);
}

/** Whole numbers, written with commas between them. */
function numbers(label, schema, context) {
  const field = text(label, { ...schema, default: undefined, maxLength: undefined }, context);
  const read = () => field.control.value.split(",").map((part) => part.trim()).filter(Boolean).map((part) => (/^\d+$/.test(part) ? Number(part) : part));
  return {
    ...field,
    read: () => (read().length ? read() : undefined),
    load: (value = []) => {
      field.control.value = value.join(", ");
    },
  };
}

function manyOf(label, schema, item, context) {
  const boxes = choicesOf(item).map((value) => {
    const control = el("input", { type: "checkbox", value, id: freshId("choice"), onchange: context.onChange });
    return { control, element: el("div", { class: "field check" }, control, el("label", { for: control.id }, String(value))) };
  });
  const box = groupBox(label, el("div", { class: "grid" }, ...boxes.map((each) => each.element)), { hint: schema.description });
  const read = () => boxes.filter((each) => each.control.checked).map((each) => each.control.value);
  return {
    ...box,
    read: () => (read().length ? read() : undefined),
    load: (value = []) => boxes.forEach((each) => (each.control.checked = value.includes(each.control.value))),
    at: () => box,
  };
}

/** A list of objects that grows and shrinks. least: how many there always are. */
function objects(label, schema, item, context, name) {
  const least = context.isRequired ? 1 : 0;
  const one = ONE[name] || `to ${label.toLowerCase()}`;
  const rows = el("div", { class: "rows" });
  const error = el("p", { class: "error", id: freshId("error"), hidden: true });
  const add = button(`Add ${one}`, () => {
    append();
    context.onChange();
    items.at(-1).element.querySelector("input, textarea, select").focus();
  });
  const element = el("div", { class: "field wide list", role: "group", "aria-label": label }, rows, error, el("div", {}, add));
  const place = errorPlace(error, add);
  let items = [];

  function append(value) {
    const made = { ...fieldsOf(item, { ...context, onChange: context.onChange }) };
    const remove = button("Remove", () => {
      items = items.filter((each) => each !== made);
      made.element.remove();
      number();
      context.onChange();
      add.focus();
    }, { class: "quiet" });
    made.title = el("legend", {}, "");
    made.remove = remove;
    made.element = el("fieldset", { class: "group" }, made.title, el("div", { class: "grid" }, ...made.elements), remove);
    if (value) loadFields(made.fields, value);
    items.push(made);
    rows.append(made.element);
    number();
  }

  function number() {
    items.forEach((each, index) => {
      each.title.textContent = `${title(one)} ${index + 1}`;
      each.remove.setAttribute("aria-label", `Remove ${one} ${index + 1}`);
      each.remove.hidden = items.length <= least;
    });
  }

  function load(value = []) {
    items = [];
    rows.replaceChildren();
    for (const each of value) append(each);
    while (items.length < least) append();
  }

  load();
  return {
    element,
    ...place,
    load,
    read: () => (items.length ? items.map((each) => readFields(each.fields) || {}) : undefined),
    at: ([index, field, ...rest]) => items[index]?.fields[field]?.at(rest) || place,
  };
}

const ONE = { shots: "shot", dialogue: "line", subjects: "subject", retention: "retention", audio: "span", attention_plan: "step range", loras: "LoRA" };
