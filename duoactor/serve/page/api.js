// The gateway's HTTP API: JSON, event streams, and the key that it may ask for.

const KEY = "duoactor-key";
let key = sessionStorage.getItem(KEY) ?? "";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function useKey(given) {
  key = given.trim();
  sessionStorage.setItem(KEY, key);
}

async function call(path, body, signal) {
  const headers = { ...(body && { "content-type": "application/json" }), ...(key && { authorization: `Bearer ${key}` }) };
  const options = body ? { method: "POST", body: JSON.stringify(body) } : {};
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The gateway does not answer; is it still running?");
  }
  if (!answer.ok) {
    const told = await answer.json().catch(() => null);
    throw new Refused(answer.status, told?.error?.message ?? `The gateway answered ${answer.status}.`);
  }
  return answer;
}

export async function json(path, body) {
  return (await call(path, body)).json();
}

/** The events of a streamed answer, parsed, in batches: all that one read brought. Leaving the loop ends the request. */
export async function* events(path, body, signal) {
  const answer = await call(path, body, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n\n");
      rest = lines.pop();
      const batch = lines.filter((line) => line.startsWith("data: {")).map((line) => JSON.parse(line.slice(6)));
      if (batch.length) yield batch;
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
