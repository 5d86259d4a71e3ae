// The list of jobs: newest first, each with its state, how far it is, and when it will be done.
import { button, byId, el, setText } from "./dom.js";
import { hasEnded } from "./jobs.js";
import { clock, plain, roughly, seconds, shorten } from "./words.js";

export function createQueue(jobs, { onOpen, onCompare, onMore }) {
  const cards = new Map();
  const list = byId("jobs");
  const more = button("Older jobs", onMore);
  const compare = button("Compare side by side", () => onCompare(chosen()), { class: "primary" });
  const bar = el("div", { class: "actions", hidden: true }, compare, button("Clear choice", clear, { class: "quiet" }));
  const nothing = el("p", { class: "muted" }, "No jobs yet.");
  let open = null;
  list.before(bar);
  list.after(nothing, more);

  const chosen = () => [...cards.values()].filter((card) => card.check.checked).map((card) => jobs.get(card.id)).filter(Boolean);

  function clear() {
    for (const card of cards.values()) card.check.checked = false;
    drawChoice();
  }

  function drawChoice() {
    const count = chosen().length;
    bar.hidden = count === 0;
    compare.disabled = count !== 2;
    setText(compare, count === 2 ? "Compare side by side" : "Choose two to compare");
    for (const card of cards.values()) card.check.disabled = count >= 2 && !card.check.checked;
  }

  function draw() {
    const all = jobs.all();
    const ids = new Set(all.map((job) => job.id));
    for (const id of [...cards.keys()].filter((id) => !ids.has(id))) {
      cards.get(id).element.remove();
      cards.delete(id);
    }
    // A card stays the element it is: one that is made anew would lose the focus.
    all.forEach((job, index) => {
      if (!cards.has(job.id)) cards.set(job.id, createCard(job, onOpen, drawChoice));
      const { element } = cards.get(job.id);
      if (list.children[index] !== element) list.insertBefore(element, list.children[index] || null);
      update(job);
    });
    nothing.hidden = all.length > 0;
    more.hidden = !jobs.state.hasMore;
    drawChoice();
  }

  function update(job) {
    const card = cards.get(job.id);
    if (!card) return draw();
    card.update(job, jobs.preview(job.id));
    return card.element.classList.toggle("open", job.id === open);
  }

  return {
    draw,
    update,
    mark(id) {
      open = id;
      for (const [each, card] of cards) card.element.classList.toggle("open", each === id);
    },
    focus: (id) => cards.get(id)?.open.focus(),
  };
}

function createCard(job, onOpen, onChoice) {
  const id = `job-${job.id}`;
  const name = el("strong", { class: "name" });
  const told = el("span", { class: "muted" });
  const pill = el("span", { class: "pill" });
  const where = el("span", { class: "muted where" });
  const bar = el("progress", { max: "1", "aria-label": "Progress" });
  const look = el("img", { class: "thumb", alt: "", hidden: true, onclick: () => onOpen(job.id) });
  const open = el("button", { type: "button", class: "card-open", id, onclick: () => onOpen(job.id) }, name, told);
  const check = el("input", { type: "checkbox", id: `${id}-compare`, onchange: onChoice });
  const choice = el("div", { class: "field check" }, check, el("label", { for: check.id }, "Compare"));
  const element = el("li", { class: "card" }, look, el("div", { class: "card-text" }, open, el("div", { class: "row" }, pill, where), bar), choice);

  function update(now, preview) {
    setText(name, shorten(now.prompt.split("\n").find((line) => line.trim()) || now.output, 90));
    setText(told, `${now.task} · ${now.width}×${now.height} · ${seconds(now.seconds)} · ${clock(now.created_at)}`);
    setText(pill, now.status);
    pill.className = `pill ${now.status}`;
    setText(where, whereabouts(now));
    bar.hidden = now.status !== "running";
    bar.value = now.progress.fraction;
    look.hidden = !preview || (hasEnded(now) && now.status !== "succeeded");
    if (preview && look.src !== preview) look.src = preview;
    choice.hidden = now.status !== "succeeded";
  }

  return { id: job.id, element, open, check, update };
}

/** Where a job is, in a few words. */
export function whereabouts(job) {
  const { stage, step, steps, eta_seconds: eta } = job.progress;
  if (job.status === "running") {
    const at = steps > 1 ? `${plain(stage)}, step ${step} of ${steps}` : plain(stage);
    return eta === null || eta === undefined ? at : `${at}, ${roughly(eta)} left`;
  }
  if (job.status === "queued") return eta ? `${roughly(eta)} left` : "waits";
  if (job.status === "failed") return job.error ? `${job.error.code}${job.error.stage ? ` in ${plain(job.error.stage)}` : ""}` : "";
  const { total, queue = 0 } = job.timings;
  return job.status === "succeeded" && total ? `took ${seconds(Math.max(0, total - queue))}` : "";
}

