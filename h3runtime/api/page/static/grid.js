// The grid of lengths: 17n + 5 frames at 24 a second, and sizes in steps of 32.
import { FPS } from "./words.js";

const CHUNK = 17;
const LEAST = 5;

export const longest = (most) => LEAST + CHUNK * Math.floor((most - LEAST) / CHUNK);

/** The legal length nearest to so many frames. */
export function nearestFrames(frames, most) {
  const steps = Math.round((frames - LEAST) / CHUNK);
  return Math.min(longest(most), Math.max(LEAST, LEAST + CHUNK * steps));
}

/** The least legal length that is as long, with the server's slack of a millisecond. */
export function framesFor(seconds, most) {
  const steps = Math.ceil(((seconds - 0.001) * FPS - LEAST) / CHUNK - 1e-9);
  return Math.min(longest(most), LEAST + CHUNK * Math.max(0, steps));
}

export { CHUNK, LEAST };
