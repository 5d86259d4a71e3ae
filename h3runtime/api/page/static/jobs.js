// The jobs that the server knows, kept up to date: a list now and then, a stream of events for those that move.
import { followEvents } from "./events.js";

const STREAMS = 2;
/** A browser opens six connections to a server; the rest are for everything else. */
const PAGE = 30;
const LIVE_PAUSE = 2000;
const IDLE_PAUSE = 8000;
/** In the place of a step: the look that a finished clip keeps. */
const LEFT = "left";

export const hasEnded = (job) => !["queued", "running"].includes(job.status);

/** onChange(job | null): something of this job, or of which jobs there are. */
export function createJobs(http, onChange) {
  const jobs = new Map();
  const streams = new Map();
  const polled = new Set();
  const previews = createPreviews(http, onChange);
  const state = { hasMore: false, isReachable: true, deleted: new Set() };
  let timer = 0;

  // A tab that nobody sees asks for nothing; streams go on, so that its jobs' ends are still heard.
  document.addEventListener("visibilitychange", () => document.hidden || refresh());

  const path = (id, rest = "") => `/jobs/${encodeURIComponent(id)}${rest}`;
  const newestFirst = () => [...jobs.values()].sort((a, b) => (a.id < b.id ? 1 : -1));

  function put(job) {
    if (state.deleted.has(job.id)) return;
    const known = jobs.get(job.id);
    // The stream may be ahead of a list that was read before it.
    const isBehind = known && (hasEnded(known) && !hasEnded(job) || known.status === job.status && known.progress.fraction > job.progress.fraction);
    if (isBehind) return;
    jobs.set(job.id, job);
    if (job.status === "succeeded") previews.settle(job.id);
    else if (hasEnded(job)) previews.drop(job.id);
    onChange(job);
  }

  /** What the page doesn't show any more, the server has dropped. */
  async function refresh() {
    clearTimeout(timer);
    try {
      const page = await http.json(`/jobs?limit=${PAGE}`, { quiet: true });
      const oldest = page.data.at(-1)?.id ?? "";
      const here = new Set(page.data.map((job) => job.id));
      for (const job of page.data) put(job);
      for (const id of [...jobs.keys()].filter((id) => !here.has(id) && (id > oldest || !page.has_more))) gone(id);
      // Where older ones were read, what comes after these is known already.
      if (!page.has_more || newestFirst().at(-1)?.id === oldest) state.hasMore = page.has_more;
      state.isReachable = true;
    } catch {
      state.isReachable = false;
    }
    follow();
    onChange(null);
    if (document.hidden) return;
    timer = setTimeout(refresh, newestFirst().some((job) => !hasEnded(job)) ? LIVE_PAUSE : IDLE_PAUSE);
  }

  function gone(id) {
    jobs.delete(id);
    previews.drop(id);
    stop(id);
  }

  function stop(id) {
    streams.get(id)?.();
    streams.delete(id);
    polled.delete(id);
  }

  /** Streams for what computes first, then for what waits longest. */
  function follow() {
    const live = newestFirst().filter((job) => !hasEnded(job)).reverse();
    const wanted = live.sort((a, b) => (a.status === "running" ? 0 : 1) - (b.status === "running" ? 0 : 1)).slice(0, STREAMS);
    for (const id of [...streams.keys()].filter((id) => !wanted.some((job) => job.id === id))) stop(id);
    for (const { id } of wanted.filter((job) => !streams.has(job.id) && !polled.has(job.id))) {
      streams.set(id, followEvents(http, id, { event: (event) => heard(id, event), ended: () => fetchOne(id), lost: () => poll(id) }));
    }
  }

  function heard(id, { kind, data }) {
    const job = jobs.get(id);
    if (!job) return;
    if (kind === "progress") {
      jobs.set(id, { ...job, progress: { ...job.progress, ...data } });
      if (data.stage === "sampling") previews.refresh(id, data.step);
      onChange(jobs.get(id));
    } else if (kind === "state" && data.status !== job.status) {
      fetchOne(id);
    }
  }

  /** Without a stream, asking is all that is left. */
  async function poll(id) {
    streams.delete(id);
    polled.add(id);
    while (polled.has(id)) {
      const job = await fetchOne(id);
      if (!job || hasEnded(job)) return polled.delete(id);
      if (job.progress.stage === "sampling") previews.refresh(id, job.progress.step);
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
    return undefined;
  }

  /** The job as the server has it now; undefined if it has it no more. */
  async function fetchOne(id) {
    try {
      const job = await http.json(path(id), { quiet: true });
      put(job);
      follow();
      return job;
    } catch (error) {
      if (error.status === 404) {
        gone(id);
        onChange(null);
        return undefined;
      }
      return jobs.get(id);
    }
  }

  async function more() {
    const oldest = newestFirst().at(-1);
    const page = await http.json(`/jobs?limit=${PAGE}&after=${encodeURIComponent(oldest.id)}`);
    for (const job of page.data) put(job);
    state.hasMore = page.has_more;
    onChange(null);
  }

  async function cancel(id) {
    put(await http.json(path(id, "/cancel"), { method: "POST" }));
    follow();
  }

  async function remove(id) {
    await http.json(path(id), { method: "DELETE" });
    state.deleted.add(id);
    gone(id);
    onChange(null);
  }

  return { all: newestFirst, get: (id) => jobs.get(id), refresh, put, follow, more, cancel, remove, state, preview: previews.of };
}

/** The newest look at each job that samples, and the one that is left of a finished clip, as object URLs. */
function createPreviews(http, onChange) {
  const shown = new Map();
  const due = new Set();
  let asking = Promise.resolve();

  /** Asked for once, and one after another: a list has many. */
  function settle(id) {
    if (due.has(id) || shown.get(id)?.step === LEFT) return;
    due.add(id);
    asking = asking.then(() => due.delete(id) && refresh(id, LEFT));
  }

  async function refresh(id, step) {
    const known = shown.get(id) || { step: -1 };
    if (known.isAsking || known.step === step) return;
    shown.set(id, { ...known, step, isAsking: true });
    const answer = await http.send(`/jobs/${encodeURIComponent(id)}/preview`, { quiet: true }).catch(() => null);
    const picture = answer?.ok ? await answer.blob().catch(() => null) : null;
    if (!shown.has(id)) return;
    if (picture && known.url) URL.revokeObjectURL(known.url);
    shown.set(id, { step, isAsking: false, url: picture ? URL.createObjectURL(picture) : known.url });
    if (picture) onChange({ id, isPreview: true });
  }

  function drop(id) {
    due.delete(id);
    const url = shown.get(id)?.url;
    shown.delete(id);
    if (url) URL.revokeObjectURL(url);
  }

  return { refresh, settle, drop, of: (id) => shown.get(id)?.url ?? null };
}
