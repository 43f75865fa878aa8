// Approvals: one row each, by tool. What is approved is what is shown: a row that has no room for all of it is unfolded
// first, one that has gone keeps its place and does nothing, and no key acts on a row that no one has selected.

import { get, post } from "./daemon.js";
import { $, careful, h, KeyedList, number, seconds, write } from "./dom.js";
import { askedOf, curlButton, idButton, limitOf, now, part, rowsOf, state, writeMore } from "./rows.js";

const section = $("#approvals");
/** Time to see what a press would mean now: after rows have moved, or one was unfolded. */
const SETTLE_MS = 500;
/** What has gone keeps its place so long: without the pointer over the list, with it, and while it has the focus. */
const GONE_MS = 2000;
const GONE_UNDER_POINTER_MS = 10000;
const GONE_IN_FOCUS_MS = 60000;

/** Key to { row, gone: "" or why, since: when it went }. */
const kept = new Map();
/** The row that j, k, Tab or the pointer have led to. */
let chosen = null;

/** What is waited for, without what has gone. */
export const waiting = () => rowsOf("approvals").length;

export function showApprovals() {
  const rows = state.sections.approvals ?? new Map();
  for (const [key, row] of rows) {
    const each = kept.get(key);
    if (each?.gone) answers.delete(key); // it is asked again
    if (!each || each.gone || each.row !== row) kept.set(key, { row, gone: "" });
  }
  for (const [key, each] of kept) {
    if (rows.has(key) || each.gone) continue;
    each.gone = answers.get(key) ?? "No longer asked";
    each.since = performance.now();
  }
  return showGroups();
}

/** What this page has answered and the daemon has taken, by key. */
const answers = new Map();

/** The feed may have told before that it has gone. */
function wasTaken(key, words) {
  const each = kept.get(key);
  if (!each) return;
  answers.set(key, words);
  if (!each.gone) return;
  each.gone = words;
  showGroups();
}

/** Rows that have gone leave when nothing can be pressed in their place by mistake. */
export function sweep() {
  const at = performance.now();
  const least = section.matches(":hover") ? GONE_UNDER_POINTER_MS : GONE_MS;
  const focused = document.activeElement.closest("li.approval")?.dataset.key;
  const old = [...kept].filter(([key, each]) => each.gone && at - each.since > (key === focused ? GONE_IN_FOCUS_MS : least));
  if (!old.length) return;
  for (const [key] of old) {
    kept.delete(key);
    answers.delete(key);
  }
  showGroups();
}

let places = [];

/** Where rows have moved, the pointer does nothing for a moment: it is not where it was. */
function settle(next) {
  if (places.some((key, at) => next[at] !== key)) {
    section.classList.add("settling");
    setTimeout(() => section.classList.remove("settling"), SETTLE_MS);
  }
  places = next;
}

// -- groups

function showGroups() {
  const groups = new Map();
  for (const { row, gone } of kept.values()) {
    const found = groups.get(row.tool) ?? { key: row.tool, rows: [], shown: [] };
    groups.set(row.tool, found);
    found.rows.push({ key: row.key, row, gone });
  }
  const all = [...groups.values()];
  share(all, Math.max(limitOf("approvals"), 1));
  const shown = all.filter((each) => each.shown.length);
  const count = all.reduce((sum, each) => sum + each.rows.length, 0);
  writeMore("approvals", count - shown.reduce((sum, each) => sum + each.shown.length, 0), count);
  settle(shown.flatMap((each) => each.shown.map(({ key }) => key)));
  const isPartial = list.show(shown);
  return shown.some((each) => list.shown.get(each.key)?.isPartial) || isPartial;
}

/** So many rows in all, of each group as many as of the others. */
function share(groups, most) {
  for (let left = most, before = -1; left !== before; ) {
    before = left;
    for (const each of groups) {
      if (!left || each.shown.length === each.rows.length) continue;
      each.shown.push(each.rows[each.shown.length]);
      left -= 1;
    }
  }
}

const areSame = (some, others) => some.length === others.length && some.every((each, at) => each.row === others[at].row);

/** What all rows of a group say the same is said once, above them. */
const common = (rows, name) => (rows.every((each) => each.row[name] === rows[0].row[name]) ? rows[0].row[name] : "");

