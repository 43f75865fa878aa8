// What all rows have: what the daemon has told, the daemon's clock, ids, lines for curl, and what is done on the daemon.

import { curl, post } from "./daemon.js";
import { $, h, number, write } from "./dom.js";

/** The rows of each section, by key, in their order; `offset`: what the daemon's clock is ahead of ours, in seconds. */
export const state = { sections: {}, offset: 0, scope: "use", isConnected: false };
export const now = () => Date.now() / 1000 + state.offset;
export const rowsOf = (name) => [...(state.sections[name]?.values() ?? [])];
const SCOPES = ["use", "approve", "admin"];
export const may = (scope) => SCOPES.indexOf(state.scope) >= SCOPES.indexOf(scope);

export const part = (text) => encodeURIComponent(text);
export const requestPath = (id) => `/api/requests/${part(id)}`;

// -- ids

/** Of callboard's own making the first characters, which the daemon takes for the whole; a chosen one as it is. */
export const shownId = (id) => (/^[0-9a-f]{32}$/.test(id) ? id.slice(0, 8) : id);

/** An id: whole on hover, and a click copies it whole. */
export function idButton(id) {
  const button = h("button", { type: "button", class: "id", title: id, "aria-label": `${shownId(id)}: copy the id` }, shownId(id));
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(id);
      write(button, "copied");
      setTimeout(() => write(button, shownId(id)), 1500);
    } catch {
      write(button, id); // a page that is not of a secure context: to be copied by hand
    }
  });
  return button;
}

/** The words of the request that this row is of. */
export const askedOf = (requestId) => state.sections.requests?.get(requestId)?.asked ?? "";

// -- curl

/** A button that shows the same call for a terminal, with its URL. */
export function curlButton(method, path, body, what) {
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

// -- doing something

/** Do something on the daemon; what goes wrong is shown beside the button. */
export async function act(button, path, body, done = "Done") {
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

// -- long lists

const narrow = matchMedia("(max-width: 50rem)");
/** Rows of each list at first, with much room and with little, and how many more a press of its button shows. */
const LIMITS = {
  approvals: [10, 2, 20], stuck: [5, 2, 20], failing: [5, 2, 20], requests: [8, 5, 50], stack: [3, 2, 20],
  usage: [5, 5, 50], actors: [30, 30, 50], dead_letters: [5, 3, 50],
};
const unfolded = {};

export const limitOf = (name) => LIMITS[name][narrow.matches ? 1 : 0] + (unfolded[name] ?? 0);

/** The first of the rows, and a button for more of them. */
export function firstOf(name, rows) {
  const most = limitOf(name);
  writeMore(name, rows.length - most, rows.length);
  return rows.slice(0, most);
}

export function writeMore(name, left, all) {
  const button = $(`#more-${name}`);
  button.hidden = left <= 0;
  if (left > 0) write(button, `Show ${number(Math.min(left, LIMITS[name][2]))} more of ${number(all)}`);
}

export const fold = (name) => delete unfolded[name];

/** `changed(name)`: a list has another limit. */
export function listenForMore(changed) {
  for (const [name, [, , step]] of Object.entries(LIMITS)) {
    $(`#more-${name}`).addEventListener("click", () => {
      unfolded[name] = (unfolded[name] ?? 0) + step;
      changed(name);
    });
  }
  narrow.addEventListener("change", () => Object.keys(LIMITS).forEach(changed));
}
