// The board: what the daemon tells, section by section, at most one section a frame.

import { curl, follow, forgetToken, get, keepToken, post, Refused, takeTokenFromLink, token } from "./daemon.js";
import { $, careful, h, KeyedList, number, seconds, write } from "./dom.js";
import { Lane, marksTable, setZero, writeEnd } from "./lanes.js";

const PAGE = 50;
const MAX_STACKS = 30;
const WINDOW_KEPT = "callboard.window";
const SHORTCUTS_KEPT = "callboard.shortcuts";

/** The rows of each section, by key, in their order; `offset`: what the daemon's clock is ahead of ours, in seconds. */
const state = { sections: {}, offset: 0, limit: PAGE, scope: "use" };
const now = () => Date.now() / 1000 + state.offset;
const rowsOf = (name) => [...(state.sections[name]?.values() ?? [])];
const may = (scope) => ["use", "approve", "admin"].indexOf(state.scope) >= ["use", "approve", "admin"].indexOf(scope);

// -- parts of rows

/** A button that shows the same call for a terminal, with its URL. */
function curlButton(method, path, body, what) {
  const shown = h("div", { class: "curl", hidden: true });
  const button = h("button", { type: "button", "aria-expanded": "false", "aria-label": `curl line of ${what}` }, "curl");
  button.addEventListener("click", () => {
    if (!shown.firstChild) shown.append(...curlLine(method, path, body, what));
    shown.hidden = !shown.hidden;
    button.setAttribute("aria-expanded", String(!shown.hidden));
  });
  return { button, shown };
}

function curlLine(method, path, body, what) {
  const line = curl(method, path, body);
  const code = h("code", { tabindex: "0" }, line);
  const copy = h("button", { type: "button", "aria-label": `Copy the curl line of ${what}` }, "Copy");
  copy.addEventListener("click", async () => {
    await navigator.clipboard?.writeText(line).catch(() => undefined);
    const range = document.createRange();
    range.selectNodeContents(code);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    write(copy, "Copied");
    setTimeout(() => write(copy, "Copy"), 2000);
  });
  return [h("span", { class: "url" }, `${method} ${location.origin}${path}`), code, copy];
}

const part = (text) => encodeURIComponent(text);
const requestPath = (id) => `/api/requests/${part(id)}`;

/** Do something on the daemon; what goes wrong is shown beside the button. */
async function act(button, path, body, done = "Done") {
  const place = button.closest("li, tr, div") ?? button.parentElement;
  $(".problem", place)?.remove();
  button.disabled = true;
  try {
    await post(path, body);
    write(button, done);
  } catch (error) {
    const cell = place.tagName === "TR" ? place.lastElementChild : place;
    cell.append(h("p", { class: "problem", role: "alert" }, error.message));
  } finally {
    setTimeout(() => (button.disabled = false), 1000);
  }
}

const KINDS = {
  approval: "approval", deadline: "deadline", deferred: "deferred", rate_limit: "rate limit", retry: "retry",
  withdrawn: "withdrawn", left_open: "left open", server: "MCP server", mailbox: "mailbox", busy: "busy",
};
/** Where to look further, by the kind of what is stuck. */
const STUCK_PATHS = { approval: () => "/api/approvals", withdrawn: () => "/api/tools", mailbox: () => "/api/actors", busy: () => "/api/actors" };

function stuckRow(row) {
  const path = (STUCK_PATHS[row.kind] ?? (() => (row.request_id ? requestPath(row.request_id) : "/api/board")))();
  const { button, shown } = curlButton("GET", path, null, row.what);
  const since = h("span", { class: "number since" });
  const why = h("span", { class: "why" });
  const element = h(
    "li", { tabindex: "-1", class: `stuck ${row.kind}` },
    h("span", { class: "badge" }, KINDS[row.kind] ?? row.kind), h("strong", {}, row.what), why, since,
    row.request_id ? h("a", { href: "#requests", class: "of", onclick: (event) => find(event, row.request_id) }, row.request_id) : null,
    button, shown,
  );
  let at = row;
  const tick = () => {
    write(since, at.since ? `${seconds(now() - at.since)}${rest(at)}` : "");
  };
  return { element, tick, update: (next) => { at = next; write(why, next.why); tick(); } };
}

