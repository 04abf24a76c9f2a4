// Elements of the document. Texts that come from requests are only ever set as text.

const byId = (id) => document.getElementById(id);

// A new element: its name, properties and children (nodes or texts). `data-` properties and `class` as in HTML.
function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made && !key.includes("-")) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

function svg(name, properties = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(properties)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Sets a text if it is another one: an unchanged text costs no layout, and keeps the reader's selection.
function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// A name with an explanation, which the keyboard reaches.
function term(key, text) {
  return element("dfn", { tabIndex: 0, "data-explain": key }, text);
}

// Makes the children of `parent` those of `items`, in their order: `make(item)` for a new one, then `update(node, item)`.
// A node that stays is not moved unless its neighbours change, so it keeps the focus.
function keep(parent, items, key, make, update) {
  const known = (parent.known ??= new Map());
  const wanted = new Set(items.map(key));
  for (const [name, node] of known) {
    if (!wanted.has(name)) {
      node.remove();
      known.delete(name);
    }
  }
  let place = parent.firstElementChild;
  while (place && !known.has(place.keptAs)) place = place.nextElementSibling;
  for (const item of items) {
    const name = key(item);
    let node = known.get(name);
    if (!node) {
      node = make(item);
      node.keptAs = name;
      known.set(name, node);
    }
    if (node === place) place = place.nextElementSibling;
    else parent.insertBefore(node, place);
    update(node, item);
  }
}

// The explanation of what is pointed at or has the focus.
function explain() {
  const box = byId("explanation");
  let shown = null;
  let pointer = "";
  const hide = () => {
    shown?.removeAttribute("aria-describedby");
    shown = null;
    box.hidden = true;
  };
  const explained = (node) => (node instanceof Element ? node.closest("[data-explain]") : null);
  const reached = () => explained(document.querySelector(":focus-visible"));
  const show = (found) => {
    if (found === shown) return;
    hide();
    if (!found) return;
    shown = found;
    box.textContent = EXPLANATIONS[found.dataset.explain];
    box.hidden = false;
    found.setAttribute("aria-describedby", box.id);
    place();
  };
  const place = () => {
    if (!shown) return;
    const at = shown.getBoundingClientRect();
    const left = Math.min(at.left, document.documentElement.clientWidth - box.offsetWidth - 8);
    const below = at.bottom + 6;
    const above = at.top - box.offsetHeight - 6;
    const top = below + box.offsetHeight > innerHeight && above > 0 ? above : below;
    box.style.left = `${Math.max(8, left)}px`;
    box.style.top = `${top}px`;
  };
  const position = (event) => `${event.screenX} ${event.screenY}`;
  document.addEventListener("pointerover", (event) => {
    const pointed = explained(event.target);
    // What comes under a pointer that rests, because the page has changed or is scrolled, does not take away the
    // explanation of what the keyboard has reached. A pointer that moves does, unless nothing is explained there.
    show(position(event) === pointer ? (reached() ?? pointed) : (pointed ?? reached()));
    pointer = position(event);
  });
  document.addEventListener("pointermove", (event) => (pointer = position(event)));
  document.addEventListener("focusin", (event) => show(explained(event.target)));
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", place, { capture: true, passive: true });
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
}