function approvalGroup({ key: tool }) {
  const [count, risk, why] = [h("span", { class: "count" }), h("span", { class: "badge" }), h("p", { class: "why" })];
  const rows = h("ul", { class: "rows" });
  const inner = new KeyedList(rows, approvalRow, moveFocus);
  let group = { rows: [] };
  let armed = [];
  const open = () => group.rows.filter((each) => !each.gone);
  // With another one than those that were there at the first press, nothing is done.
  const many = (words, kind) => careful(words, `${words} of ${tool}`, () => {
    if (areSame(open(), armed)) for (const each of armed) inner.shown.get(each.key)?.decide(kind);
  }, () => (armed = open()));
  const approveAll = many("Approve all", "once");
  const denyAll = many("Deny all", "deny");
  const element = h(
    "div", { class: "group", role: "group", "aria-label": `${tool}: approvals` },
    h("div", { class: "head" }, h("h3", {}, tool, count), risk, why, h("div", { class: "actions" }, approveAll, denyAll)),
    rows,
  );
  const find = (row) => [...inner.shown.values()].find((each) => each.element === row);
  const made = { element, isPartial: false, find };
  made.tick = () => {
    for (const each of inner.shown.values()) each.tick();
    const still = open();
    const isWhole = still.length > 1 && still.length === group.shown.filter((each) => !each.gone).length;
    denyAll.hidden = !isWhole;
    approveAll.hidden = !isWhole || !still.every((each) => inner.shown.get(each.key)?.isSeen());
  };
  made.update = (next) => {
    const before = open();
    group = next;
    const still = open();
    if (!areSame(still, before)) for (const each of [approveAll, denyAll]) each.calm();
    write(count, number(still.length));
    write(risk, common(group.rows, "risk"));
    risk.hidden = !risk.textContent;
    write(why, wordsOf({ why: common(group.rows, "why"), confinement: common(group.rows, "confinement") }));
    made.isPartial = inner.show(group.shown.map((each) => ({ ...each, own: ownWords(group.rows, each.row) })));
    made.tick();
  };
  return made;
}

const wordsOf = ({ why, confinement }) => [why, sentence(confinement)].filter(Boolean).join(" ");

/** What is not said for all of the group. */
function ownWords(rows, row) {
  const left = (name) => (common(rows, name) ? "" : row[name]);
  return wordsOf({ why: left("why"), confinement: left("confinement") });
}

const sentence = (text) => (text ? `${text[0].toUpperCase()}${text.slice(1)}.` : "");

const list = new KeyedList($("#approval-groups"), approvalGroup, moveFocus);

/** Never to another approval: a key must not act on one that no one has selected. */
function moveFocus() {
  section.focus();
}

section.addEventListener("focusin", (event) => (chosen = event.target.closest("li.approval")));
section.addEventListener("focusout", () => (chosen = null));

// -- one of them

function approvalRow({ row: first }) {
  const path = `${part(first.request_id)}/${first.step}/${part(first.call_id)}`;
  const line = h("span", { class: "line" });
  const about = h("span", { class: "about quiet" });
  const since = h("span", { class: "number since" });
  const toggle = h("button", { type: "button", class: "toggle", "aria-expanded": "false" }, line);
  const approve = h("button", { type: "button", class: "approve" });
  const deny = h("button", { type: "button", class: "deny" }, "Deny");
  const own = h("p", { class: "why own" });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const details = h("div", { class: "details", hidden: true });
  const reason = h("input", { type: "text", "aria-label": `Why ${first.tool} is denied`, placeholder: "reason, for the model" });
  const element = h("li", { class: "approval", tabindex: "-1", "data-key": first.key }, toggle, about, since, h("div", { class: "actions" }, approve, deny), own, problem, details);
  let row = first;
  let gone = "";
  let isWhole = false;
  let pressableAt = 0;

  const isSeen = () => (details.hidden ? row.says_all && line.scrollWidth <= line.clientWidth : isWhole);
  const refuse = (words) => {
    write(problem, words);
    problem.hidden = !words;
  };
  const decide = async (kind) => {
    if (gone || performance.now() < pressableAt) return;
    if (!state.isConnected) return refuse("The connection is lost: what is shown may be old.");
    refuse("");
    pressableAt = Infinity;
    writeButtons();
    try {
      await post(`/api/approvals/${path}`, { answer: kind, ...(kind === "deny" ? { reason: reason.value } : {}) });
      wasTaken(first.key, kind === "deny" ? "Denied" : "Approved");
    } catch (error) {
      refuse(error.message);
      pressableAt = 0;
      writeButtons();
    }
  };
  const pause = () => {
    pressableAt = performance.now() + SETTLE_MS;
    setTimeout(writeButtons, SETTLE_MS);
    writeButtons();
  };
  const unfold = () => {
    details.hidden = !details.hidden;
    toggle.setAttribute("aria-expanded", String(!details.hidden));
    pause();
    readAll();
  };
  const readAll = async () => {
    if (details.hidden || isWhole || !row.is_cut) return;
    const asked = row;
    try {
      const whole = await get(`/api/board/approvals/${path}`);
      if (row === asked) writeDetails(whole, true);
    } catch (error) {
      refuse(error.message);
    }
    writeButtons();
  };
  const writeDetails = (shown, isAll) => {
    isWhole = isAll;
    const focused = document.activeElement;
    const hasFocus = details.contains(focused);
    details.replaceChildren(...detailsOf(shown, extra));
    if (hasFocus) (details.contains(focused) ? focused : element).focus(); // else what is typed as a reason would be keys
  };
  const writeButtons = () => {
    const settles = performance.now() < pressableAt;
    if ((settles || gone) && [approve, deny].includes(document.activeElement)) element.focus(); // it would be lost
    approve.disabled = Boolean(gone) || settles || (!details.hidden && !isWhole);
    deny.disabled = Boolean(gone) || settles;
    const means = isSeen() || !details.hidden;
    write(approve, means ? "Approve" : "Review");
    approve.classList.toggle("main", means);
    approve.setAttribute("aria-label", `${approve.textContent} ${row.tool}: ${row.line}`);
    deny.setAttribute("aria-label", `Deny ${row.tool}: ${row.line}`);
  };
  const press = () => (isSeen() ? decide("once") : details.hidden && unfold());
  const forRequest = h("button", { type: "button", onclick: () => isSeen() && decide("request") }, "Approve for this request");
  const { button, shown } = curlButton("POST", `/api/approvals/${path}`, { answer: "once" }, `approving ${first.tool}`);
  const extra = { forRequest, reason, button, shown };
  approve.addEventListener("click", press);
  deny.addEventListener("click", () => decide("deny"));
  toggle.addEventListener("click", unfold);
  new ResizeObserver(() => writeButtons()).observe(line); // whether it has room for all is known then

  const tick = () => write(since, gone || seconds(now() - row.since));
  const update = (next) => {
    const isFirst = !line.textContent;
    const isOther = next.row !== row || isFirst;
    row = next.row;
    gone = next.gone;
    element.classList.toggle("gone", Boolean(gone));
    if (isOther) {
      write(line, row.line || "no arguments");
      writeDetails(row, !row.is_cut);
      if (!isFirst) pause();
      readAll();
    }
    const words = askedOf(row.request_id);
    write(about, words ? `for “${words}”` : "");
    write(own, next.own);
    own.hidden = !next.own;
    writeButtons();
    tick();
  };
  return { element, tick, update, decide, isSeen, press, deny: () => decide("deny") };
}

