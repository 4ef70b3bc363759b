// Elements. Names come from strangers: they reach the page as text of a node or as the value of an
// attribute from the list below, never as markup.

const SAFE_ATTRIBUTES = new Set(["class", "id", "title", "type", "role", "tabindex", "placeholder",
  "value", "for", "scope", "colspan", "open", "hidden", "name", "data-view", "data-key",
  "aria-label", "aria-sort", "aria-selected", "aria-expanded", "aria-pressed", "aria-hidden",
  "aria-live", "aria-current", "aria-level", "aria-controls", "viewBox", "x", "y", "x1", "y1", "x2",
  "y2", "cx", "cy", "r", "width", "height", "points", "d", "text-anchor", "transform", "spellcheck",
  "autocomplete", "aria-invalid", "min", "max", "step", "data-bound", "data-phase"]);
const SVG = "http:" + "//www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on") && typeof value === "function") {
      node.addEventListener(name.slice(2), value);
    } else if (name === "style") {
      for (const [property, text] of Object.entries(value)) node.style.setProperty(property, text);
    } else if (SAFE_ATTRIBUTES.has(name)) {
      node.setAttribute(name, value === true ? "" : String(value));
    } else {
      throw new Error(`attribute ${name}`);
    }
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined
    && child !== false && child !== ""));
  return node;
}

/** An element: its attributes, listeners as `onclick`, styles as an object, and its children. */
const h = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

function replaceChildren(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null
    && child !== undefined && child !== false && child !== ""));
  return node;
}

const probe = document.createElement("span");

/** A colour of the style sheet, as it is in the theme that is shown: what a canvas is given. */
function colourOf(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

/** A choice of one among several, as buttons beside each other. */
function choice(label, options, current, onchange) {
  const buttons = options.map(([key, title]) => h("button", {
    type: "button", "data-key": key, "aria-pressed": String(key === current),
    onclick: () => {
      for (const button of buttons) {
        button.setAttribute("aria-pressed", String(button.getAttribute("data-key") === key));
      }
      onchange(key);
    },
  }, title));
  return h("span", { class: "choice", role: "group", "aria-label": label }, buttons);
}

/** Parts of a whole beside each other: [share, colour's class, text under the pointer]. */
function stackedBar(parts, whole, attributes) {
  const segments = parts.filter(([size]) => size > 0).map(([size, colour, title]) =>
    h("span", { class: `segment ${colour}`, title, style: { width: `${(100 * size) / whole}%` } }));
  return h("span", { class: "bar", ...attributes }, whole > 0 ? segments : []);
}

const tooltip = h("div", { class: "tooltip", role: "status", hidden: true });

function showTooltip(event, ...children) {
  replaceChildren(tooltip, ...children);
  tooltip.hidden = false;
  const box = tooltip.getBoundingClientRect();
  const beside = event.clientX + 16 + box.width > window.innerWidth
    ? event.clientX - 16 - box.width : event.clientX + 16;
  const below = Math.min(event.clientY + 16, window.innerHeight - box.height - 8);
  tooltip.style.left = `${Math.max(4, beside)}px`;
  tooltip.style.top = `${Math.max(4, below)}px`;
}

const hideTooltip = () => { tooltip.hidden = true; };
