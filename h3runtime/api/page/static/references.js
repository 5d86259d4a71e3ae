// References in the order in which the prompt numbers them, with the labels that they get and how each is used.
import { errorPlace } from "./box.js";
import { button, el, fill, freshId, say } from "./dom.js";
import { asMedium, dropZone, facts, openMedium, thumbnail } from "./media.js";

const KINDS = ["image", "video", "audio"];
const NOUNS = { image: "Picture", video: "Video", audio: "Audio" };

export function createReferences(onChange) {
  let items = [];
  const list = el("ol", { class: "references", "aria-label": "References" });
  const zone = dropZone("Add references: pictures, clips, sounds", KINDS, add, { many: true });
  const hint = el("p", { class: "hint" }, "The order counts: the prompt names them by the labels they get here.");
  const element = el("section", { class: "block", "aria-label": "References" }, el("h3", {}, "References"), hint, list, zone.element);

  async function add(files) {
    for (const file of files) items.push(itemOf(await openMedium(file)));
    changed();
    say(`${files.length} added, ${items.length} references.`);
  }

  function itemOf(medium) {
    const item = { medium, id: freshId("reference"), sound: "auto", start: "", size: "match" };
    const error = el("p", { class: "error", id: `${item.id}-error`, hidden: true });
    item.labels = el("span", { class: "labels" });
    item.up = button("↑", () => shift(item, -1), { class: "quiet", "aria-label": `Move ${medium.name} up` });
    item.down = button("↓", () => shift(item, 1), { class: "quiet", "aria-label": `Move ${medium.name} down` });
    const remove = button("Remove", () => drop(item), { class: "quiet", "aria-label": `Remove reference ${medium.name}` });
    const told = el("div", { class: "told" }, item.labels, el("span", { class: "name" }, medium.name), el("span", { class: "muted" }, facts(medium)));
    const moves = el("div", { class: "actions" }, item.up, item.down, remove);
    item.element = el("li", { class: "medium" }, thumbnail(medium), told, options(item), moves, error);
    Object.assign(item, errorPlace(error, remove));
    return item;
  }

  /** What is asked about a reference depends on its kind. */
  function options(item) {
    const made = [];
    if (item.medium.kind === "image") made.push(pick(item, "size", "Size", { match: "as the target", max: "as large as it is" }));
    if (item.medium.kind === "video") made.push(pick(item, "sound", "Its sound", { auto: "used", off: "left out" }));
    if (item.medium.kind !== "image") {
      const input = el("input", { type: "number", id: `${item.id}-start`, min: "0", step: "any", placeholder: "0", inputmode: "decimal" });
      input.addEventListener("input", () => {
        item.start = input.value;
        onChange();
      });
      made.push(el("div", { class: "field" }, el("label", { for: input.id }, "From second"), input));
    }
    return el("div", { class: "row" }, ...made);
  }

  function pick(item, name, label, words) {
    const choices = Object.entries(words).map(([value, text]) => el("option", { value }, text));
    const select = el("select", { id: `${item.id}-${name}` }, ...choices);
    select.addEventListener("change", () => {
      item[name] = select.value;
      changed();
    });
    return el("div", { class: "field" }, el("label", { for: select.id }, label), select);
  }

  function shift(item, by) {
    const from = items.indexOf(item);
    const to = from + by;
    if (to < 0 || to >= items.length) return;
    items.splice(from, 1);
    items.splice(to, 0, item);
    changed();
    const held = by < 0 ? item.up : item.down;
    (held.disabled ? (by < 0 ? item.down : item.up) : held).focus();
    say(`${item.medium.name} is now ${to + 1} of ${items.length}.`);
  }

  function drop(item) {
    items = items.filter((each) => each !== item);
    URL.revokeObjectURL(item.medium.url);
    changed();
    say(`${item.medium.name} removed.`);
    zone.input.focus();
  }

  /** The labels of each: a clip whose sound is used has two. */
  function labelled() {
    const counts = { image: 0, video: 0, audio: 0 };
    return items.map((item) => {
      const kinds = item.medium.kind === "video" && item.sound === "auto" && item.medium.hasSound !== false ? ["video", "audio"] : [item.medium.kind];
      return kinds.map((kind) => `<${NOUNS[kind]} ${(counts[kind] += 1)}>`);
    });
  }

  function changed() {
    const labels = labelled();
    items.forEach((item, index) => {
      fill(item.labels, ...labels[index].map((label) => el("code", {}, label)));
      item.up.disabled = index === 0;
      item.down.disabled = index === items.length - 1;
    });
    fill(list, ...items.map((item) => item.element));
    list.hidden = items.length === 0;
    onChange();
  }

  list.hidden = true;
  return {
    element,
    zone,
    labels: () => labelled().flat(),
    clear() {
      items = [];
      changed();
    },
    write(request, files) {
      if (items.length) request.references = items.map((item, index) => reference(item, `reference${index + 1}`, files));
    },
    at: ([index]) => items[index] || zone,
  };
}

function reference({ medium, sound, start, size }, part, files) {
  const made = { type: medium.kind, source: asMedium(medium, part, files) };
  if (medium.kind === "video" && sound === "off") made.audio = "off";
  if (medium.kind !== "image" && start !== "" && Number(start) !== 0) made.start = Number(start);
  if (medium.kind === "image" && size === "max") made.size = "max";
  return made;
}