/** What is left of a wait, or of the time that a call has. */
function rest({ until, deadline }) {
  if (until) return `, goes on in ${seconds(until - now())}`;
  return deadline ? `, ${seconds(deadline - now())} left` : "";
}

function find(event, id) {
  event.preventDefault();
  $("#filter").value = id;
  dirty("requests");
  $("#requests").focus();
}

// -- approvals

function approvalCard(row) {
  const path = `/api/approvals/${part(row.request_id)}/${row.step}/${part(row.call_id)}`;
  const { button, shown } = curlButton("POST", path, { answer: "once" }, `approving ${row.tool}`);
  const reason = h("input", { type: "text", "aria-label": `Why ${row.tool} is denied`, placeholder: "reason, for the model" });
  const answer = (kind, words) => (event) => act(event.target, path, { answer: kind, ...(kind.startsWith("deny") ? { reason: reason.value } : {}) }, words);
  const since = h("span", { class: "quiet since" });
  const title = `approval-${row.request_id}-${row.step}-${row.call_id}`;
  const element = h(
    "li", { class: "card", tabindex: "-1", "aria-labelledby": title },
    h("h4", { id: title }, `May ${row.tool} run?`),
    h("p", {}, h("span", { class: "badge" }, row.risk), ` ${row.why} `, since),
    row.after_untrusted ? h("p", { class: "warning" }, "The request has read text that is not its owner's.") : null,
    row.confinement ? h("p", { class: "quiet" }, row.confinement) : null,
    row.touches.length ? h("ul", { "aria-label": `What ${row.tool} touches` }, ...row.touches.map((each) => h("li", {}, each))) : null,
    row.diff ? diff(row.diff, row.tool) : null,
    h("details", { open: !row.diff }, h("summary", {}, "Arguments"), h("pre", { tabindex: "0", "aria-label": `Arguments of ${row.tool}` }, row.arguments)),
    h("div", { class: "actions" },
      h("button", { type: "button", class: "main approve", onclick: answer("once", "Approved") }, "Approve"),
      h("button", { type: "button", onclick: answer("request", "Approved") }, "Approve for this request"),
      h("button", { type: "button", class: "deny", onclick: answer("deny", "Denied") }, "Deny"),
      reason, button),
    shown,
  );
  const tick = () => write(since, `asked ${seconds(now() - row.since)} ago`);
  return { element, tick, update: tick };
}

const DIFF_LINES = { "+": "added", "-": "removed", "@": "place" };

function diff(text, tool) {
  const lines = text.trimEnd().split("\n").map((line) => {
    const isHead = line.startsWith("+++") || line.startsWith("---");
    return h("span", { class: isHead ? "file" : DIFF_LINES[line[0]] ?? "" }, `${line}\n`);
  });
  return h("pre", { class: "diff", tabindex: "0", "aria-label": `What ${tool} would change` }, ...lines);
}

let announced = null;

/** A screen reader is told of approvals that are new, and of nothing else. */
function announce(rows) {
  const keys = new Set(rows.map((row) => row.key));
  const fresh = announced ? rows.filter((row) => !announced.has(row.key)) : [];
  announced = keys;
  if (fresh.length === 1) write($("#announcer"), `${fresh[0].tool} needs an approval`);
  else if (fresh.length) write($("#announcer"), `${fresh.length} calls need an approval`);
}

// -- requests

