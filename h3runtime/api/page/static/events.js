// Server-sent events of one job over `fetch`, since an EventSource can't send a key. Resumes where it was cut off.

const PATIENCE = 40_000;
/** The server says something every 15 s, so a stream that is silent for longer is dead. */
const TRIES = 3;

/**
 * Follows a job until its end. on: event({id, kind, data}), ended() when the stream closed after the end's state,
 * lost() when it can't be had. Returns what stops it.
 */
export function followEvents(http, jobId, on) {
  const leaving = new AbortController();
  const pace = { last: null, retry: 1000, failures: 0 };

  async function run() {
    while (!leaving.signal.aborted) {
      try {
        if (await readOnce(http, jobId, pace, leaving.signal, on.event)) return on.ended();
      } catch (error) {
        if (leaving.signal.aborted) return undefined;
        if (error.isFinal) return on.lost();
      }
      pace.failures += 1;
      if (pace.failures > TRIES) return on.lost();
      await pause(Math.min(pace.retry * 2 ** (pace.failures - 1), 10_000), leaving.signal);
    }
    return undefined;
  }

  run();
  return () => leaving.abort();
}

/** One connection. True if the job's end came. */
async function readOnce(http, jobId, pace, signal, onEvent) {
  const headers = { Accept: "text/event-stream", ...(pace.last === null ? {} : { "Last-Event-ID": pace.last }) };
  const cut = new AbortController();
  signal.addEventListener("abort", () => cut.abort(), { once: true });
  const answer = await http.send(`/jobs/${encodeURIComponent(jobId)}/events`, { headers, signal: cut.signal, quiet: true });
  if (!answer.ok || !(answer.headers.get("content-type") || "").startsWith("text/event-stream")) {
    cut.abort();
    throw Object.assign(new Error("no stream"), { isFinal: answer.status < 500 });
  }
  let ended = false;
  for await (const event of parse(timed(answer.body.getReader(), cut))) {
    if (event.retry !== undefined) pace.retry = event.retry;
    if (event.id !== undefined) pace.last = event.id;
    if (event.data === undefined) continue;
    pace.failures = 0;
    const data = JSON.parse(event.data);
    ended = event.kind === "state" && !["queued", "running"].includes(data.status);
    onEvent({ id: event.id, kind: event.kind, data });
  }
  return ended;
}

/** The text of a stream, piece by piece; cut off when nothing comes for too long. */
async function* timed(reader, cut) {
  const decoder = new TextDecoder();
  for (;;) {
    const timer = setTimeout(() => cut.abort(), PATIENCE);
    const { done, value } = await reader.read().finally(() => clearTimeout(timer));
    if (done) return;
    yield decoder.decode(value, { stream: true });
  }
}

/** Text -> {id, kind, data, retry}, one for each blank line. */
async function* parse(pieces) {
  let rest = "";
  for await (const piece of pieces) {
    rest = (rest + piece).replaceAll("\r\n", "\n");
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      yield eventOf(rest.slice(0, end));
      rest = rest.slice(end + 2);
    }
  }
}

function eventOf(block) {
  const event = { kind: "message" };
  for (const line of block.split("\n")) {
    const [, name, value] = /^([a-z]+): ?(.*)$/.exec(line) || [];
    if (name === "data") event.data = event.data === undefined ? value : `${event.data}\n${value}`;
    if (name === "event") event.kind = value;
    if (name === "id") event.id = value;
    if (name === "retry") event.retry = Number(value);
  }
  return event;
}

function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    }, { once: true });
  });
}
