// The board: what the daemon tells, section by section, at most one section a frame.

import { announce, decideByKey, forgetApprovals, showApprovals, tickApprovals, waiting } from "./approvals.js";
import { follow, forgetToken, get, keepToken, Refused, takeTokenFromLink, token } from "./daemon.js";
import { $, careful, h, KeyedList, number, seconds, write } from "./dom.js";
import { setZero } from "./lanes.js";
import { failures, list as requestList, listenToWindow, runningCount, showRequests } from "./requests.js";
import { act, askedOf, curlButton, firstOf, fold, idButton, listenForMore, may, now, requestPath, rowsOf, state } from "./rows.js";

const SHORTCUTS_KEPT = "callboard.shortcuts";
/** The daemon tells no more of one kind (MAX_STUCK and MAX_APPROVALS of board_rows.py). */
const MOST_TOLD = 50;
const counted = (length) => (length >= MOST_TOLD ? `${length} or more` : number(length));

// -- what is stuck

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
  const asked = row.request_id ? h("a", { href: "#requests", class: "of", onclick: (event) => find(event, row.request_id) }) : null;
  const element = h(
    "li", { tabindex: "-1", class: `stuck ${row.kind}` },
    h("span", { class: "badge" }, KINDS[row.kind] ?? row.kind), h("strong", {}, row.what), since, why, asked,
    row.request_id ? idButton(row.request_id) : null, button, shown,
  );
  let at = row;
  const tick = () => write(since, timesOf(at));
  const update = (next) => {
    at = next;
    write(why, next.why);
    if (asked) write(asked, askedOf(next.request_id) || "request");
    tick();
  };
  return { element, tick, update };
}

/** Of one kind and one name: the oldest, and how many more there are; they unfold. */
function stuckGroup({ rows: [first] }) {
  const more = h("button", { type: "button", class: "more", "aria-expanded": "false" });
  const inner = h("ul", { class: "rows", hidden: true });
  const oldest = h("ul", { class: "rows" });
  const [top, others] = [new KeyedList(oldest, stuckRow), new KeyedList(inner, stuckRow)];
  const element = h("li", { class: "stuck-group" }, oldest, more, inner);
  let group = { rows: [first] };
  const made = { element, isPartial: false };
  const show = () => {
    top.show(group.rows.slice(0, 1));
    made.isPartial = !inner.hidden && others.show(group.rows.slice(1));
  };
  more.addEventListener("click", () => {
    inner.hidden = !inner.hidden;
    more.setAttribute("aria-expanded", String(!inner.hidden));
    dirty("stuck");
    show();
  });
  made.tick = () => [top, ...(inner.hidden ? [] : [others])].forEach((each) => each.shown.forEach((row) => row.tick()));
  made.update = (next) => {
    group = next;
    more.hidden = group.rows.length < 2;
    write(more, `${counted(group.rows.length)} ${KINDS[group.rows[0].kind] ?? group.rows[0].kind}: ${group.rows[0].what}`);
    show();
  };
  return made;
}

/** Approvals are in a section of their own where they can be decided on. */
const stuckRows = () => rowsOf("stuck").filter((row) => row.kind !== "approval" || !may("approve"));

function showStuck() {
  const rows = stuckRows();
  const groups = new Map();
  for (const row of rows) {
    const key = `${row.kind}/${row.what}`;
    const group = groups.get(key) ?? { key, rows: [] };
    groups.set(key, group);
    group.rows.push(row);
  }
  count("stuck", rows.length ? number(rows.length) : "");
  empty("stuck", rows.length, "Nothing is stuck.");
  dirty("summary");
  const isPartial = lists.stuck.show(firstOf("stuck", [...groups.values()]));
  return [...lists.stuck.shown.values()].some((each) => each.isPartial) || isPartial;
}

/** When a wait is over; else since when it is so, and what is left of the time that a call has. */
function timesOf({ since, until, deadline }) {
  if (until) return `goes on in ${seconds(until - now())}`;
  const left = deadline ? `, ${seconds(deadline - now())} left` : "";
  return since ? `${seconds(now() - since)}${left}` : "";
}

