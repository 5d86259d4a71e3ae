// The state of the server in the header, from /ready: how far it has loaded, what it runs, what stands in the way.
import { byId, el, fill, setText } from "./dom.js";
import { bytes, plain, seconds, shorten, title } from "./words.js";

const SETTLED = 5000;
const MOVING = 1000;

/** onReady(body): each time it is asked. */
export function startStatus(http, onReady) {
  const pill = byId("state");
  const told = byId("state-text");
  const bar = byId("loading");
  const reason = byId("reason");
  const more = byId("server");
  let timer = 0;

  async function ask() {
    clearTimeout(timer);
    let body = null;
    try {
      body = await (await fetch("/ready", { cache: "no-store" })).json();
      show(body);
      onReady(body);
    } catch {
      unreachable();
    }
    timer = setTimeout(ask, ["ready", "dead"].includes(body?.status) ? SETTLED : MOVING);
  }

  function unreachable() {
    setText(pill, "unreachable");
    pill.className = "pill failed";
    setText(told, "The server does not answer.");
    bar.hidden = true;
  }

  function show(body) {
    setText(pill, plain(body.status));
    pill.className = `pill ${body.status}`;
    setText(told, summary(body));
    bar.hidden = !["loading", "warming", "restarting"].includes(body.status);
    bar.value = body.fraction;
    reason.hidden = !body.reason;
    setText(reason, body.reason ? `${title(body.status)}: ${shorten(body.reason, 600)}` : "");
    if (!more.open) fill(byId("server-facts"), ...factsOf(body));
  }

  ask();
  return { ask };
}

function summary(body) {
  if (body.loading) {
    const { component, bytes_done: done, bytes_in_all: all } = body.loading;
    return `${plain(component)}, ${bytes(done)} of ${bytes(all)}`;
  }
  if (body.status === "ready") return `${body.device} · ${body.queue_depth} waiting`;
  return body.status === "loading" || body.status === "warming" ? plain(body.stage) : "";
}

function factsOf(body) {
  const models = body.models.map((model) => [
    title([model.component, model.partition].filter(Boolean).join(" ")),
    `${model.file}, ${model.format}, ${bytes(model.bytes)}${model.synthetic ? ", made-up weights" : ""}${model.model ? `, ${model.model}` : ""}`,
  ]);
  const facts = [
    ["Version", body.version],
    ["Device", body.device ?? "not known yet"],
    ["Checkpoint", body.checkpoint],
    ...models,
    ["Attention", body.attention && `${body.attention.default} (${body.attention.why})`],
    ["Linear", body.linear && `${body.linear.default} (${body.linear.why})`],
    ["Waiting", `${body.queue_depth} of ${body.limits.queue_limit}`],
    ["Cold start", body.startup?.cold_start_seconds ? seconds(body.startup.cold_start_seconds) : null],
    ["Restarts", body.restarts ? String(body.restarts) : null],
    ["Warnings", body.warnings.join("; ")],
  ].filter(([, value]) => value);
  return facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]);
}
