// One job in full: its player or how far it is, its settings, timings, checks, warnings, and what can be done with it.
import { button, byId, el, fill, setText } from "./dom.js";
import { copyQuietly } from "./dialogs.js";
import { hasEnded } from "./jobs.js";
import { createPlayer } from "./player.js";
import { whereabouts } from "./queue.js";
import { timingsBar } from "./timings.js";
import { bytes, clock, plain, seconds, title } from "./words.js";

const SETTINGS = ["task", "width", "height", "frames", "seconds", "fps", "seed", "steps", "forwards", "skipped_steps", "sampler", "scheduler", "shift", "audio_shift", "attention", "linear", "quality", "checkpoint", "version"];

const told = (value) => String(typeof value === "number" ? Number(value.toFixed(3)) : value);

/** Name -> text of every setting that the job settled on. */
export function settingsOf(job) {
  const found = Object.fromEntries(SETTINGS.filter((name) => job[name] !== null && job[name] !== undefined).map((name) => [name, told(job[name])]));
  if (job.loras?.length) found.loras = job.loras.map((lora) => `${lora.name} ${lora.strength}`).join(", ");
  return found;
}

export function createDetail(http, jobs, actions) {
  const place = byId("detail");
  const look = el("img", { class: "preview", alt: "Preview of the clip as it is being made", hidden: true });
  const bar = el("progress", { max: "1", "aria-label": "Progress of the job" });
  const where = el("p", { role: "status" });
  let job = null;
  let player = null;
  let drawn = "";

  function open(id) {
    close();
    job = jobs.get(id);
    update(job);
  }

  function close() {
    player?.close();
    player = null;
    job = null;
    drawn = "";
    place.hidden = true;
    fill(place);
  }

  /** Rebuilt when the state changes; in between only what moves is touched, so that nothing loses the focus. */
  function update(now) {
    if (!now) return;
    job = now;
    const key = `${job.id} ${job.status}`;
    if (key !== drawn) {
      const held = place.contains(document.activeElement);
      player?.close();
      player = job.status === "succeeded" ? createPlayer(http, job) : null;
      draw();
      drawn = key;
      if (held) place.querySelector("h2").focus();
    }
    move();
  }

  function move() {
    const preview = jobs.preview(job.id);
    look.hidden = !preview || hasEnded(job);
    if (preview && look.src !== preview) look.src = preview;
    bar.hidden = job.status !== "running";
    bar.value = job.progress.fraction;
    setText(where, whereabouts(job));
  }

  function draw() {
    place.hidden = false;
    const heading = el("h2", { tabindex: "-1" }, job.output, " ", el("span", { class: `pill ${job.status}` }, job.status));
    fill(place,
      heading,
      player ? player.element : null,
      hasEnded(job) ? null : el("div", { class: "live" }, look, bar, where),
      job.status === "expired" ? el("p", { class: "muted" }, "The clip was removed after its time, or another job's took its name.") : null,
      failure(job),
      buttons(),
      warningsOf(job),
      hasEnded(job) ? timingsBar(job.timings) : null,
      settings(job),
      checksOf(job),
      el("details", {}, el("summary", {}, "Prompt"), el("pre", { class: "prompt", tabindex: "0" }, job.prompt)),
      memoryOf(job),
      raw("Diagnostics", job.diagnostics),
      el("p", { class: "muted" }, `Job ${job.id}, ${dates(job)}`),
    );
  }

  function buttons() {
    const { id, status } = job;
    const own = actions.sent(id);
    const made = [];
    if (player) made.push(player.save);
    if (!hasEnded(job)) made.push(button("Cancel", () => actions.cancel(id)));
    if (hasEnded(job) && own?.isWhole) made.push(button(status === "succeeded" ? "Make again" : "Retry", () => actions.retry(id)));
    if (status === "succeeded") {
      made.push(button("Continue this", () => actions.use("continue", job)), button("Use as source", () => actions.use("edit", job)));
    }
    made.push(button("Load settings", () => actions.load(id)));
    made.push(button("Copy seed", () => copyQuietly("Seed", job.outputs[player?.shown() ?? 0].seed)));
    made.push(button("Copy as curl", () => actions.curl(id)));
    made.push(button("Delete", () => actions.remove(id), { class: "danger" }));
    return el("div", { class: "actions" }, ...made);
  }

  return { open, close, update: (now) => now?.id === job?.id && update(now), move: (id) => id === job?.id && move(), id: () => job?.id ?? null };
}

function failure(job) {
  if (!job.error) return null;
  const { code, message, stage, step } = job.error;
  const at = stage ? `Stage ${plain(stage)}${step === null || step === undefined ? "" : `, step ${step}`}` : null;
  return el("div", { class: "failure", role: "group", "aria-label": "Why it failed" }, el("p", {}, el("code", {}, code), at ? ` ${at}` : ""), el("p", {}, message));
}

function warningsOf(job) {
  if (!job.warnings.length) return null;
  return el("ul", { class: "warnings", "aria-label": "Warnings" }, ...job.warnings.map((text) => el("li", {}, text)));
}

function settings(job) {
  const rows = Object.entries(settingsOf(job)).map(([name, value]) => [el("dt", {}, title(name)), el("dd", {}, value)]);
  const more = [["SHA-256", job.sha256], ["Size", job.bytes === null ? null : bytes(job.bytes)]].filter(([, value]) => value);
  const list = el("dl", { class: "settings" }, ...rows.flat(), ...more.flatMap(([name, value]) => [el("dt", {}, name), el("dd", { class: "hash" }, value)]));
  return el("details", { open: true }, el("summary", {}, "Settings"), list);
}

/** What looks at the result found: its findings in words, its figures in a list. */
function checksOf(job) {
  const parts = Object.entries(job.checks || {}).map(([name, { findings = [], ...figures }]) => {
    const rows = Object.entries(figures).flatMap(([figure, value]) => [el("dt", {}, plain(figure)), el("dd", {}, typeof value === "number" ? String(Number(value.toPrecision(4))) : String(value))]);
    const odd = findings.map(({ level, message }) => el("li", { class: level }, `${level}: ${message}`));
    return el("div", {}, el("h3", {}, `${title(name)}: ${findings.length ? `${findings.length} to look at` : "nothing odd"}`), odd.length ? el("ul", {}, ...odd) : null, el("dl", { class: "settings" }, ...rows));
  });
  return parts.length ? el("details", {}, el("summary", {}, "Checks"), ...parts) : null;
}

function memoryOf(job) {
  const rows = Object.entries(job.memory || {}).flatMap(([name, value]) => [el("dt", {}, plain(name)), el("dd", {}, bytes(value))]);
  return rows.length ? el("details", {}, el("summary", {}, "Memory"), el("dl", { class: "settings" }, ...rows)) : null;
}

function raw(name, value) {
  if (!value) return null;
  return el("details", {}, el("summary", {}, name), el("pre", { tabindex: "0" }, JSON.stringify(value, null, 2)));
}

function dates(job) {
  const said = [`sent ${clock(job.created_at)}`];
  if (job.finished_at) said.push(`ended ${clock(job.finished_at)}`);
  if (job.timings.queue > 0.5) said.push(`waited ${seconds(job.timings.queue)}`);
  if (job.first_after_start) said.push("the first after the start, so slower than the next");
  return said.join(", ");
}
