// Sample prompts of the model that the package brings along: sentences of its little world, and pictures to begin with.
import { button, el, fill } from "./dom.js";

const MODEL = "h3-nano";
const SHAPE = { width: 192, height: 192, frames: 39 };
/** Where the floor begins, and how much of its light the wall above it has. */
const FLOOR_LINE = 0.8;
const WALL = 0.4;
/** Pixels of a reference picture: the size that the model was trained on. */
const PORTRAIT = { width: 64, height: 64 };
const RED = [225, 45, 45];
const BLUE_FLOOR = [40, 70, 150];

export const SAMPLES = [
  { label: "Bouncing ball", prompt: "a red ball bouncing on a blue floor" },
  { label: "Moving box", prompt: "a green box moving right on a purple floor" },
  { label: "Rising ring", prompt: "a yellow ring rising on the left on a grey floor, with a bright tone" },
  { label: "In silence", prompt: "a purple triangle growing on a green floor, in silence" },
  { label: "Two at once", prompt: "an orange ring growing and a white box bouncing on a red floor" },
  { label: "From a first frame", prompt: "a red ball moving left on a blue floor", task: "i2va", picture: { name: "first-frame.png", draw: drawScene, ...SHAPE } },
  { label: "From a reference", prompt: "the object in <Picture 1> bouncing on a blue floor", task: "ref2va", picture: { name: "red-ball.png", draw: drawPortrait, ...PORTRAIT } },
];

/** The place for them; offer(ready, composer) shows them where the loaded model is theirs. */
export function createSamples(place) {
  let shown = null;

  function offer(ready, composer) {
    const wanted = ready.models.some(({ model }) => model === MODEL) ? composer : null;
    if (wanted === shown) return;
    shown = wanted;
    place.hidden = !wanted;
    fill(place, ...(wanted ? [el("span", { class: "muted" }, "Try:"), ...SAMPLES.map((sample) => chip(sample, wanted))] : []));
  }

  return { offer };
}

function chip(sample, composer) {
  return button(sample.label, () => use(sample, composer), { class: "chip", title: sample.prompt });
}

/** The whole form becomes the sample's. */
async function use({ prompt, task = "t2va", picture }, composer) {
  composer.load({ prompt, task, ...SHAPE });
  if (picture) await composer.takeFiles([await pictureFile(picture)]);
  composer.focus();
}

async function pictureFile({ name, draw, width, height }) {
  const canvas = el("canvas", { width, height });
  draw(canvas.getContext("2d"), width, height);
  const data = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  return new File([data], name, { type: "image/png" });
}

const colour = (rgb, light = 1) => `rgb(${rgb.map((value) => Math.round(value * light)).join(" ")})`;

/** A ball in the air on the right, where one that moves left begins. */
function drawScene(pen, width, height) {
  pen.fillStyle = colour(BLUE_FLOOR, WALL);
  pen.fillRect(0, 0, width, height);
  pen.fillStyle = colour(BLUE_FLOOR);
  pen.fillRect(0, FLOOR_LINE * height, width, height);
  drawBall(pen, 0.73 * width, 0.5 * height, 0.16 * Math.min(width, height));
}

/** A ball alone, large and in the middle of grey. */
function drawPortrait(pen, width, height) {
  pen.fillStyle = "rgb(128 128 128)";
  pen.fillRect(0, 0, width, height);
  drawBall(pen, 0.5 * width, 0.5 * height, 0.28 * Math.min(width, height));
}

function drawBall(pen, x, y, radius) {
  pen.fillStyle = colour(RED);
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.fill();
}
