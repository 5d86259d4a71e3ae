// What another clip gives: a source with masks to edit it, or the end that a new clip continues.
import { groupBox } from "./box.js";
import { el } from "./dom.js";
import { fieldsOf, loadFields, readFields, schemaField } from "./fields.js";
import { asMedium, mediaSlot } from "./media.js";
import { resolve } from "./schema.js";

/** The clip to edit, and what of it is generated anew. */
export function createEditing(schema, masksSchema, context, onChange) {
  const source = mediaSlot("Source", ["video"], onChange);
  const mask = mediaSlot("Picture mask", ["image", "video"], onChange);
  const masks = resolve(masksSchema, context.schemas);
  const spans = schemaField("audio", masks.properties.audio, { ...context, onChange }, "Sound mask");
  const element = el(
    "section",
    { class: "block", "aria-label": "Edit" },
    el("h3", {}, "Clip to edit"),
    source.element,
    el("h3", {}, "Masks"),
    el("p", { class: "hint" }, "White, or 1, is generated anew; black, or 0, is kept. Without masks everything is generated."),
    mask.element,
    el("h4", {}, "Spans of the sound"),
    spans.element,
  );
  return {
    element,
    source,
    mask,
    write(request, files) {
      if (source.value) request.source = asMedium(source.value, "source", files);
      const made = {};
      if (mask.value) made.video = asMedium(mask.value, "mask", files);
      if (spans.read()) made.audio = spans.read();
      if (Object.keys(made).length) request.masks = made;
    },
    useJob(job) {
      source.set({ job: job.id, name: `${job.output} (job ${job.id})`, kind: "video", isUnseen: true, seconds: job.seconds });
    },
    clear() {
      source.set(null);
      mask.set(null);
      spans.load(undefined);
    },
    at([first, second, ...rest]) {
      if (first === "source") return source.at();
      return second === "audio" ? spans.at(rest) : mask.at();
    },
  };
}

/** The clip whose end goes on. */
export function createContinuation(schema, context, onChange) {
  const own = resolve(schema, context.schemas);
  const clip = mediaSlot("Clip to continue", ["video"], onChange);
  const { fields, elements } = fieldsOf(own, { ...context, onChange }, ["job", "upload", "data", "path", "url"]);
  const usual = own.properties.frames.default;
  const box = groupBox("How much of its end", el("div", { class: "grid" }, ...elements));
  const element = el("section", { class: "block", "aria-label": "Continue" }, el("h3", {}, "Clip to continue"), clip.element, box.element);
  return {
    element,
    clip,
    frames: () => (clip.value ? fields.frames.read() ?? usual : 0),
    write(request, files) {
      if (clip.value) request.continue_from = { ...asMedium(clip.value, "clip", files), ...readFields(fields) };
    },
    useJob(job) {
      clip.set({ job: job.id, name: `${job.output} (job ${job.id})`, kind: "video", isUnseen: true, seconds: job.seconds });
    },
    clear() {
      clip.set(null);
      loadFields(fields, undefined);
    },
    at: ([first, ...rest]) => fields[first]?.at(rest) || clip.at(),
  };
}
