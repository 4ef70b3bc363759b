// What is held at a moment as areas: by module, line, category or storage by storage.

const HEADER = 20;
const LEAST_AREA = 30;
const MOST_BOXES = 2500;

/** A tree of what is alive: each node has its bytes, by category, and its children by name. */
class Holding {
  constructor(name, path) {
    Object.assign(this, { name, path, bytes: 0, count: 0, children: new Map(), storage: -1 });
    this.byCategory = new Map();
  }

  add(bytes, category) {
    this.bytes += bytes;
    this.count += 1;
    this.byCategory.set(category, (this.byCategory.get(category) || 0) + bytes);
  }

  child(name) {
    if (!this.children.has(name)) this.children.set(name, new Holding(name, [...this.path, name]));
    return this.children.get(name);
  }

  get category() {
    let [most, found] = [-1, 0];
    for (const [category, bytes] of this.byCategory) {
      if (bytes > most) [most, found] = [bytes, category];
    }
    return found;
  }

  get largestFirst() {
    return [...this.children.values()].sort((one, other) => other.bytes - one.bytes);
  }
}

/** Names from the outermost group to the innermost of a storage. */
const GROUPINGS = {
  module: (run, storage) => {
    const module = run.storageModule(storage);
    const parts = module.startsWith("(") ? [module] : module.split(".");
    return [...parts, `${run.data.memory.categories[run.storages.category[storage]]}\u200b`];
  },
  line: (run, storage) => {
    const row = run.storageRow(storage);
    const line = row < 0 ? -1 : run.lineOf(row, run.data.is_behind_libraries);
    if (line < 0) return ["(no line)"];
    const file = run.data.files[run.lines.file[line]].name;
    return [file, `${run.lines.line[line]}  ${run.lineText(line)}`];
  },
  category: (run, storage) => [run.data.memory.categories[run.storages.category[storage]],
    run.storageModule(storage).replace(/(^|\.)\d+(?=\.|$)/g, "$1*")],
  storage: () => [],
};

function holdingTree(run, tick, grouping) {
  const root = new Holding("all", []);
  const { storages } = run;
  for (const storage of run.aliveAt(tick)) {
    const [bytes, category] = [storages.bytes[storage], storages.category[storage]];
    let node = root;
    node.add(bytes, category);
    for (const name of GROUPINGS[grouping](run, storage)) {
      node = node.child(name);
      node.add(bytes, category);
    }
    const leaf = node.child(`#${storage}`);
    leaf.add(bytes, category);
    leaf.storage = storage;
    leaf.name = run.storageTensor(storage) || run.storageName(storage) || `storage ${storage}`;
  }
  return root;
}

/** Rectangles of sizes within one, as square as can be (Bruls, Huizing, van Wijk: squarified). */
function squarified(nodes, x, y, width, height) {
  const whole = nodes.reduce((sum, node) => sum + node.bytes, 0);
  if (!whole || width <= 0 || height <= 0) return [];
  const scale = (width * height) / whole;
  const boxes = [];
  let [left, top, wide, high] = [x, y, width, height];
  let place = 0;
  const worst = (sum, least, most, side) =>
    Math.max((side * side * most) / (sum * sum), (sum * sum) / (side * side * least));
  while (place < nodes.length) {
    const side = Math.min(wide, high);
    let sum = 0;
    let [least, most] = [Infinity, 0];
    let end = place;
    while (end < nodes.length) {
      const area = Math.max(nodes[end].bytes * scale, 1e-9);
      const [nextLeast, nextMost] = [Math.min(least, area), Math.max(most, area)];
      if (end > place && worst(sum + area, nextLeast, nextMost, side)
        > worst(sum, least, most, side)) break;
      sum += area;
      [least, most] = [nextLeast, nextMost];
      end += 1;
    }
    const thick = sum / side;
    let at = 0;
    for (; place < end; place += 1) {
      const long = Math.max(nodes[place].bytes * scale, 1e-9) / thick;
      boxes.push(wide >= high ? [nodes[place], left, top + at, thick, long]
        : [nodes[place], left + at, top, long, thick]);
      at += long;
    }
    if (wide >= high) { left += thick; wide -= thick; } else { top += thick; high -= thick; }
    if (wide < 1e-6 || high < 1e-6) break;
  }
  return boxes;
}

/** The colours of a node's categories beside each other, as wide as they are large. */
function mixedColours(node) {
  let from = 0;
  const bands = [...node.byCategory].map(([number, bytes]) => {
    const to = from + (100 * bytes) / node.bytes;
    const band = `var(--cat-${number}) ${from}% ${to}%`;
    from = to;
    return band;
  });
  return `linear-gradient(to right, ${bands.join(", ")})`;
}

