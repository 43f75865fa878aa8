// The daemon's API: one call, and the stream of what changes on the board. The token is kept for this tab, never in a URL.

const KEPT = "callboard.token";
const RETRY_MS = [500, 1000, 2000, 5000];
/** The daemon says something every 15 s at least (HEARTBEAT_SECONDS of server_events.py). */
const SILENT_MS = 40000;

/** A login link ends in #token=...; it is taken out of the address bar at once. */
export function takeTokenFromLink() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!found) return;
  sessionStorage.setItem(KEPT, found);
  history.replaceState(null, "", location.pathname);
}

export const token = () => sessionStorage.getItem(KEPT) ?? "";
export const keepToken = (value) => sessionStorage.setItem(KEPT, value);
export const forgetToken = () => sessionStorage.removeItem(KEPT);

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, options) {
  const answer = await fetch(path, { ...options, headers: { ...options.headers, Authorization: `Bearer ${token()}` } });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, body.error?.message ?? `the daemon answered ${answer.status}`);
}

export async function get(path) {
  return (await ask(path, { signal: AbortSignal.timeout(15000) })).json();
}

export async function post(path, body = {}) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  return (await ask(path, { ...options, signal: AbortSignal.timeout(15000) })).json();
}

/** The same call for a terminal. */
export function curl(method, path, body) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`; // ids of calls are a model's
  const words = ["curl", '-H "Authorization: Bearer $CALLBOARD_TOKEN"'];
  if (method !== "GET") words.push(`-H 'Content-Type: application/json' -d ${quoted(JSON.stringify(body ?? {}))}`);
  words.push(quoted(location.origin + path));
  return words.join(" ");
}

/** Call `heard(name, data)` for each event until `signal`; again and again where the connection ends. `tell(isConnected, words)`. */
export async function follow(path, signal, heard, tell) {
  for (let failed = 0; !signal.aborted; failed += 1) {
    try {
      const answer = await ask(path, { signal });
      failed = 0;
      tell(true, "connected");
      await readEvents(answer.body, heard);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && [401, 403].includes(error.status)) throw error;
    }
    if (signal.aborted) return;
    const wait = RETRY_MS[Math.min(failed, RETRY_MS.length - 1)];
    tell(false, "connection lost, trying again");
    await new Promise((go) => setTimeout(go, wait));
  }
}

/** Server-sent events of a body: lines, an empty one behind each event. */
async function readEvents(body, heard) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let pieces = [];
  for (;;) {
    const silent = setTimeout(() => reader.cancel().catch(() => undefined), SILENT_MS); // it is read as its end
    const { value, done } = await reader.read();
    clearTimeout(silent);
    if (done) return;
    pieces.push(value);
    if (!value.includes("\n\n") && !value.startsWith("\n")) continue;
    const events = pieces.join("").split("\n\n");
    pieces = [events.pop()];
    for (const each of events) {
      let name = "message";
      const data = [];
      for (const line of each.split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        else if (line.startsWith("data: ")) data.push(line.slice(6));
      }
      if (data.length) heard(name, JSON.parse(data.join("\n")));
    }
  }
}