function detailsOf(row, { forRequest, reason, button, shown }) {
  const asked = state.sections.requests?.get(row.request_id);
  const who = [asked?.by && `asked by ${asked.by}`, asked?.about].filter(Boolean).join(" · ");
  return [
    h("p", {}, "Request ", idButton(row.request_id), ` step ${row.step} `, h("span", { class: "quiet" }, who)),
    row.after_untrusted ? h("p", { class: "warning" }, "The request has read text that is not its owner's.") : null,
    row.touches.length ? h("ul", { "aria-label": `What ${row.tool} touches` }, ...row.touches.map((each) => h("li", {}, each))) : null,
    row.diff ? diff(row.diff, row.tool) : null,
    h("pre", { class: "arguments", tabindex: "0", role: "region", "aria-label": `Arguments of ${row.tool}` }, row.arguments),
    h("div", { class: "actions" }, forRequest, reason, button), shown,
  ].filter(Boolean);
}

const DIFF_LINES = { "+": "added", "-": "removed", "@": "place" };

function diff(text, tool) {
  const lines = text.trimEnd().split("\n").map((line) => {
    const isHead = line.startsWith("+++") || line.startsWith("---");
    return h("span", { class: isHead ? "file" : DIFF_LINES[line[0]] ?? "" }, `${line}\n`);
  });
  return h("pre", { class: "diff", tabindex: "0", role: "region", "aria-label": `What ${tool} would change` }, ...lines);
}

// -- keys, and what a screen reader is told

/** `what`: "press" or "deny". On the selected one; where there is none, the first is selected. */
export function decideByKey(what) {
  if (chosen && chosen === document.activeElement.closest("li.approval")) {
    for (const group of list.shown.values()) group.find(chosen)?.[what]();
    return;
  }
  const focused = document.activeElement.closest("li.approval:not(.gone)");
  (focused ?? $("li.approval:not(.gone)"))?.focus();
  chosen = document.activeElement.closest("li.approval");
}

let announced = null;

/** A screen reader is told of approvals that are new, and of nothing else. */
export function announce(rows) {
  const keys = new Set(rows.map((row) => row.key));
  const fresh = announced ? rows.filter((row) => !announced.has(row.key)) : [];
  announced = keys;
  if (fresh.length === 1) write($("#announcer"), `${fresh[0].tool} needs an approval`);
  else if (fresh.length) write($("#announcer"), `${fresh.length} calls need an approval`);
}

export function tickApprovals() {
  sweep();
  for (const each of list.shown.values()) each.tick();
}

export function forgetApprovals() {
  kept.clear();
  announced = null;
  showGroups();
}
