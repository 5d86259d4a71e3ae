// Two jobs side by side: their players move together, what differs between them stands out.
import { button, byId, el, fill } from "./dom.js";
import { settingsOf } from "./detail.js";
import { createPlayer } from "./player.js";
import { timingsBar } from "./timings.js";
import { title } from "./words.js";

const DRIFT = 0.08;
/** Seconds: two frames. Closer than that nobody sees it, and every correction is a jump. */

export function createCompare(http) {
  const dialog = byId("compare");
  let players = [];

  function open(jobs) {
    players = jobs.map((job, index) => createPlayer(http, job, { label: `${index ? "right" : "left"}: ${job.output}` }));
    const longest = Math.max(...jobs.map((job) => job.timings.total || 0));
    const sides = jobs.map((job, index) => el("section", { "aria-label": `${index ? "Right" : "Left"}: ${job.output}` }, el("h3", {}, job.output), players[index].element, timingsBar(job.timings, longest)));
    const play = button("Play both", () => toggle(play), { class: "primary" });
    fill(dialog,
      el("div", { class: "dialog-head" }, el("h2", { id: "compare-title" }, "Side by side"), button("Close", () => dialog.close())),
      el("div", { class: "sides" }, ...sides),
      el("div", { class: "actions" }, play, button("To the start", () => players.forEach(({ video }) => (video.currentTime = 0))), button("Sound from the other", swapSound)),
      differences(jobs),
    );
    couple(players.map(({ video }) => video), play);
    players[1].video.muted = true;
    dialog.showModal();
    play.focus();
  }

  function swapSound() {
    for (const { video } of players) video.muted = !video.muted;
  }

  function toggle() {
    const [{ video }] = players;
    if (video.paused) video.play();
    else video.pause();
  }

  dialog.addEventListener("close", () => {
    players.forEach((player) => player.close());
    players = [];
    fill(dialog);
  });
  return { open };
}

/** What is done to one is done to the other. */
function couple(videos, play) {
  videos.forEach((video, index) => {
    const other = videos[1 - index];
    const align = () => {
      if (Math.abs(other.currentTime - video.currentTime) > DRIFT) other.currentTime = Math.min(video.currentTime, other.duration || Infinity);
    };
    video.addEventListener("play", () => {
      play.textContent = "Pause both";
      if (other.paused) {
        align();
        other.play().catch(() => {});
      }
    });
    video.addEventListener("pause", () => {
      play.textContent = "Play both";
      if (!video.ended && !other.paused) other.pause();
    });
    video.addEventListener("seeked", align);
    video.addEventListener("ratechange", () => {
      if (other.playbackRate !== video.playbackRate) other.playbackRate = video.playbackRate;
    });
    if (index === 0) video.addEventListener("timeupdate", () => !video.paused && align());
  });
}

function differences(jobs) {
  const [left, right] = jobs.map((job) => ({ ...settingsOf(job), prompt: job.prompt, ...timesOf(job) }));
  const names = [...new Set([...Object.keys(left), ...Object.keys(right)])];
  const rows = names.map((name) => {
    const differs = left[name] !== right[name];
    return { differs, element: el("tr", { class: differs ? "differs" : null }, el("th", { scope: "row" }, title(name), differs ? el("span", { class: "tag" }, "differs") : null), el("td", {}, left[name] ?? "–"), el("td", {}, right[name] ?? "–")) };
  });
  const ordered = [...rows.filter((row) => row.differs), ...rows.filter((row) => !row.differs)];
  const head = el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Setting"), ...jobs.map((job) => el("th", { scope: "col" }, job.output))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Settings and timings" }, el("table", {}, head, el("tbody", {}, ...ordered.map((row) => row.element))));
}

const timesOf = (job) => Object.fromEntries(Object.entries(job.timings).map(([stage, time]) => [`${stage}_seconds`, time.toFixed(2)]));
