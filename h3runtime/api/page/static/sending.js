// Puts a request and its files into a body: JSON where there are no files, a form otherwise.

/** Options of a `fetch` that posts it. */
export function bodyOf(request, files) {
  if (Object.keys(files).length === 0) {
    return { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(request) };
  }
  const form = new FormData();
  form.append("request", JSON.stringify(request));
  for (const [part, file] of Object.entries(files)) form.append(part, file, file.name);
  return { method: "POST", headers: {}, body: form };
}

export const sizeOf = (files) => Object.values(files).reduce((sum, file) => sum + file.size, 0);

/** A name for one press of the button: a request that is sent again after a broken connection makes one job. */
function freshKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Queues a request; the job as it is then. A connection that breaks is tried once more, under the same key. */
export async function submit(http, request, files, idempotencyKey = freshKey()) {
  const post = () => {
    const { headers, ...options } = bodyOf(request, files);
    const asked = { Prefer: "respond-async", "Idempotency-Key": idempotencyKey };
    return http.json("/generate", { ...options, headers: { ...headers, ...asked } });
  };
  try {
    return await post();
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    return post();
  }
}
