// The gateway's HTTP API: JSON, event streams, and the key that it may ask for.

const KEY = "duoactor-key";
let key = sessionStorage.getItem(KEY) ?? "";

export class Refused extends Error {
  /** `status` 0: nobody answered. `param`: of the request, that is to blame. */
  constructor(status, message, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

const gone = () => new Refused(0, "The server is gone. This page asks for it every second; duoactor up starts it again.");

export function useKey(given) {
  key = given.trim();
  sessionStorage.setItem(KEY, key);
}

async function call(path, body, signal) {
  const headers = { ...(body && { "content-type": "application/json" }), ...(key && { authorization: `Bearer ${key}` }) };
  const options = body ? { method: "POST", body: JSON.stringify(body) } : {};
  const answer = await fetch(path, { ...options, headers, signal }).catch(unlessAborted);
  if (answer.status === 401) throw new Refused(401, key ? "That is no key of this gateway." : "This gateway asks for a key.");
  if (!answer.ok) {
    const told = (await answer.json().catch(() => null))?.error;
    throw new Refused(answer.status, told?.message ?? `The gateway answered ${answer.status}.`, told?.param);
  }
  return answer;
}

function unlessAborted(error) {
  throw error.name === "AbortError" ? error : gone();
}

export async function json(path, body) {
  return (await call(path, body)).json();
}

/** The events of a streamed answer, parsed, in batches: all that one read brought. Leaving the loop ends the request. */
export async function* events(path, body, signal) {
  const answer = await call(path, body, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let whole = false;
  try {
    for (;;) {
      const { value, done } = await reader.read().catch(unlessAborted);
      if (done && !whole) throw gone();
      if (done) return;
      const lines = (rest + value).split("\n\n");
      rest = lines.pop();
      whole ||= lines.includes("data: [DONE]");
      const batch = lines.filter((line) => line.startsWith("data: {")).map((line) => JSON.parse(line.slice(6)));
      const failed = batch.find((event) => event.error)?.error;
      if (failed) throw new Refused(failed.type === "service_unavailable" ? 503 : 500, failed.message);
      if (batch.length) yield batch;
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