function find(event, id) {
  event.preventDefault();
  $("#filter").value = id;
  dirty("requests");
  $("#requests").scrollIntoView();
  $("#requests").focus();
}

// -- what has failed

function failedRow() {
  const [kind, what, times, since, why] = [h("span", { class: "badge bad" }), h("strong"), h("span", { class: "count" }), h("span", { class: "number since" }), h("span", { class: "why" })];
  const asked = h("a", { href: "#requests", class: "of", onclick: (event) => find(event, at.request.key) });
  const own = h("span");
  const element = h("li", { tabindex: "-1", class: "stuck" }, kind, what, times, since, why, asked, own);
  let at = null;
  const tick = () => write(since, `${seconds(now() - at.at)} ago`);
  const update = (next) => {
    if (at?.request.key !== next.request.key) own.replaceChildren(idButton(next.request.key));
    at = next;
    write(kind, next.kind.replaceAll("_", " "));
    write(what, next.what);
    write(times, next.count > 1 ? `${number(next.count)} times` : "");
    write(why, next.why);
    why.hidden = !next.why;
    write(asked, next.request.asked || "request");
    tick();
  };
  return { element, tick, update };
}

function showFailing() {
  const groups = failures();
  count("failing", groups.length ? number(groups.reduce((sum, each) => sum + each.count, 0)) : "");
  empty("failing", groups.length, "Nothing has failed.");
  dirty("summary");
  return lists.failing.show(firstOf("failing", groups));
}

// -- the summary

