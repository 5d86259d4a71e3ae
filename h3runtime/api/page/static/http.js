// Requests to the server this page came from: the key goes along, a 401 asks for one, problems become `Problem`.

const KEY = "h3-api-key";

/** An answer that isn't a success. `errors`: offences of fields, as the server lists them. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `the server answered ${status}`);
    this.status = status;
    this.code = body.code || "";
    this.errors = body.errors || [];
    this.requestId = body.request_id || "";
  }
}

export function createHttp(askForKey) {
  let asking = null;
  let declined = false;
  const key = () => sessionStorage.getItem(KEY) || "";

  function withKey(headers) {
    return key() ? { ...headers, Authorization: `Bearer ${key()}` } : { ...headers };
  }

  /** One question at a time, however many requests were refused. Whether there is a new key. */
  function askOnce() {
    asking ||= askForKey(key() !== "").then((given) => {
      asking = null;
      declined = given === null;
      if (given !== null) sessionStorage.setItem(KEY, given);
      return given !== null;
    });
    return asking;
  }

  /** `fetch` with the key. quiet: a background request, which doesn't ask again once the question was declined. */
  async function send(path, { headers = {}, quiet = false, ...options } = {}) {
    for (;;) {
      const sent = key();
      const answer = await fetch(path, { ...options, headers: withKey(headers), cache: "no-store" });
      if (answer.status !== 401 || (quiet && declined)) return answer;
      if (key() === sent && !(await askOnce())) return answer;
    }
  }

  /** The JSON of a success; anything else is thrown as a `Problem`. */
  async function json(path, options = {}) {
    const answer = await send(path, options);
    const body = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Problem(answer.status, body);
    return body;
  }

  function forget() {
    sessionStorage.removeItem(KEY);
    declined = false;
  }

  return { send, json, askOnce, forget, hasKey: () => key() !== "", isLocked: () => declined };
}
