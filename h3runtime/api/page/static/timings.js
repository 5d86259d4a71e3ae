// How long each stage took, as one stacked bar with its words.
import { el } from "./dom.js";
import { plain, seconds } from "./words.js";

const STAGES = ["queue", "conditioning", "sampling", "audio_decode", "video_decode", "mux"];

/** longest: seconds that the whole width stands for; by default this job's own. */
export function timingsBar(timings, longest = null) {
  const parts = STAGES.filter((stage) => timings[stage] > 0).map((stage) => [stage, timings[stage]]);
  const sum = parts.reduce((total, [, time]) => total + time, 0);
  // Of a job that failed only the wait may be known: no bar.
  if (parts.every(([stage]) => stage === "queue")) return null;
  const bar = el("div", { class: "stack", "aria-hidden": "true" }, ...parts.map(([stage, time]) => {
    const part = el("span", { class: `part ${stage}`, title: `${plain(stage)} ${seconds(time)}` });
    part.style.setProperty("--span", `${(time / (longest || sum)) * 100}%`);
    return part;
  }));
  const words = parts.map(([stage, time]) => el("li", {}, el("span", { class: `key ${stage}` }), `${plain(stage)} ${seconds(time)}`));
  const total = el("li", { class: "total" }, `total ${seconds(timings.total ?? sum)}`);
  return el("div", { class: "timings" }, bar, el("ul", { "aria-label": "Timings" }, ...words, total));
}
