// Asks the server what the request as it stands would take, a moment after each change, and shows the answer.
import { button, byId, debounce, el, fill } from "./dom.js";
import { Problem } from "./http.js";
import { bodyOf, sizeOf } from "./sending.js";
import { bytes, plain, roughly, seconds, shorten, whole } from "./words.js";

const PAUSE = 500;
const CARRIED = 16 * 2 ** 20;
/** Uploads larger than this aren't sent at each change of a number. */

export function createEstimate(http, composer, problems) {
  const place = byId("estimate");
  let asked = 0;
  let aborting = new AbortController();

  async function ask() {
    asked += 1;
    const mine = asked;
    aborting.abort();
    aborting = new AbortController();
    const { request, files } = composer.read();
    place.setAttribute("aria-busy", "true");
    try {
      const answer = await http.json("/estimate", { ...bodyOf(request, files), quiet: true, signal: aborting.signal });
      if (mine !== asked) return;
      problems.clear();
      fill(place, ...described(answer, place.querySelector("details")?.open ?? false));
    } catch (error) {
      if (mine === asked && error.name !== "AbortError") refused(error);
    } finally {
      if (mine === asked) place.removeAttribute("aria-busy");
    }
  }

  function refused(error) {
    const isProblem = error instanceof Problem;
    if (isProblem && error.errors.length) problems.show(error.errors, { heading: "Not admitted as it is:", loud: false });
    const text = isProblem ? error.message : "The server can't be reached.";
    fill(place, el("p", { class: "verdict bad" }, `Not admitted: ${shorten(text, 400)}`));
  }

  const soon = debounce(() => {
    if (composer.isEmpty()) {
      problems.clear();
      return fill(place, el("p", { class: "muted" }, "Write a prompt to see what it would take."));
    }
    if (sizeOf(composer.read().files) > CARRIED) {
      const check = button("Check with the files", ask);
      return fill(place, el("p", { class: "muted" }, "The files are large, so they are not sent at each change. "), check);
    }
    return ask();
  }, PAUSE);

  /** stop: nothing of what was asked is shown any more. */
  return {
    soon,
    stop() {
      soon.cancel();
      asked += 1;
      aborting.abort();
      place.removeAttribute("aria-busy");
    },
  };
}

function described(answer, isOpen) {
  const verdict = answer.admitted ? "Would be admitted" : `Not admitted: ${answer.reason?.message ?? "no reason given"}`;
  const total = answer.predicted_seconds?.total;
  const { total: rows, ...kinds } = answer.rows || {};
  const brief = [
    total === undefined ? null : roughly(total),
    `${bytes(answer.predicted_peak_bytes)} of ${bytes(answer.capacity_bytes)} of memory`,
    answer.queue?.waiting ? `${answer.queue.waiting} waiting` : null,
  ].filter(Boolean).join(" · ");
  const facts = [
    ["Clip", `${answer.width}×${answer.height}, ${answer.frames} frames, ${seconds(answer.seconds)}`],
    ["Time", total === undefined ? "unknown until a clip was made here" : roughly(total)],
    ["Memory", `${bytes(answer.predicted_peak_bytes)} of ${bytes(answer.capacity_bytes)}`],
    ["Rows", rows === undefined ? null : `${whole(rows)} (${Object.entries(kinds).filter(([, count]) => count > 0).map(([kind, count]) => `${plain(kind)} ${whole(count)}`).join(", ")})`],
    ["Forwards", answer.forwards],
    ["Waiting", answer.queue ? waiting(answer.queue) : null],
    ["Disk", answer.disk ? `${bytes(answer.disk.needed_bytes)} of ${bytes(answer.disk.free_bytes)} free` : null],
  ].filter(([, value]) => value !== null && value !== undefined);
  const list = el("dl", { class: "settings" }, ...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]));
  const fits = answer.would_fit ? el("p", {}, `Would fit: ${answer.would_fit}`) : null;
  const warnings = (answer.warnings || []).map((text) => el("li", {}, text));
  return [
    el("p", {}, el("span", { class: `verdict ${answer.admitted ? "good" : "bad"}` }, verdict), el("span", { class: "muted" }, ` · ${brief}`)),
    fits,
    el("details", { open: isOpen }, el("summary", {}, "What it takes"), list),
    warnings.length ? el("ul", { class: "warnings", "aria-label": "Warnings" }, ...warnings) : null,
  ];
}

function waiting({ waiting: count, limit, eta_seconds: eta }) {
  const start = eta ? `, starts in ${roughly(eta)}` : "";
  return `${count} of ${limit}${start}`;
}
