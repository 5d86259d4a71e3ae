// Puts the page together: who tells whom when something changes.
import { createCompare } from "./compare.js";
import { createComposer } from "./composer.js";
import { curlCommand } from "./curl.js";
import { createDetail } from "./detail.js";
import { askForKey, confirmed, showText } from "./dialogs.js";
import { byId, say } from "./dom.js";
import { createEstimate } from "./estimate.js";
import { startFoot } from "./foot.js";
import { createHttp, Problem } from "./http.js";
import { createJobs, hasEnded } from "./jobs.js";
import { createProblems } from "./problems.js";
import { createQueue } from "./queue.js";
import { createSamples } from "./samples.js";
import { readDescription } from "./schema.js";
import { submit } from "./sending.js";
import { createSent, requestOf } from "./sent.js";
import { startStatus } from "./status.js";
import { startTheme } from "./theme.js";

startTheme();
const http = createHttp(askForKey);
const sent = createSent();
const jobs = createJobs(http, onJob);
const compare = createCompare(http);
const queue = createQueue(jobs, { onOpen: openJob, onCompare: compare.open, onMore: () => attempt(jobs.more) });
const detail = createDetail(http, jobs, { sent: sent.of, cancel, remove, retry, curl, load, use: (name, job) => form?.composer.useJob(name, job) });
const samples = createSamples(byId("samples"));
const states = new Map();
let form = null;
let making = false;
let isReady = false;

startStatus(http, (ready) => {
  if (!form && !making) makeForm(ready);
  nameBackends(ready);
  if (form) samples.offer(ready, form.composer);
  if (!isReady && ready.status === "ready") form?.estimate.soon();
  isReady = ready.status === "ready";
  allowSending();
});
jobs.refresh();
startFoot(document.querySelector(".foot"));
startKeys();
startPaste();

function nameBackends(ready) {
  if (!form || form.isNamed || !ready.attention) return;
  form.composer.nameBackends(ready);
  form.isNamed = true;
}

function allowSending() {
  byId("send").disabled = !form || !isReady;
}

/** Made while the server still loads, so that a prompt can be written meanwhile. */
async function makeForm(ready) {
  making = true;
  try {
    const description = await readDescription(http);
    let estimate = { soon() {} };
    const composer = createComposer(description, ready, () => estimate.soon());
    const problems = createProblems(composer.placeOf, byId("problems"));
    estimate = createEstimate(http, composer, problems);
    estimate.soon();
    form = { composer, problems, estimate, isNamed: false };
    byId("form").hidden = false;
    byId("form-waits").hidden = true;
    nameBackends(ready);
    samples.offer(ready, composer);
    allowSending();
  } catch (error) {
    byId("form-waits").textContent = `The form can't be made: ${error.message}`;
  } finally {
    making = false;
  }
}

byId("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { request, files } = form.composer.read();
  form.estimate.stop();
  await send(request, files);
});

byId("curl").addEventListener("click", () => {
  const { request, files } = form.composer.read();
  const names = Object.fromEntries(Object.entries(files).map(([part, file]) => [part, file.name]));
  showCurl(request, names);
});

/** Whether it was queued. What is wrong with it is shown at the form. */
async function send(request, files) {
  const button = byId("send");
  button.setAttribute("aria-busy", "true");
  button.disabled = true;
  button.textContent = "Sending…";
  say("Sending.");
  try {
    const job = await submit(http, request, files);
    form?.problems.clear();
    form?.estimate.soon();
    sent.remember(job.id, request, files);
    jobs.put(job);
    jobs.refresh();
    openJob(job.id, false);
    say(`Queued as ${job.output}.`);
    return true;
  } catch (error) {
    refused(error);
    return false;
  } finally {
    button.removeAttribute("aria-busy");
    allowSending();
    button.textContent = "Generate";
    // What was queued has been brought into view; the focus stays where it was without taking that back.
    button.focus({ preventScroll: true });
  }
}

