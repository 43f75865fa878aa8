// Elements, and lists whose rows keep their element as long as their key is there.

/** An element: attributes, `on...` listeners, `class`, and children that are elements or texts. */
export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.filter((each) => each != null));
  return made;
}

export const $ = (selector, under = document) => under.querySelector(selector);

/** Write a text only where it differs: each write is a change of the page. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** New rows of one frame: some milliseconds of work, so that the page answers meanwhile. */
const MADE_AT_ONCE = 8;

/**
 * The children of `parent`, one for each row. `make(row)` gives an object with `element` and `update(row)`. A row that is
 * the same object as before is not updated. Elements are moved only where the order differs.
 */
export class KeyedList {
  /** `near(element)`: put the focus elsewhere, as the row that has it goes. */
  constructor(parent, make, near = focusNear) {
    this.parent = parent;
    this.make = make;
    this.near = near;
    this.shown = new Map();
  }

  /** True where it is not done: rows that are new are made a few a frame. */
  show(rows) {
    let fresh = 0;
    const focused = document.activeElement;
    const keys = new Set(rows.map((row) => row.key));
    for (const [key, each] of this.shown) {
      if (keys.has(key)) continue;
      if (each.element.contains(focused)) this.near(each.element);
      each.element.remove();
      this.shown.delete(key);
    }
    let place = this.parent.firstElementChild;
    for (const row of rows) {
      let each = this.shown.get(row.key);
      if (!each) {
        if (fresh++ >= MADE_AT_ONCE) return true;
        each = this.make(row);
        this.shown.set(row.key, each);
      }
      if (each.row !== row) {
        each.row = row;
        each.update(row);
      }
      if (each.element === place) place = place.nextElementSibling;
      else this.parent.insertBefore(each.element, place);
    }
    if (focused && focused !== document.activeElement && focused.isConnected) focused.focus();
    return false;
  }
}

/** The focus goes to the row behind one that is removed, else to its section. */
function focusNear(element) {
  const next = element.nextElementSibling ?? element.previousElementSibling;
  const place = next && $("button, [tabindex]", next);
  (place ?? element.closest("section"))?.focus();
}

/** A button that asks once more before it acts. `arm`: called at the first press; `button.calm()`: it has to ask again. */
export function careful(words, label, act, arm = () => undefined) {
  let timer = 0;
  const button = h("button", { type: "button", "aria-label": label }, words);
  const calm = () => {
    clearTimeout(timer);
    timer = 0;
    button.classList.remove("sure");
    write(button, words);
    button.setAttribute("aria-label", label);
  };
  button.addEventListener("click", () => {
    if (timer) {
      calm();
      act(button);
      return;
    }
    arm();
    button.classList.add("sure");
    write(button, "Sure?");
    button.setAttribute("aria-label", `Sure? ${label}`);
    timer = setTimeout(calm, 5000);
  });
  button.calm = calm;
  return button;
}

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

/** "3.2 s", "4 min 10 s", "2 h 5 min". */
export function seconds(value) {
  const left = Math.max(0, value);
  if (left < 10) return `${left.toFixed(1)} s`;
  const at = UNITS.findIndex(([size]) => left >= size);
  const [size, unit] = UNITS[at];
  const whole = Math.floor(left / size);
  const next = UNITS[at + 1];
  const rest = next ? Math.floor((left - whole * size) / next[0]) : 0;
  return rest ? `${whole} ${unit} ${rest} ${next[1]}` : `${whole} ${unit}`;
}

export const number = (value) => value.toLocaleString("en");
