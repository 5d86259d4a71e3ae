// Plays the clips of a job. Without a key the browser fetches ranges itself; with one the clip is fetched whole.
import { el, fill, freshId } from "./dom.js";
import { bytes } from "./words.js";

/** A player of one job's clips, with a tab for each variant. close() gives back what it holds. */
export function createPlayer(http, job, { label = job.output } = {}) {
  const video = el("video", { controls: true, loop: true, preload: "metadata", "aria-label": `Clip ${label}` });
  video.setAttribute("playsinline", "");
  const trouble = el("p", { class: "error", role: "status", hidden: true });
  const save = el("a", { class: "button", download: job.output }, "Download");
  const id = freshId("player");
  const seed = el("p", { class: "muted" });
  const tabs = job.outputs.length > 1 ? variantTabs(job.outputs, id, show) : null;
  const panel = el("div", { id, role: job.outputs.length > 1 ? "tabpanel" : null }, video, tabs ? seed : null, trouble);
  let held = null;
  let shown = 0;

  async function show(index) {
    shown = index;
    trouble.hidden = true;
    const output = job.outputs[index];
    const url = await source(output).catch(() => null);
    if (shown !== index) return;
    if (url === null) return failed("The clip can't be fetched.");
    video.src = url;
    save.href = url;
    save.setAttribute("download", output.output);
    save.textContent = `Download (${bytes(output.bytes)})`;
    seed.textContent = `${output.output}, seed ${output.seed}`;
  }

  async function source(output) {
    if (held) URL.revokeObjectURL(held);
    held = null;
    if (!http.hasKey()) return output.url;
    const answer = await http.send(output.url);
    if (!answer.ok) return null;
    held = URL.createObjectURL(await answer.blob());
    return held;
  }

  function failed(text) {
    trouble.textContent = text;
    trouble.hidden = false;
  }

  video.addEventListener("error", () => {
    if (video.src) failed("This browser can't play the clip; it can be downloaded.");
  });
  if (tabs) panel.setAttribute("aria-labelledby", tabs.ids[0]);
  show(0);
  return {
    element: el("div", { class: "player" }, tabs?.element, panel),
    video,
    save,
    shown: () => shown,
    close() {
      video.pause();
      video.removeAttribute("src");
      video.load();
      if (held) URL.revokeObjectURL(held);
    },
  };
}

/** Tabs by the pattern of the ARIA guide: arrows move, one of them is in the order of Tab. */
function variantTabs(outputs, panelId, show) {
  const made = outputs.map((output, index) =>
    el("button", { type: "button", role: "tab", id: freshId("tab"), "aria-controls": panelId, onclick: () => choose(index) }, `Variant ${output.index}`),
  );
  const element = el("div", { role: "tablist", "aria-label": "Variants", class: "tabs" }, ...made);
  element.addEventListener("keydown", (event) => {
    const now = made.indexOf(document.activeElement);
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: made.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose((to + made.length) % made.length);
    made[(to + made.length) % made.length].focus();
  });

  function mark(index) {
    made.forEach((tab, at) => {
      tab.setAttribute("aria-selected", String(at === index));
      tab.tabIndex = at === index ? 0 : -1;
    });
    document.getElementById(panelId)?.setAttribute("aria-labelledby", made[index].id);
  }

  function choose(index) {
    mark(index);
    show(index);
  }

  mark(0);
  return { element, ids: made.map((tab) => tab.id) };
}

