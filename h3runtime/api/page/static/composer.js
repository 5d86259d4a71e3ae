// The form as a whole: which parts a way of making shows, the request that they add up to, and where errors belong.
import { button, byId, el, fill, say } from "./dom.js";
import { BACKENDS, withNames } from "./backends.js";
import { createCanvas } from "./canvas.js";
import { createContinuation, createEditing } from "./editing.js";
import { fieldsOf, loadFields, readFields, schemaField } from "./fields.js";
import { createLength } from "./length.js";
import { asMedium, kindOfFile, mediaSlot, openMedium } from "./media.js";
import { parsePath } from "./paths.js";
import { createPrompt } from "./prompt.js";
import { createReferences } from "./references.js";
import { WAYS, wayOf } from "./tasks.js";
import { createTimeline } from "./timeline.js";

/** Fields that have a part of their own. All others that the server describes are made from its schema. */
const OWN = ["prompt", "task", "width", "height", "aspect_ratio", "short_edge", "frames", "seconds", "first_frame", "last_frame", "continue_from", "keyframes", "references", "source", "masks"];
const BASIC = ["steps", "seed", "n"];
/** Of the rest, what is asked for most; then the server's own order. */
const FIRST = ["sampler", "scheduler", "shift", "audio_shift", "output", "overwrite", "priority", "format", "attention", "linear"];