function requestRow(row) {
  const lane = new Lane();
  const [stateAt, took, end] = [h("span", { class: "state" }), h("span", { class: "number took" }), h("span", { class: "why" })];
  const cancel = careful("Cancel", `Cancel request ${row.key}`, (button) => act(button, `${requestPath(row.key)}/cancel`, { reason: "cancelled on the board" }, "Cancelling"));
  const { button, shown } = curlButton("GET", requestPath(row.key), null, `request ${row.key}`);
  const details = h("div", { class: "details", hidden: true });
  const more = h("button", { type: "button", class: "id", "aria-expanded": "false", "aria-label": `Request ${row.key}, details` }, row.key);
  const element = h("li", { class: "request", tabindex: "-1" }, h("div", { class: "who" }, more, h("span", { class: "quiet" }, row.model), stateAt), lane.element, h("div", { class: "actions" }, took, cancel, button), end, shown, details);
  let at = row;
  const showDetails = () => details.replaceChildren(marksTable(at, now()));
  more.addEventListener("click", () => {
    details.hidden = !details.hidden;
    more.setAttribute("aria-expanded", String(!details.hidden));
    if (!details.hidden) showDetails();
  });
  const tick = (isFirst) => {
    if (isFirst || !at.ended_at || windowSeconds) lane.move(now(), windowSeconds);
    if (isFirst || !at.ended_at) write(took, seconds((at.ended_at ?? now()) - at.begun_at));
  };
  const update = (next) => {
    at = next;
    element.className = `request ${next.outcome || "running"}`;
    write(stateAt, next.state);
    cancel.hidden = next.ended_at !== null;
    lane.draw(next, now());
    writeEnd(end, next);
    if (!details.hidden) showDetails();
    tick(true);
  };
  return { element, tick, update };
}

let windowSeconds = Number(sessionStorage.getItem(WINDOW_KEPT) ?? 60);

function writeAxis() {
  const [from, until] = document.querySelectorAll("#axis i");
  write(from, windowSeconds ? `${seconds(windowSeconds)} ago` : "begun");
  write(until, windowSeconds ? "now" : "ended, or now");
}

function showRequests() {
  const all = rowsOf("requests");
  const words = $("#filter").value.trim().toLowerCase();
  const found = words ? all.filter((row) => `${row.key} ${row.model} ${row.state}`.toLowerCase().includes(words)) : all;
  const running = all.filter((row) => row.ended_at === null).length;
  count("requests", `${number(running)} running`);
  empty("requests", found.length, words ? "No request has these words." : "No requests yet.");
  $("#axis").hidden = !found.length;
  const isPartial = lists.requests.show(found.slice(0, state.limit));
  const more = $("#more-requests");
  more.hidden = found.length <= state.limit;
  write(more, `Show more: ${number(Math.min(state.limit, found.length))} of ${number(found.length)} are shown`);
  const waiting = rowsOf("stuck").length;
  write($("#summary"), `${number(running)} running · ${number(waiting)} stuck`);
  document.title = waiting ? `(${waiting}) callboard` : "callboard";
  return isPartial;
}

// -- actors

/** The supervisor of a worker does not start it again: another takes its place. */
const WORKER = /^root\/tools\/[^/]+\/\d+$/;

function actorRow(row) {
  const cells = [h("td"), h("td", { class: "number" }), h("td", { class: "number" })];
  const at = (what) => `/api/actors/${what}`;
  const isSpared = ["root", "root/sessions"].includes(row.key);
  const restart = careful("Restart", `Restart ${row.key}`, (button) => act(button, at("restart"), { path: row.key }, "Restarted"));
  const kill = careful("Kill", `Kill ${row.key}`, (button) => act(button, at("kill"), { path: row.key }, "Killed"));
  const { button, shown } = curlButton("POST", at("kill"), { path: row.key }, `killing ${row.key}`);
  const actions = h("td", {}, h("div", { class: "actions" }, isSpared || row.is_request || WORKER.test(row.key) ? null : restart, isSpared ? null : kill, isSpared ? null : button), shown);
  const hidden = h("span", { class: "quiet" });
  const element = h("tr", { tabindex: "-1", "data-actor": row.key }, h("th", { scope: "row", class: `depth-${Math.min(row.depth, 5)}` }, row.name, hidden), ...cells, actions);
  let restarts = row.restarts;
  const update = (next) => {
    write(cells[0], next.state);
    write(cells[1], number(next.mailbox));
    write(cells[2], number(next.restarts));
    write(hidden, next.hidden ? ` and ${number(next.hidden)} more below` : "");
    if (next.restarts > restarts) {
      element.classList.remove("changed");
      requestAnimationFrame(() => element.classList.add("changed"));
    }
    restarts = next.restarts;
  };
  return { element, update };
}

