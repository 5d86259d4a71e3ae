// How long the clip is: a slider, seconds and frames that follow each other on the grid of legal lengths.
import { fieldBox, groupBox } from "./box.js";
import { el } from "./dom.js";
import { CHUNK, framesFor, LEAST, longest, nearestFrames } from "./grid.js";
import { FPS } from "./words.js";

const USUAL = 124;

export function createLength(limits, onChange) {
  const most = longest(limits.max_frames);
  const slider = fieldBox("Length", el("input", { type: "range", min: LEAST, max: most, step: CHUNK }));
  const seconds = fieldBox("Seconds", el("input", { type: "number", min: "0.2", max: (most / FPS).toFixed(3), step: "any", inputmode: "decimal" }));
  const frames = fieldBox("Frames", el("input", { type: "number", min: LEAST, max: most, step: CHUNK, inputmode: "numeric" }));
  const follow = fieldBox("As long as the source", el("input", { type: "checkbox" }));
  let count = 0;

  function set(value) {
    count = value;
    slider.control.value = value;
    seconds.control.value = Number((value / FPS).toFixed(3));
    frames.control.value = value;
    slider.control.setAttribute("aria-valuetext", `${(value / FPS).toFixed(2)} seconds, ${value} frames`);
  }

  function listen(box, name, toFrames) {
    box.control.addEventListener(name, () => {
      set(box.control.value === "" ? count : toFrames(Number(box.control.value)));
      onChange();
    });
  }
  listen(slider, "input", (value) => nearestFrames(value, most));
  // On leaving the field: while somebody types 1 of 12 nothing may move.
  listen(seconds, "change", (value) => framesFor(value, most));
  listen(frames, "change", (value) => nearestFrames(value, most));
  follow.control.addEventListener("change", () => {
    for (const box of [slider, seconds, frames]) box.control.disabled = follow.control.checked;
    onChange();
  });
  follow.element.hidden = true;
  set(nearestFrames(USUAL, most));
  const note = el("p", { class: "hint" }, `17n + 5 frames at 24 a second, up to ${most}; seconds are rounded up to the next.`);
  const box = groupBox("Length", el("div", {}, slider.element, el("div", { class: "row" }, seconds.element, frames.element), follow.element, note));
  const isFree = () => !follow.element.hidden && follow.control.checked;
  return {
    element: box.element,
    frames: () => count,
    /** hasSource: the clip to edit may say how long the new one is. */
    offerSource(hasSource) {
      follow.element.hidden = !hasSource;
      for (const each of [slider, seconds, frames]) each.control.disabled = isFree();
    },
    write(request) {
      if (!isFree()) request.frames = count;
    },
    load(request) {
      set(nearestFrames(request.frames ?? USUAL, most));
    },
    at: (field) => (field === "seconds" ? seconds : frames),
  };
}
