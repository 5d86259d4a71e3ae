// Requests that were sent from this tab, by job: with their files while the page is open, without them after a reload.

const NAME = "h3-sent";
const KEPT = 50;

export function createSent() {
  const here = new Map();

  function stored() {
    try {
      return JSON.parse(sessionStorage.getItem(NAME)) || {};
    } catch {
      return {};
    }
  }

  return {
    remember(id, request, files) {
      here.set(id, { request, files, names: namesOf(files), isWhole: true });
      try {
        const kept = Object.entries({ ...stored(), [id]: { request, names: namesOf(files) } }).slice(-KEPT);
        sessionStorage.setItem(NAME, JSON.stringify(Object.fromEntries(kept)));
      } catch {
        // No room: it is known until the page is left.
      }
    },
    /** {request, names, files, isWhole}; undefined for a job of another client. isWhole: it can be sent again. */
    of(id) {
      if (here.has(id)) return here.get(id);
      const kept = stored()[id];
      return kept && { ...kept, files: {}, isWhole: Object.keys(kept.names).length === 0 };
    },
  };
}

const namesOf = (files) => Object.fromEntries(Object.entries(files).map(([part, file]) => [part, file.name]));

/** What can be told of a job's request by the job alone: everything but its media. */
export function requestOf(job) {
  const { prompt, width, height, frames, steps, sampler, scheduler, shift, audio_shift, seed } = job;
  const made = { prompt, width, height, frames, steps, sampler, scheduler, shift, audio_shift, seed };
  if (job.outputs.length > 1) made.n = job.outputs.length;
  return made;
}
