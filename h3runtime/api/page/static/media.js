// One place for a file: picker, drag and drop and paste, with a thumbnail; or for the clip of a job.
import { errorPlace } from "./box.js";
import { button, el, fill, freshId } from "./dom.js";
import { bytes, plain, seconds } from "./words.js";

const ENDINGS = {
  image: /\.(png|jpe?g|webp|gif|bmp|tiff?|heic|heif|avif)$/i,
  video: /\.(mp4|mov|mkv|webm|avi|m4v|mpe?g)$/i,
  audio: /\.(wav|mp3|flac|ogg|opus|m4a|aac)$/i,
};
const SOUND_BYTES = 32 * 2 ** 20;
const ACCEPT = { image: "image/*,.heic,.heif", video: "video/*,.mkv", audio: "audio/*,.flac,.opus" };

export function kindOfFile(file) {
  const named = Object.keys(ENDINGS).find((kind) => ENDINGS[kind].test(file.name));
  return Object.keys(ENDINGS).find((kind) => file.type.startsWith(`${kind}/`)) || named || null;
}

/** A file with what the browser can tell of it: kind, url, and once known width, height and seconds. */
export async function openMedium(file) {
  const medium = { file, kind: kindOfFile(file), name: file.name, url: URL.createObjectURL(file) };
  const probe = { image: probeImage, video: probePlayable, audio: probePlayable }[medium.kind];
  if (probe) Object.assign(medium, await probe(medium));
  if (medium.kind === "video") medium.hasSound = await hearsSound(file);
  return medium;
}

/** Whether a clip has a sound of its own; undefined where that would take long to find out. */
async function hearsSound(file) {
  if (file.size > SOUND_BYTES) return undefined;
  try {
    await new OfflineAudioContext(1, 1, 48000).decodeAudioData(await file.arrayBuffer());
    return true;
  } catch {
    return false;
  }
}

function probeImage({ url }) {
  return new Promise((resolve) => {
    const image = new Image();
    image.onload = () => resolve({ width: image.naturalWidth, height: image.naturalHeight });
    image.onerror = () => resolve({ isUnseen: true }); // HEIC, which the server reads and the browser doesn't
    image.src = url;
  });
}

function probePlayable({ url, kind }) {
  return new Promise((resolve) => {
    const player = document.createElement(kind);
    const timer = setTimeout(() => resolve({}), 3000);
    const done = (found) => {
      clearTimeout(timer);
      resolve(found);
    };
    player.preload = "metadata";
    player.onloadedmetadata = () => {
      const length = Number.isFinite(player.duration) ? player.duration : undefined;
      done({ seconds: length, width: player.videoWidth || undefined, height: player.videoHeight || undefined });
    };
    player.onerror = () => done({ isUnseen: true });
    player.src = url;
  });
}

/** A small picture of a medium. */
export function thumbnail(medium) {
  if (medium.kind === "image" && !medium.isUnseen) return el("img", { class: "thumb", src: medium.url, alt: "" });
  if (medium.kind === "video" && !medium.isUnseen) {
    const video = el("video", { class: "thumb", preload: "metadata", tabindex: "-1", "aria-hidden": "true" });
    video.muted = true;
    video.src = `${medium.url}#t=0.1`;
    return video;
  }
  return el("span", { class: "thumb glyph", "aria-hidden": "true" }, { audio: "♪", image: "▣", video: "▶" }[medium.kind] || "▶");
}

export function facts(medium) {
  return [
    medium.width ? `${medium.width}×${medium.height}` : null,
    medium.seconds ? seconds(medium.seconds) : null,
    medium.file ? bytes(medium.file.size) : null,
  ].filter(Boolean).join(" · ");
}

/** Where files can be dropped or picked. kinds: which. onFiles gets those of these kinds; others are refused aloud. */
export function dropZone(label, kinds, onFiles, { many = false } = {}) {
  const input = el("input", { type: "file", class: "picker", id: freshId("file"), accept: kinds.map((kind) => ACCEPT[kind]).join(","), multiple: many });
  const error = el("p", { class: "error", id: freshId("error"), hidden: true });
  const text = el("label", { for: input.id }, el("strong", {}, label), el("span", { class: "hint" }, "Choose, drop or paste"));
  const element = el("div", { class: "drop" }, input, text, error);
  const place = errorPlace(error, input);

  function take(files) {
    const right = [...files].filter((file) => kinds.includes(kindOfFile(file))).slice(0, many ? undefined : 1);
    place.setError(right.length ? "" : `This takes ${kinds.map((kind) => NOUNS[kind]).join(" or ")}.`);
    if (right.length) onFiles(right);
    return right.length > 0;
  }

  input.addEventListener("change", () => {
    if (input.files.length) take(input.files);
    input.value = ""; // the same file may be picked again after it was removed
  });
  acceptDrops(element, take);
  element.takeFiles = take;
  return { element, input, take, ...place };
}

const NOUNS = { image: "a picture", video: "a clip", audio: "a sound" };

/** Lets files fall on an element. take(files, event) */
export function acceptDrops(element, take) {
  element.addEventListener("dragover", (event) => {
    event.preventDefault();
    element.classList.add("over");
  });
  element.addEventListener("dragleave", () => element.classList.remove("over"));
  element.addEventListener("drop", (event) => {
    event.preventDefault();
    event.stopPropagation();
    element.classList.remove("over");
    take(event.dataTransfer.files, event);
  });
}

/** One medium or none. `value` is null, an opened file, or {job, name}. */
export function mediaSlot(label, kinds, onChange) {
  const holder = el("div", { class: "slot" });
  let slot;
  const zone = dropZone(label, kinds, async ([file]) => {
    slot.set(await openMedium(file));
    onChange();
    holder.querySelector("button")?.focus();
  });

  function draw() {
    if (!slot.value) return fill(holder, zone.element);
    const remove = button("Remove", () => {
      slot.set(null);
      onChange();
      zone.input.focus();
    }, { class: "quiet", "aria-label": `Remove ${plain(label).toLowerCase()}` });
    const error = el("p", { class: "error", id: freshId("error"), hidden: true });
    const name = el("span", { class: "name" }, slot.value.name);
    const told = el("div", { class: "told" }, el("strong", {}, label), name, el("span", { class: "muted" }, facts(slot.value)));
    slot.place = errorPlace(error, remove);
    return fill(holder, el("div", { class: "medium" }, thumbnail(slot.value), told, remove, error));
  }

  const host = { setError: (text) => slot.place.setError(text), focus: () => slot.place.focus() };
  slot = {
    element: holder,
    value: null,
    zone,
    place: zone,
    /** What was there is given back to the browser. */
    set(value) {
      if (slot.value?.url && slot.value !== value) URL.revokeObjectURL(slot.value.url);
      slot.value = value;
      slot.place = zone;
      zone.setError("");
      draw();
    },
    at: () => host,
  };
  draw();
  return slot;
}

/** How a request names a medium: as a part of the form, which is added to `files`, or as a job's clip. */
export function asMedium(value, part, files) {
  if (value.job) return { job: value.job };
  files[part] = value.file;
  return { upload: part };
}