function refused(error) {
  if (!form) return say(error.message);
  const errors = error instanceof Problem ? error.errors : [];
  const text = error instanceof Problem ? error.message : "The server can't be reached.";
  const count = `${errors.length} ${errors.length === 1 ? "thing" : "things"} to correct:`;
  form.problems.show(errors, { heading: errors.length ? count : text, loud: true });
  return byId("problems").scrollIntoView({ block: "nearest" });
}

function onJob(job) {
  if (job === null) {
    queue.draw();
    if (detail.id() && !jobs.get(detail.id())) detail.close();
    byId("jobs-trouble").hidden = jobs.state.isReachable;
    byId("enter-key").hidden = !http.isLocked();
    return;
  }
  const now = jobs.get(job.id);
  if (!now) return;
  announce(now);
  queue.update(now);
  if (job.isPreview) detail.move(job.id);
  else detail.update(now);
}

/** Ends are read out, once each, and only of jobs that were seen alive. */
function announce(job) {
  const before = states.get(job.id);
  states.set(job.id, job.status);
  if (before && before !== job.status && hasEnded(job)) say(`${job.output}: ${job.status}.`);
}

function openJob(id, withFocus = true) {
  detail.open(id);
  queue.mark(id);
  if (withFocus) byId("detail").querySelector("h2").focus();
  const { top } = byId("detail").getBoundingClientRect();
  if (top < 0 || top > window.innerHeight - 120) byId("detail").scrollIntoView({ block: "start" });
}

async function attempt(work) {
  try {
    return await work();
  } catch (error) {
    say(error.message);
    const place = byId("jobs-error");
    place.textContent = error.message;
    place.hidden = false;
    setTimeout(() => (place.hidden = true), 8000);
    return undefined;
  }
}

function cancel(id) {
  return attempt(async () => {
    await jobs.cancel(id);
    say("Cancelled; what computes stops at its next step.");
  });
}

async function remove(id) {
  const job = jobs.get(id);
  if (!(await confirmed("Delete this job?", `${job.output} and all that belongs to it are removed from the server.`, "Delete"))) return;
  await attempt(async () => {
    await jobs.remove(id);
    detail.close();
    byId("jobs-title").focus();
    say("Deleted.");
  });
}

async function retry(id) {
  const { request, files } = sent.of(id);
  await send(request, files);
}

function curl(id) {
  const own = sent.of(id);
  const job = jobs.get(id);
  const note = own ? "" : "Sent by another client: what media it was given is not known here, so they are not in the command.";
  showCurl(own?.request ?? requestOf(job), own?.names ?? {}, note);
}

function showCurl(request, names, note = "") {
  const files = Object.keys(names).length ? "The files are looked for in the current folder. " : "";
  const key = http.hasKey() ? "The key is taken from $H3_API_KEY." : "";
  showText("Copy as curl", curlCommand(location.origin, request, names, http.hasKey()), `${note} ${files}${key}`.trim());
}

function load(id) {
  const own = sent.of(id);
  form?.composer.load(own?.request ?? requestOf(jobs.get(id)));
  const hasMedia = own ? Object.keys(own.names).length > 0 : jobs.get(id).task !== "t2va";
  byId("compose").scrollIntoView({ block: "start" });
  form?.composer.focus();
  say(hasMedia ? "Settings loaded. Its pictures, clips and sounds must be added again." : "Settings loaded.");
}

function startKeys() {
  byId("enter-key").addEventListener("click", async () => {
    http.forget();
    await http.askOnce();
    jobs.refresh();
    form?.estimate.soon();
  });
}

/** Files from the clipboard, and such as fall beside the places for them. */
function startPaste() {
  const take = (files) => form && files.length > 0 && form.composer.takeFiles([...files]);
  document.addEventListener("paste", (event) => {
    const { files } = event.clipboardData;
    if (!files.length) return;
    event.preventDefault();
    const zone = document.activeElement?.closest(".drop");
    if (zone) zone.takeFiles(files);
    else take(files);
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    take(event.dataTransfer.files);
  });
}