class TreemapView {
  constructor(run, go) {
    Object.assign(this, { run, go, grouping: "module", tick: run.peakTick, path: [], search: "" });
    this.crumbs = h("div", { class: "crumbs", role: "navigation", "aria-label": "where in the tree" });
    this.title = h("p", {});
    this.map = h("div", {
      class: "treemap", id: "treemap",
      onclick: (event) => this.click(event),
      onkeydown: (event) => this.boxKey(event),
      onmousemove: (event) => this.hover(event),
      onmouseleave: hideTooltip,
    });
    this.list = h("section", { class: "card" });
    this.node = h("div", {},
      h("div", { class: "toolbar" },
        choice("by", [["module", "by module"], ["line", "by line"], ["category", "by category"],
          ["storage", "storage by storage"]], "module", (key) => {
          this.grouping = key;
          this.path = [];
          this.build();
        }),
        h("button", { type: "button", title: "the peak", onclick: () => this.show({
          tick: run.peakTick }) }, "at the peak"),
        h("ul", { class: "key" }, run.data.memory.categories.map((name, number) =>
          (run.storages.category.includes(number) ? h("li", {},
            h("span", { class: `swatch category-${number}` }), name) : null)))),
      this.title, this.crumbs, this.map, this.list);
    this.build();
  }

  build() {
    this.root = holdingTree(this.run, this.tick, this.grouping);
    const isPeak = this.tick === this.run.peakTick;
    replaceChildren(this.title, h("b", {}, formatBytes(this.root.bytes)),
      ` alive ${isPeak ? "at the peak" : "then"}, in ${this.run.moment(this.tick)}. `,
      h("span", { class: "faint" }, "A click goes into a box; another moment: pin it in Memory."));
    this.redraw();
  }

  /** The node that is shown. */
  get shown() {
    let node = this.root;
    for (const name of this.path) {
      if (!node.children.has(name)) break;
      node = node.children.get(name);
    }
    return node;
  }

  redraw() {
    if (!this.map.isConnected) return;
    const width = this.map.clientWidth;
    const height = Math.max(260, Math.min(window.innerHeight * 0.62, width * 0.75));
    this.map.style.height = `${height}px`;
    this.boxes = [];
    const node = this.shown;
    const nodes = this.drawInside(node, 0, 0, width, height, 0);
    replaceChildren(this.map, nodes);
    if (!nodes.length) this.map.append(h("p", { class: "faint" }, "Nothing is alive then."));
    this.drawCrumbs();
    this.drawList(node);
  }

  /** Boxes of a node's children. A child with room for a title and children of its own has both. */
  drawInside(parent, x, y, width, height, depth) {
    const nodes = [];
    for (const [node, left, top, wide, high] of squarified(parent.largestFirst, x, y, width, height)) {
      if (wide * high < LEAST_AREA || this.boxes.length >= MOST_BOXES) continue;
      let [shown, name] = [node, this.nameOf(node)];
      while (shown.children.size === 1 && shown.storage < 0) {  // a chain of single children
        const [only] = shown.children.values();
        if (only.storage >= 0) break;
        shown = only;
        name += `.${this.nameOf(only)}`;
      }
      const hasRoom = wide > 64 && high > HEADER + 26 && shown.children.size > 0 && depth < 6
        && shown.storage < 0;
      nodes.push(this.box(shown, name, left, top, wide, high, hasRoom));
      if (hasRoom) {
        nodes.push(...this.drawInside(shown, left + 2, top + HEADER, wide - 4, high - HEADER - 2,
          depth + 1));
      }
    }
    return nodes;
  }

  nameOf(node) { return node.name.replace("\u200b", ""); }

  box(node, name, left, top, wide, high, isGroup) {
    const words = this.search.split(/\s+/).filter(Boolean);
    const text = `${[...node.path, node.name].join(".")} ${this.categoriesOf(node)}`.toLowerCase();
    const isFaded = words.length && !words.every((word) => text.includes(word));
    const box = h("div", {
      class: `box${isGroup ? " group" : ` category-${node.category}`}${isFaded ? " faded" : ""}`,
      role: "button", tabindex: "0",
      "aria-label": `${name}: ${formatBytes(node.bytes)}`,
      style: { left: `${left}px`, top: `${top}px`, width: `${Math.max(1, wide - 1)}px`,
        height: `${Math.max(1, high - 1)}px`,
        ...(isGroup || node.byCategory.size < 2 ? {} : { background: mixedColours(node) }) },
    }, wide > 34 && high > 15 ? h("span", { class: "label" }, `${name} `,
      h("span", { class: "size" }, formatBytes(node.bytes))) : null);
    box.holding = node;
    this.boxes.push(box);
    return box;
  }