// -- usage

function showUsage() {
  const rows = rowsOf("usage");
  const models = new Map();
  const minutes = new Map();
  for (const row of rows) {
    const sum = models.get(row.model) ?? { key: row.model, requests: 0, model_calls: 0, input_tokens: 0, output_tokens: 0, cost: 0, unknown_cost: 0 };
    for (const name of Object.keys(sum)) if (name !== "key") sum[name] += row[name];
    models.set(row.model, sum);
    const minute = minutes.get(row.minute_at) ?? [0, 0];
    minutes.set(row.minute_at, [minute[0] + row.input_tokens, minute[1] + row.output_tokens]);
  }
  empty("usage", rows.length, "No request has ended yet.");
  lists.usage.show([...models.values()]);
  drawUsage(minutes);
}

function drawUsage(minutes) {
  const last = Math.floor(now() / 60);
  const shown = [...minutes].map(([at, both]) => [59 - (last - at / 60), both]).filter(([x]) => x >= 0);
  const most = Math.max(1, ...shown.map(([, [taken, given]]) => taken + given));
  const bars = shown.flatMap(([x, [taken, given]]) => {
    const [low, high] = [(taken / most) * 96, (given / most) * 96];
    return [rect("tokens-in", x, 100 - low, low), rect("tokens-out", x, 100 - low - high, high)];
  });
  $("#usage-chart").replaceChildren(...bars);
  write($("#usage-axis"), shown.length ? `The last hour by minute; the highest bar is ${number(most)} tokens. Dark: in, light: out.` : "Nothing in the last hour.");
}

function rect(kind, x, y, height) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [name, value] of Object.entries({ class: kind, x: x + 0.1, y, width: 0.8, height })) made.setAttribute(name, value);
  return made;
}

function usageRow(row) {
  const cells = Array.from({ length: 5 }, () => h("td", { class: "number" }));
  const element = h("tr", {}, h("th", { scope: "row" }, row.key), ...cells);
  const update = (next) => {
    const cost = next.unknown_cost ? `${next.cost.toFixed(4)} + unknown` : next.cost.toFixed(4);
    const shown = [next.requests, next.model_calls, next.input_tokens, next.output_tokens].map(number);
    [...shown, cost].forEach((text, at) => write(cells[at], text));
  };
  return { element, update };
}

// -- dead letters

function letterRow(row) {
  const path = `/api/dead-letters/${row.key}/replay`;
  const replay = careful("Replay", `Replay dead letter ${row.key}`, (button) => act(button, path, {}, "Sent"));
  const { button, shown } = curlButton("POST", path, {}, `replaying dead letter ${row.key}`);
  const element = h(
    "tr", { tabindex: "-1" },
    h("td", { class: "number" }, row.key), h("th", { scope: "row" }, row.message), h("td", {}, row.recipient),
    h("td", {}, row.note ? `${row.reason}: ${row.note}` : row.reason), h("td", {}, h("div", { class: "actions" }, replay, button), shown),
  );
  return { element, update: () => undefined };
}

// -- stacks

const stack = { row: null };

function runningTools() {
  const found = [];
  for (const row of rowsOf("requests")) {
    if (row.ended_at !== null) continue;
    for (const mark of row.marks) if (mark.kind === "tool" && mark.to === null) found.push({ ...mark, key: `${row.key}/${mark.number}`, request: row.key });
    if (found.length >= MAX_STACKS) break;
  }
  return found.slice(0, MAX_STACKS);
}