export function createComposer({ schemas, tasks }, ready, onChange) {
  const context = { schemas, onChange, whyNot: whyNot(ready) };
  const wide = tasks.ref2va.properties;
  let way = "t2va";

  const changed = () => {
    timeline.draw();
    prompt.setLabels(labels());
    length.offerSource(way === "edit" && editing.source.value !== null);
    onChange();
  };
  const prompt = createPrompt(wide.prompt, context, onChange);
  const canvas = createCanvas(ready.limits, onChange);
  const length = createLength(ready.limits, () => changed());
  const first = mediaSlot("First frame", ["image"], () => changed());
  const last = mediaSlot("Last frame", ["image"], () => changed());
  const editing = createEditing(wide.source, wide.masks, context, () => changed());
  const continuation = createContinuation(wide.continue_from, context, () => changed());
  const references = createReferences(() => changed());
  const timeline = createTimeline({
    frames: length.frames,
    ends: () => ({ first: WAYS[way].first ? first.value : null, last: WAYS[way].last ? last.value : null }),
    continued: () => (WAYS[way].continues ? continuation.frames() : 0),
    onChange: () => changed(),
  });
  const ends = el("section", { class: "block ends", "aria-label": "First and last frame" }, first.element, last.element);
  const { fields } = fieldsOf({ properties: rest(wide) }, { ...context, onChange: () => changed() });
  const ways = el("div", { class: "ways" }, ...Object.entries(WAYS).map(([name, { label }]) => wayChoice(name, label)));
  const hint = el("p", { class: "hint", role: "status" });

  function wayChoice(name, label) {
    const input = el("input", { type: "radio", name: "way", value: name, id: `way-${name}`, checked: name === way });
    input.addEventListener("change", () => choose(name));
    return el("div", {}, input, el("label", { for: input.id }, label));
  }

  function choose(name) {
    way = name;
    byId(`way-${name}`).checked = true;
    const shown = WAYS[name];
    hint.textContent = shown.hint;
    first.element.hidden = !shown.first;
    last.element.hidden = !shown.last;
    ends.hidden = !(shown.first || shown.last);
    references.element.hidden = !shown.references;
    editing.element.hidden = !shown.edits;
    continuation.element.hidden = !shown.continues;
    timeline.element.hidden = !shown.guides;
    prompt.arrangeFor(Boolean(shown.references));
    changed();
  }

  function labels() {
    if (WAYS[way].references) return references.labels();
    const shown = [WAYS[way].first && first.value, WAYS[way].last && last.value].filter(Boolean);
    return shown.map((_, index) => `<Picture ${index + 1}>`);
  }

  /** The request and its files by part name. */
  function read() {
    const request = {};
    const files = {};
    const shown = WAYS[way];
    prompt.write(request);
    if (shown.task) request.task = shown.task;
    if (shown.first && first.value) request.first_frame = asMedium(first.value, "first_frame", files);
    if (shown.last && last.value) request.last_frame = asMedium(last.value, "last_frame", files);
    if (shown.references) references.write(request, files);
    if (shown.edits) editing.write(request, files);
    if (shown.continues) continuation.write(request, files);
    if (shown.guides) timeline.write(request, files);
    canvas.write(request);
    length.write(request);
    return { request: { ...request, ...readFields(fields) }, files };
  }

  /** Settings of another request; its media can't be had again, so their places are emptied. */
  function load(request) {
    prompt.load(request);
    canvas.load(request);
    length.load(request);
    loadFields(fields, request);
    for (const part of [timeline, references, editing, continuation]) part.clear();
    first.set(null);
    last.set(null);
    choose(wayOf(request));
  }

  /** Who shows the errors of a field. Null: nobody, so that it is told at the top. */
  function placeOf(field) {
    const [name, ...path] = parsePath(field);
    const own = {
      prompt: () => prompt.at(path),
      first_frame: () => first.at(),
      last_frame: () => last.at(),
      continue_from: () => continuation.at(path),
      keyframes: () => timeline.at(path),
      references: () => references.at(path),
      source: () => editing.at([name, ...path]),
      masks: () => editing.at([name, ...path]),
    };
    for (const side of ["width", "height", "aspect_ratio", "short_edge"]) own[side] = () => canvas.at(side);
    for (const each of ["frames", "seconds"]) own[each] = () => length.at(each);
    const host = own[name] ? own[name]() : fields[name]?.at(path);
    return host ?? null;
  }

  /** A pasted or dropped file goes to the first place that is shown, takes it, and is free. */
  async function takeFiles(files) {
    const kind = kindOfFile(files[0]);
    const shown = WAYS[way];
    const slots = [shown.first && first, shown.last && last].filter(Boolean).filter((slot) => kind === "image" && !slot.value);
    if (slots.length) slots[0].set(await openMedium(files[0]));
    else if (shown.edits && kind === "video" && !editing.source.value) editing.source.set(await openMedium(files[0]));
    else if (shown.edits && kind === "image" && !editing.mask.value) editing.mask.set(await openMedium(files[0]));
    else if (shown.continues && kind === "video" && !continuation.clip.value) continuation.clip.set(await openMedium(files[0]));
    else if (shown.references) return references.zone.take(files);
    else if (shown.guides) return timeline.zone.take(files);
    else if (kind === "image") {
      first.set(await openMedium(files[0]));
      choose("i2va");
    } else if (kind) {
      choose("ref2va");
      return references.zone.take(files);
    } else return say("This file is no picture, clip or sound.");
    changed();
    return say(`${files[0].name} added.`);
  }

  function useJob(name, job) {
    (name === "edit" ? editing : continuation).useJob(job);
    choose(name);
    byId("compose").scrollIntoView({ block: "start" });
    prompt.focus();
    say(`${job.output} is the clip to ${name}.`);
  }

  const dice = button("New seed", () => {
    const drawn = crypto.getRandomValues(new BigUint64Array(1))[0];
    fields.seed.load(String(drawn));
    changed();
  }, { class: "quiet dice" });
  fields.seed?.control.after(dice);
  const basic = el("div", { class: "grid" }, ...BASIC.filter((name) => fields[name]).map((name) => fields[name].element));
  const others = [...FIRST, ...Object.keys(fields)].filter((name, index, all) => fields[name] && !BASIC.includes(name) && all.indexOf(name) === index);
  const advanced = el("details", { id: "advanced", class: "block" }, el("summary", {}, "Advanced"), el("div", { class: "grid" }, ...others.map((name) => fields[name].element)));
  fill(
    byId("fields"),
    el("fieldset", { class: "plain" }, el("legend", {}, "What to make"), ways, hint),
    prompt.element, ends, references.element, editing.element, continuation.element, timeline.element,
    el("div", { class: "pair" }, canvas.element, length.element),
    el("fieldset", { class: "group" }, el("legend", {}, "Sampling"), basic),
    advanced,
  );
  choose(way);

  /** Once the server has loaded it is known what can be chosen. */
  function nameBackends(loaded) {
    for (const name of BACKENDS.filter((each) => fields[each] && loaded[each])) {
      const before = fields[name];
      fields[name] = schemaField(name, withNames(wide[name], loaded[name]), { ...context, onChange: () => changed() });
      fields[name].load(before.read());
      before.element.replaceWith(fields[name].element);
    }
  }

  return { nameBackends, read, load, placeOf, takeFiles, useJob, isEmpty: prompt.isEmpty, focus: prompt.focus };
}

function rest(properties) {
  return Object.fromEntries(Object.entries(properties).filter(([name]) => !OWN.includes(name)));
}

/** Why a choice can't be made on this server; "" if it can. Codecs and containers are those of the ffmpeg found. */
function whyNot(ready) {
  return (name, value) => {
    const known = ready.codecs?.[name];
    return known && !known.includes(value) ? "not in this server's ffmpeg" : "";
  };
}