function showSummary() {
  const mine = may("approve") ? waiting() : rowsOf("stuck").filter((row) => row.kind === "approval").length;
  const failed = failures().reduce((sum, each) => sum + each.count, 0);
  const stuck = stuckRows().filter((row) => row.kind !== "approval").length;
  write($("#sum-waiting"), mine >= MOST_TOLD ? `${mine}+` : number(mine));
  write($("#sum-stuck"), number(stuck));
  write($("#sum-failing"), number(failed));
  write($("#sum-running"), number(runningCount()));
  document.title = mine + stuck ? `(${mine + stuck}) callboard` : "callboard";
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

/** A tree of which all run and none waits is a line. */
const standsOut = (row) => row.restarts > 0 || row.mailbox > 100 || row.state !== "running";

function showActors() {
  const rows = rowsOf("actors");
  const isOpen = $("#show-tree").getAttribute("aria-expanded") === "true";
  const odd = rows.filter(standsOut);
  $("#actors").hidden = !may("admin");
  count("actors", rows.length ? number(rows.length) : "");
  write($("#actors-line"), odd.length ? `${number(odd.length)} stand out: restarted, not running, or with many messages before them.` : "All run, none was restarted, no mailbox is full.");
  const shown = isOpen ? rows : odd;
  $("#actors .wide").hidden = !shown.length;
  return lists.actors.show(firstOf("actors", shown));
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
  $("#usage").hidden = !rows.length;
  lists.usage.show(firstOf("usage", [...models.values()]));
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
  write($("#usage-axis"), shown.length ? `The last hour by minute; the highest bar is ${number(most)} tokens. Below: in, above: out.` : "Nothing in the last hour.");
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
  const isOpen = (mark) => mark.kind === "tool" && mark.to === null;
  const toolsOf = ({ key, marks }) => marks.filter(isOpen).map((mark) => ({ ...mark, key: `${key}/${mark.number}`, request: key }));
  return rowsOf("requests").filter((row) => row.ended_at === null).flatMap(toolsOf);
}

function toolRow(row) {
  const took = h("span", { class: "number since" });
  const path = `${requestPath(row.request)}/stack`;
  const { button, shown } = curlButton("GET", path, null, `the stack of ${row.name}`);
  const show = h("button", { type: "button", "aria-label": `Stack of ${row.name} in ${row.request}` }, "Stack");
  show.addEventListener("click", () => { stack.row = row; showStack(); });
  const element = h("li", { class: "running-tool", tabindex: "-1" }, h("strong", {}, row.name), h("span", { class: "of" }, askedOf(row.request), `, step ${row.step}`), took, idButton(row.request), ...(may("admin") ? [show, button, shown] : []));
  const tick = () => write(took, `${seconds(now() - row.from)}${row.deadline ? `, ${seconds(row.deadline - now())} left` : ""}`);
  return { element, tick, update: tick };
}

async function showStack() {
  const { row } = stack;
  if (!row) return;
  $("#stack-shown").hidden = false;
  write($("#stack-of"), `${row.name}: ${askedOf(row.request)}`);
  const place = $("#stack-shown pre");
  try {
    const found = (await get(`${requestPath(row.request)}/stack`)).calls.find((each) => each.step === row.step && each.call_id === row.call_id);
    if (stack.row === row) write(place, found ? found.stack || found.error : "The call has ended.");
  } catch (error) {
    if (stack.row === row) write(place, error.message);
  }
}

// -- showing

const lists = {
  stuck: new KeyedList($("#stuck-rows"), stuckGroup), failing: new KeyedList($("#failing-rows"), failedRow), requests: requestList,
  actors: new KeyedList($("#actor-rows"), actorRow), usage: new KeyedList($("#usage-rows"), usageRow),
  letters: new KeyedList($("#letter-rows"), letterRow), tools: new KeyedList($("#tool-rows"), toolRow),
};

const count = (section, text) => write($(`#${section} .count`), text);

/** A section that holds nothing is a line. */
function empty(section, length, words) {
  const place = $(`#${section} > .empty`);
  place.hidden = length > 0;
  $(`#${section}`).classList.toggle("is-empty", !length);
  write(place, words);
}

/** How each section is shown; true: there is more to be shown. */
const SHOW = {
  approvals: () => {
    const rows = rowsOf("approvals");
    $("#approvals").hidden = !may("approve");
    count("approvals", rows.length ? counted(rows.length) : "");
    announce(rows);
    const isPartial = showApprovals();
    empty("approvals", rows.length || $("li.approval"), "Nothing waits for you.");
    dirty("summary");
    return isPartial;
  },
  stuck: showStuck,
  failing: showFailing,
  summary: showSummary,
  requests: showRequests,
  stack: () => {
    const rows = runningTools();
    $("#stack").hidden = !rows.length && $("#stack-shown").hidden;
    count("stack", rows.length ? number(rows.length) : "");
    return lists.tools.show(firstOf("stack", rows).map((row) => lists.tools.shown.get(row.key)?.row ?? row));
  },
  usage: showUsage,
  actors: showActors,
  dead_letters: () => {
    const rows = rowsOf("dead_letters");
    count("dead-letters", rows.length ? number(rows.length) : "");
    $("#dead-letters").hidden = !rows.length;
    return lists.letters.show(firstOf("dead_letters", rows));
  },
};

const due = new Set();
let frame = 0;

/** Show a section again, in a frame of its own. */
function dirty(...names) {
  for (const name of names) due.add(name);
  frame ||= requestAnimationFrame(showNext);
}

function showNext() {
  const [name] = due;
  due.delete(name);
  if (SHOW[name]()) due.add(name); // it has more rows than one frame makes
  frame = due.size ? requestAnimationFrame(showNext) : 0;
}

const MOVING = [lists.stuck, lists.failing, lists.requests, lists.tools];

/** What counts on by itself, once a second. */
function tick() {
  if (document.hidden) return;
  tickApprovals();
  for (const list of MOVING) for (const each of list.shown.values()) each.tick();
}

// -- hearing

function take(name, rows) {
  state.sections[name] = new Map(rows.map((row) => [row.key, row]));
}

function heard(kind, data) {
  heardAt = Date.now();
  state.offset = data.at - Date.now() / 1000;
  if (kind === "board") {
    setZero(data.at);
    state.scope = data.scope;
    write($("#tenant"), data.tenant);
    $("#summary").hidden = false;
    $("#board").removeAttribute("aria-busy");
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
    if (name === "requests") dirty("failing", "stack");
  }
}

let looking = null;
let heardAt = 0;

/** Lost is told, and since when: nothing is decided on what may be old. */
function tellConnection(isConnected, words) {
  state.isConnected = isConnected;
  write($("#connection"), words);
  $("#connection").classList.toggle("lost", !isConnected);
  $("#board").classList.toggle("is-old", !isConnected);
  $("#lost").hidden = isConnected || !heardAt;
  if (!isConnected) write($("#lost"), `The connection to the daemon is lost. This is as it was at ${new Date(heardAt).toLocaleTimeString()}; nothing can be decided until it is back.`);
}

/** As before anything was told. */
function forget() {
  state.sections = {};
  heardAt = 0;
  forgetApprovals();
  for (const each of Object.values(lists)) each.show([]);
  for (const each of document.querySelectorAll("#board .empty")) {
    each.hidden = false;
    write(each, "Loading…");
  }
  for (const each of document.querySelectorAll("#board .count, #summary b, #tenant")) write(each, "");
  for (const id of ["stack", "usage", "actors", "dead-letters", "summary"]) $(`#${id}`).hidden = true;
  $("#board").setAttribute("aria-busy", "true");
}

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
  forget();
  write($("#connection"), "connecting");
  try {
    await follow("/api/board/events", looking.signal, heard, tellConnection);
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

const SECTIONS = ["approvals", "stuck", "failing", "requests", "stack", "usage", "actors", "dead-letters"];
const ROWS = "#board li[tabindex], #board tbody tr[tabindex]";

/** The next row, or the one before: from the row that has the focus, else from the place that has it. */
function step(by) {
  const at = document.activeElement.closest(ROWS) ?? document.activeElement;
  const rows = [...document.querySelectorAll(ROWS)].filter((row) => row.offsetParent && row !== at);
  const side = by > 0 ? Node.DOCUMENT_POSITION_FOLLOWING : Node.DOCUMENT_POSITION_PRECEDING;
  const found = rows.filter((row) => at === document.body || at.compareDocumentPosition(row) & side);
  const next = by > 0 ? found[0] : found.at(-1);
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  a: () => decideByKey("press"),
  d: () => decideByKey("deny"),
  "/": () => $("#filter").focus(),
  "?": () => $("#help").showModal(),
};
SECTIONS.forEach((id, at) => (KEYS[at + 1] = () => $(`#${id}`).focus()));

document.addEventListener("keydown", (event) => {
  const field = event.target.closest("input:not([type=checkbox]), select");
  if (field && event.key === "Escape") field.blur();
  if (field || event.target.closest("dialog[open]") || event.repeat && "ad".includes(event.key) || event.ctrlKey || event.metaKey || event.altKey || !$("#shortcuts-on").checked || $("#board").hidden) return;
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
$("#filter").addEventListener("input", () => { fold("requests"); dirty("requests"); });
listenForMore((name) => dirty(name));
$("#show-tree").addEventListener("click", (event) => {
  const isOpen = event.target.getAttribute("aria-expanded") === "true";
  event.target.setAttribute("aria-expanded", String(!isOpen));
  write(event.target, isOpen ? "Show all" : "Show what stands out");
  dirty("actors");
});
setTimeout(() => ($("#shortcuts-on").checked = localStorage.getItem(SHORTCUTS_KEPT) !== "off"));
$("#shortcuts-on").addEventListener("change", (event) => localStorage.setItem(SHORTCUTS_KEPT, event.target.checked ? "on" : "off"));
$("#stack-close").addEventListener("click", () => { stack.row = null; $("#stack-shown").hidden = true; dirty("stack"); });
const usageCurl = curlButton("GET", "/api/usage", null, "the usage by day");
$("#usage-curl").append(usageCurl.button, usageCurl.shown);
listenToWindow();
setInterval(tick, 1000);
setInterval(() => { if (stack.row && !document.hidden) showStack(); }, 2000);
takeTokenFromLink();
setTimeout(open); // in a task of its own, as the first look into the browser's storage takes a while