function toolRow(row) {
  const took = h("span", { class: "number since" });
  const path = `${requestPath(row.request)}/stack`;
  const { button, shown } = curlButton("GET", path, null, `the stack of ${row.name}`);
  const show = h("button", { type: "button", "aria-label": `Stack of ${row.name} in ${row.request}` }, "Stack");
  show.addEventListener("click", () => { stack.row = row; showStack(); });
  const element = h("li", { class: "stuck", tabindex: "-1" }, h("strong", {}, row.name), h("span", { class: "why" }, `of ${row.request}, step ${row.step}`), took, show, button, shown);
  const tick = () => write(took, `${seconds(now() - row.from)}${row.deadline ? `, ${seconds(row.deadline - now())} left` : ""}`);
  return { element, tick, update: tick };
}

async function showStack() {
  const { row } = stack;
  if (!row) return;
  $("#stack-shown").hidden = false;
  write($("#stack-of"), `${row.name}, ${row.request}`);
  const place = $("#stack-shown pre");
  try {
    const found = (await get(`${requestPath(row.request)}/stack`)).calls.find((each) => each.call_id === row.call_id);
    if (stack.row === row) write(place, found ? found.stack || found.error : "The call has ended.");
  } catch (error) {
    if (stack.row === row) write(place, error.message);
  }
}

// -- showing

const lists = {
  stuck: new KeyedList($("#stuck-rows"), stuckRow), approvals: new KeyedList($("#approval-cards"), approvalCard),
  requests: new KeyedList($("#request-rows"), requestRow), actors: new KeyedList($("#actor-rows"), actorRow),
  usage: new KeyedList($("#usage-rows"), usageRow), letters: new KeyedList($("#letter-rows"), letterRow),
  tools: new KeyedList($("#tool-rows"), toolRow),
};

const count = (section, text) => write($(`#${section} .count`), text);

function empty(section, length, words) {
  const place = $(`#${section} > .empty`);
  place.hidden = length > 0;
  const table = $(`#${section} > table`);
  if (table) table.hidden = length === 0;
  if (words) write(place, words);
}

/** How each section is shown; true: there is more to be shown. */
const SHOW = {
  stuck: () => {
    const rows = rowsOf("stuck");
    count("stuck", rows.length ? number(rows.length) : "");
    empty("stuck", rows.length);
    dirty("requests");
    return lists.stuck.show(rows);
  },
  approvals: () => {
    const rows = rowsOf("approvals");
    $("#approvals").hidden = !rows.length;
    count("approvals", rows.length ? number(rows.length) : "");
    announce(rows);
    return lists.approvals.show(rows);
  },
  requests: showRequests,
  tools: () => {
    const rows = runningTools();
    empty("stack", rows.length);
    return lists.tools.show(rows.map((row) => lists.tools.shown.get(row.key)?.row ?? row));
  },
  actors: () => {
    const rows = rowsOf("actors");
    count("actors", rows.length ? number(rows.length) : "");
    empty("actors", may("admin") ? 1 : 0);
    return lists.actors.show(rows);
  },
  usage: showUsage,
  dead_letters: () => {
    const rows = rowsOf("dead_letters");
    count("dead-letters", rows.length ? number(rows.length) : "");
    empty("dead-letters", rows.length);
    return lists.letters.show(rows);
  },
};

const waiting = new Set();
let frame = 0;

/** Show a section again, in a frame of its own. */
function dirty(...names) {
  for (const name of names) waiting.add(name);
  frame ||= requestAnimationFrame(showNext);
}

function showNext() {
  const [name] = waiting;
  waiting.delete(name);
  if (SHOW[name]()) waiting.add(name); // it has more rows than one frame makes
  frame = waiting.size ? requestAnimationFrame(showNext) : 0;
}

const MOVING = [lists.stuck, lists.approvals, lists.requests, lists.tools];

/** What counts on by itself, once a second. */
function tick() {
  if (document.hidden) return;
  for (const list of MOVING) for (const each of list.shown.values()) each.tick();
}