  categoriesOf(node) {
    return [...node.byCategory.keys()].map((number) =>
      this.run.data.memory.categories[number]).join(" ");
  }

  drawCrumbs() {
    const steps = [["all", []], ...this.path.map((name, place) =>
      [this.shownName(name), this.path.slice(0, place + 1)])];
    replaceChildren(this.crumbs, steps.map(([name, path], place) => [place ? " \u203a " : "",
      h("button", { type: "button", class: "link", onclick: () => this.goInto(path) }, name)]));
  }

  shownName(name) {
    return name.startsWith("#") ? `storage ${name.slice(1)}` : name.replace("\u200b", "");
  }

  /** The same as a table: what the boxes are too small to say. */
  drawList(node) {
    const { run } = this;
    const names = run.data.memory.categories;
    const children = node.largestFirst;
    this.table = new DataTable({
      label: "what is inside", rows: children, sort: { place: 1, isDown: true },
      columns: [
        { title: "inside", unit: "place", value: (child) => this.nameOf(child),
          render: (child) => (child.children.size ? h("button", { type: "button", class: "link",
            onclick: () => this.goInto(child.path) }, this.nameOf(child)) : this.nameOf(child)) },
        { title: "bytes", unit: "bytes", value: (child) => child.bytes, bar: true, total: node.bytes },
        { title: "share", unit: "fraction", value: (child) => child.bytes / (node.bytes || 1),
          total: 1 },
        { title: "storages", unit: "count", value: (child) => child.count, total: node.count },
        { title: "held for", unit: "text", value: (child) => this.categoriesOf(child),
          render: (child) => stackedBar([...child.byCategory].map(([number, bytes]) =>
            [bytes, `category-${number}`, `${names[number]}: ${formatBytes(bytes)}`]), child.bytes,
          { class: "bar inline" }) },
        { title: "line", unit: "place", value: (child) => this.lineOf(child) },
      ],
    });
    replaceChildren(this.list, this.table.node);
    if (this.search) this.table.filter(this.search);
  }

  lineOf(node) {
    if (node.storage < 0) return "";
    const row = this.run.storageRow(node.storage);
    return row < 0 ? "" : this.run.shortPlace(this.run.lineOf(row, this.run.data.is_behind_libraries));
  }

  goInto(path) {
    hideTooltip();
    this.path = path;
    this.redraw();
  }

  /** One level further in, towards a box. */
  goTowards(holding) {
    const path = holding.path.slice(0, this.path.length + 1);
    const leads = path.length < holding.path.length || holding.children.size > 0;
    if (path.length > this.path.length && leads) this.goInto(path);
  }

  click(event) {
    const box = event.target.closest(".box");
    if (box) this.goTowards(box.holding);
  }

  hover(event) {
    const box = event.target.closest(".box");
    if (!box) { hideTooltip(); return; }
    const node = box.holding;
    const { run } = this;
    const names = run.data.memory.categories;
    const share = this.root.bytes ? node.bytes / this.root.bytes : 0;
    const row = node.storage < 0 ? -1 : run.storageRow(node.storage);
    showTooltip(event,
      h("b", {}, node.storage < 0 ? node.path.map((name) => this.shownName(name)).join(" \u203a ")
        : node.name),
      h("p", {}, `${formatBytes(node.bytes)}, ${formatShare(share)} of all, ${node.count} storage${
        node.count > 1 ? "s" : ""}`),
      h("ul", {}, [...node.byCategory].map(([number, bytes]) => h("li", {},
        h("span", { class: `swatch category-${number}` }), `${names[number]} ${formatBytes(bytes)}`))),
      row < 0 ? null : h("p", { class: "faint" }, `${run.storageName(node.storage)
        || run.storageModule(node.storage)}, by ${run.jobs.name[run.rows.job[row]]} in ${
        this.lineOf(node)}`));
  }

  boxKey(event) {
    const box = event.target.closest(".box");
    if (!box) return;
    const place = this.boxes.indexOf(box);
    const to = { ArrowRight: place + 1, ArrowDown: place + 1, ArrowLeft: place - 1,
      ArrowUp: place - 1 }[event.key];
    if (to !== undefined && this.boxes[to]) {
      event.preventDefault();
      this.boxes[to].focus();
    } else if (event.key === "Enter") {
      event.preventDefault();
      this.goTowards(box.holding);
      if (this.boxes[0]) this.boxes[0].focus();
    }
  }

  key(event) {
    if (event.key === "Backspace" && this.path.length) {
      event.preventDefault();
      this.goInto(this.path.slice(0, -1));
    }
  }

  filter(text) {
    this.search = text.trim().toLowerCase();
    this.redraw();
  }

  show({ tick }) {
    if (tick === undefined) return;
    this.tick = tick;
    this.path = [];
    this.build();
  }
}
