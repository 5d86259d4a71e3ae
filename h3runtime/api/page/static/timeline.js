// Guides on a line of frames: pictures, clips and sounds, moved by dragging, by arrow keys, or by number.
import { button, el, fill, freshId, say } from "./dom.js";
import { errorPlace } from "./box.js";
import { acceptDrops, asMedium, dropZone, facts, kindOfFile, openMedium, thumbnail } from "./media.js";
import { clipLength, FPS } from "./words.js";

const KINDS = ["image", "video", "audio"];

/** ends(): {first, last} media at the ends, or null. continued(): frames of another clip's end that lie at 0. */
export function createTimeline({ frames, ends, continued, onChange }) {
  let guides = [];
  let drawn = "";
  const ruler = el("div", { class: "ruler", "aria-hidden": "true" });
  const lanes = Object.fromEntries(KINDS.map((kind) => [kind, el("div", { class: `lane ${kind}` })]));
  const track = el("div", { class: "track", role: "group" }, ruler, ...Object.values(lanes));
  const rows = el("ul", { class: "guides", "aria-label": "Guides" });
  const zone = dropZone("Add a guide: a picture, clip or sound", KINDS, (files) => add(files), { many: true });
  const heading = el("h3", {}, "Timeline");
  const hint = el("p", { class: "hint" }, "Drag a guide, or use the arrow keys on it: one frame, with Shift seventeen. Delete removes it.");
  const element = el("section", { class: "block timeline", "aria-label": "Timeline" }, heading, track, hint, rows, zone.element);

  acceptDrops(track, (files, event) => add([...files].filter((file) => KINDS.includes(kindOfFile(file))), frameAt(event.clientX)));

  function frameAt(x) {
    const box = track.getBoundingClientRect();
    return clamp(Math.round(((x - box.left) / box.width) * (frames() - 1)));
  }

  const clamp = (frame) => Math.min(frames() - 1, Math.max(0, frame));

  /** Frames that a guide covers. Of a clip the server takes as many as fit its grid. */
  const span = (guide) => (guide.medium.kind === "image" ? 1 : Math.max(1, Math.round((guide.medium.seconds || 1) * FPS)));

  function freeFrame() {
    const taken = new Set([...guides.map((guide) => guide.frame), ends().first ? 0 : -1, ends().last ? frames() - 1 : -1]);
    for (const part of [0.5, 0.25, 0.75, 0.125, 0.375, 0.625, 0.875]) {
      const frame = Math.round((frames() - 1) * part);
      if (!taken.has(frame)) return frame;
    }
    return [...Array(frames()).keys()].find((frame) => !taken.has(frame)) ?? 0;
  }

  async function add(files, frame = null) {
    for (const file of files) {
      const medium = await openMedium(file);
      const at = frame ?? (medium.kind === "image" ? freeFrame() : 0);
      guides.push(guideOf(medium, at));
      say(`${medium.name} added at frame ${at}.`);
    }
    changed();
  }

  function guideOf(medium, frame) {
    const guide = { medium, frame, withSound: false, id: freshId("guide") };
    guide.marker = marker(guide);
    guide.row = rowOf(guide);
    return guide;
  }

  function marker(guide) {
    const name = el("span", { class: "bar-name" }, guide.medium.name);
    const made = el("button", { type: "button", class: `marker ${guide.medium.kind}`, role: "slider", "aria-label": `Guide ${guide.medium.name}`, "aria-valuemin": "0" },
      guide.medium.kind === "audio" ? null : thumbnail(guide.medium), guide.medium.kind === "image" ? null : name);
    made.addEventListener("keydown", (event) => onKey(event, guide));
    made.addEventListener("pointerdown", (event) => onDrag(event, guide));
    return made;
  }

  function onKey(event, guide) {
    const step = event.shiftKey ? 17 : 1;
    const to = {
      ArrowLeft: guide.frame - step,
      ArrowDown: guide.frame - step,
      ArrowRight: guide.frame + step,
      ArrowUp: guide.frame + step,
      PageDown: guide.frame - FPS,
      PageUp: guide.frame + FPS,
      Home: 0,
      End: frames() - 1,
    }[event.key];
    if (event.key === "Delete" || event.key === "Backspace") remove(guide);
    else if (to !== undefined) move(guide, to);
    else return;
    event.preventDefault();
  }

  function onDrag(event, guide) {
    if (event.button !== 0) return;
    const box = track.getBoundingClientRect();
    const start = { x: event.clientX, frame: guide.frame };
    const onMove = (moved) => move(guide, start.frame + Math.round(((moved.clientX - start.x) / box.width) * (frames() - 1)));
    guide.marker.setPointerCapture(event.pointerId);
    guide.marker.addEventListener("pointermove", onMove);
    const end = () => guide.marker.removeEventListener("pointermove", onMove);
    guide.marker.addEventListener("pointerup", end, { once: true });
    guide.marker.addEventListener("pointercancel", end, { once: true });
  }

  function move(guide, frame) {
    guide.frame = clamp(frame);
    place(guide);
    onChange();
  }

  function remove(guide) {
    guides = guides.filter((each) => each !== guide);
    URL.revokeObjectURL(guide.medium.url);
    say(`${guide.medium.name} removed.`);
    changed();
    (guides.at(-1)?.row.input || zone.input).focus();
  }

  function rowOf(guide) {
    const id = `${guide.id}-frame`;
    const input = el("input", { type: "number", id, inputmode: "numeric", step: "1", min: "0" });
    input.addEventListener("change", () => move(guide, Number(input.value)));
    const time = el("span", { class: "muted time" });
    const error = el("p", { class: "error", id: `${guide.id}-error`, hidden: true });
    const sound = guide.medium.kind === "video" ? el("input", { type: "checkbox", id: `${guide.id}-sound` }) : null;
    sound?.addEventListener("change", () => {
      guide.withSound = sound.checked;
      onChange();
    });
    const told = el("div", { class: "told" }, el("span", { class: "name" }, guide.medium.name), el("span", { class: "muted" }, facts(guide.medium)));
    const fields = el("div", { class: "frame" }, el("label", { for: id }, "Frame"), input, time);
    const withSound = sound ? el("div", { class: "field check" }, sound, el("label", { for: sound.id }, "With its sound")) : null;
    const off = button("Remove", () => remove(guide), { class: "quiet", "aria-label": `Remove guide ${guide.medium.name}` });
    const element = el("li", { class: "medium" }, thumbnail(guide.medium), told, fields, withSound, off, error);
    return { element, input, time, ...errorPlace(error, input) };
  }

  function place(guide) {
    const last = frames() - 1;
    const at = `${((guide.frame / last) * 100).toFixed(3)}%`;
    guide.marker.style.setProperty("--at", at);
    guide.marker.style.setProperty("--span", `${(Math.min(span(guide), frames() - guide.frame) / frames()) * 100}%`);
    guide.marker.setAttribute("aria-valuemax", last);
    guide.marker.setAttribute("aria-valuenow", guide.frame);
    guide.marker.setAttribute("aria-valuetext", `frame ${guide.frame}, ${clipLength(guide.frame)}`);
    guide.row.input.max = last;
    guide.row.input.value = guide.frame;
    guide.row.time.textContent = clipLength(guide.frame);
  }

  /** Ticks at whole seconds. */
  function drawRuler() {
    const length = frames() / FPS;
    const ticks = Array.from({ length: Math.floor(length) + 1 }, (_, second) => {
      const tick = el("span", { class: "tick" }, `${second}s`);
      tick.style.setProperty("--at", `${((second / length) * 100).toFixed(3)}%`);
      return tick;
    });
    fill(ruler, ...ticks);
  }

  /** What lies there by other fields: first and last frame, and the end of a clip that is continued. */
  function fixed() {
    const { first, last } = ends();
    const made = [];
    if (first) made.push(el("span", { class: "marker image fixed first", title: "First frame" }, thumbnail(first)));
    if (last) made.push(el("span", { class: "marker image fixed last", title: "Last frame" }, thumbnail(last)));
    const bar = el("span", { class: "marker video fixed" }, el("span", { class: "bar-name" }, "Continued"));
    bar.style.setProperty("--at", "0%");
    bar.style.setProperty("--span", `${(Math.min(continued(), frames()) / frames()) * 100}%`);
    return { images: made, clips: continued() ? [bar] : [] };
  }

  /** What is on the line. While that is the same nothing is put there anew: a guide that is held would be let go. */
  function onIt() {
    const { first, last } = ends();
    return JSON.stringify([guides.map((guide) => guide.id), first?.url, last?.url, continued(), frames()]);
  }

  function draw() {
    for (const guide of guides) {
      guide.frame = clamp(guide.frame);
      place(guide);
    }
    if (drawn === onIt()) return;
    drawn = onIt();
    drawRuler();
    const still = fixed();
    for (const kind of KINDS) {
      const own = guides.filter((guide) => guide.medium.kind === kind).map((guide) => guide.marker);
      const others = { image: still.images, video: still.clips, audio: [] }[kind];
      fill(lanes[kind], ...others, ...own);
      lanes[kind].hidden = kind !== "image" && own.length + others.length === 0;
    }
    fill(rows, ...guides.map((guide) => guide.row.element));
    rows.hidden = guides.length === 0;
    track.setAttribute("aria-label", `Timeline of ${frames()} frames, ${clipLength(frames())}`);
  }

  function changed() {
    draw();
    onChange();
  }

  draw();
  return {
    element,
    draw,
    zone,
    clear() {
      guides = [];
      draw();
    },
    write(request, files) {
      if (!guides.length) return;
      request.keyframes = guides.map((guide, index) => keyframe(guide, `guide${index + 1}`, files));
    },
    at: ([index]) => guides[index]?.row || zone,
  };
}

function keyframe(guide, part, files) {
  const medium = asMedium(guide.medium, part, files);
  if (guide.medium.kind === "audio") return { frame: guide.frame, audio: medium };
  const sound = guide.withSound ? { audio: "auto" } : {};
  return { [guide.medium.kind]: medium, frame: guide.frame, ...sound };
}