// -- hearing

function take(name, rows) {
  state.sections[name] = new Map(rows.map((row) => [row.key, row]));
}

function heard(kind, data) {
  state.offset = data.at - Date.now() / 1000;
  if (kind === "board") {
    setZero(data.at);
    state.scope = data.scope;
    state.sections = {};
    for (const [name, rows] of Object.entries(data.sections)) take(name, rows);
    dirty(...Object.keys(SHOW));
    return;
  }
  for (const [name, change] of Object.entries(data.changes)) {
    const rows = (state.sections[name] ??= new Map());
    for (const key of change.gone ?? []) rows.delete(key);
    for (const row of change.set ?? []) rows.set(row.key, row);
    if (change.order) take(name, change.order.map((key) => rows.get(key)));
    dirty(name);
    if (name === "requests") dirty("tools");
  }
}

let looking = null;

async function open() {
  $("#login").hidden = Boolean(token());
  $("#board").hidden = !token();
  $("#sign-out").hidden = !token();
  if (!token()) {
    $("#token").focus();
    return;
  }
  looking?.abort();
  looking = new AbortController();
  try {
    await follow("/api/board/events", looking.signal, heard, (words) => write($("#connection"), words));
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    signOut(error.message);
  }
}

function signOut(words = "") {
  looking?.abort();
  forgetToken();
  write($("#connection"), "not connected");
  write($("#login-error"), words);
  open();
}

// -- keys

const SECTIONS = ["stuck", "requests", "actors", "usage", "dead-letters", "stack"];
const ROWS = "#board li[tabindex], #board tbody tr[tabindex]";

function step(by) {
  const rows = [...document.querySelectorAll(ROWS)].filter((row) => row.offsetParent);
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  rows[at < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, at + by))]?.focus();
}

const press = (selector) => $(selector, document.activeElement.closest(".card") ?? document.createElement("p"))?.click();

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  a: () => press(".approve"),
  d: () => press(".deny"),
  "/": () => $("#filter").focus(),
  "?": () => $("#help").showModal(),
};
SECTIONS.forEach((id, at) => (KEYS[at + 1] = () => $(`#${id}`).focus()));

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input:not([type=checkbox]), select, dialog[open]");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || !$("#shortcuts-on").checked || $("#board").hidden) return;
  const found = KEYS[event.key];
  if (!found) return;
  event.preventDefault();
  found();
});

// -- the beginning

$("#login form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken($("#token").value.trim());
  $("#token").value = "";
  write($("#login-error"), "");
  open();
});
$("#sign-out").addEventListener("click", () => signOut());
$("#show-help").addEventListener("click", () => $("#help").showModal());
$("#filter").addEventListener("input", () => { state.limit = PAGE; dirty("requests"); });
$("#more-requests").addEventListener("click", () => { state.limit += PAGE; dirty("requests"); });
$("#window").value = String(windowSeconds);
$("#window").addEventListener("change", (event) => {
  windowSeconds = Number(event.target.value);
  sessionStorage.setItem(WINDOW_KEPT, event.target.value);
  writeAxis();
  for (const each of lists.requests.shown.values()) each.tick(true);
});
setTimeout(() => ($("#shortcuts-on").checked = localStorage.getItem(SHORTCUTS_KEPT) !== "off"));
$("#shortcuts-on").addEventListener("change", (event) => localStorage.setItem(SHORTCUTS_KEPT, event.target.checked ? "on" : "off"));
$("#stack-close").addEventListener("click", () => { stack.row = null; $("#stack-shown").hidden = true; });
const usageCurl = curlButton("GET", "/api/usage", null, "the usage by day");
$("#usage-curl").append(usageCurl.button, usageCurl.shown);
writeAxis();
setInterval(tick, 1000);
setInterval(() => { if (stack.row && !document.hidden) showStack(); }, 2000);
takeTokenFromLink();
setTimeout(open); // in a task of its own, as the first look into the browser's storage takes a while
