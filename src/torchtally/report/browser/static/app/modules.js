// The tree of modules: each with what runs in it and in all modules inside it.

class ModuleNode {
  constructor(name, path) {
    Object.assign(this, { name, path, className: "", own: emptyTotal(), total: emptyTotal(),
      held: 0, parameters: 0, times: new Set(), children: new Map(), isOpen: false });
  }

  child(name) {
    if (!this.children.has(name)) {
      this.children.set(name, new ModuleNode(name, [...this.path, name]));
    }
    return this.children.get(name);
  }
}

const ORDERS = {
  order: () => 0,
  time: (one, other) => other.total.seconds - one.total.seconds
    || other.total.flops - one.total.flops,
  memory: (one, other) => other.held - one.held,
};

class ModulesView {
  constructor(run) {
    Object.assign(this, { run, isFolded: true, order: "order", search: "" });
    this.body = h("tbody", { onclick: (event) => this.click(event) });
    this.head = h("thead", {});
    this.foot = h("tfoot", {});
    this.table = h("table", { role: "treegrid", "aria-label": "modules",
      onkeydown: (event) => this.treeKey(event) }, this.head, this.body, this.foot);
    this.node = h("div", {},
      h("div", { class: "toolbar" },
        choice("fold", [["folded", "repeated ones together"], ["each", "each by itself"]], "folded",
          (key) => { this.isFolded = key === "folded"; this.build(); }),
        choice("order", [["order", "in their order"], ["time", run.isTimed ? "by time" : "by FLOPs"],
          ["memory", "by memory"]], "order", (key) => { this.order = key; this.draw(); }),
        h("button", { type: "button", onclick: () => this.openAll(true) }, "open all"),
        h("button", { type: "button", onclick: () => this.openAll(false) }, "close all")),
      h("section", { class: "card" }, h("div", { class: "wide" }, this.table),
        h("p", { class: "note" }, "A module's figures are those of its own operators and of all "
          + "modules inside it. 'At the peak' is what its parameters, and what its forward and "
          + "backward allocated, hold then.")));
    this.build();
  }

  parts(name) {
    const folded = this.isFolded ? name.replace(/(^|\.)\d+(?=\.|$)/g, "$1*") : name;
    return folded ? folded.split(".") : [];
  }

  build() {
    const { run } = this;
    this.root = new ModuleNode("(the model)", []);
    this.outside = new ModuleNode("(outside any module)", ["(outside)"]);
    const byModule = groupedBy(run.leaves, (leaf) => run.sites.module[leaf.site]);
    const addAll = (target, source) => QUANTITIES.forEach((name) => { target[name] += source[name]; });
    for (const [module, sum] of byModule) {
      const name = run.modules.name[module];
      const className = run.modules.class[module];
      if (!name && !className) { addAll(this.outside.total, sum); continue; }
      let node = this.root;
      const along = [node];
      const instance = name.split(".");
      this.parts(name).forEach((part, depth) => {
        node = node.child(part);
        node.times.add(instance.slice(0, depth + 1).join("."));
        along.push(node);
      });
      addAll(node.own, sum);
      for (const each of along) {
        addAll(each.total, sum);
        for (const [bound, seconds] of Object.entries(sum.bounds)) {
          each.total.bounds[bound] = (each.total.bounds[bound] || 0) + seconds;
        }
      }
    }
    this.addClasses();
    this.addMemory();
    this.root.isOpen = true;
    for (const child of this.root.children.values()) child.isOpen = child.children.size < 12;
    this.draw();
  }

  addClasses() {
    this.run.modules.name.forEach((name, module) => {
      let node = this.root;
      for (const part of this.parts(name)) node = node && node.children.get(part);
      if (node && this.run.modules.class[module]) node.className = this.run.modules.class[module];
    });
  }

  addMemory() {
    const { run } = this;
    const owned = new Set(run.data.memory.owned);
    const parameters = run.data.memory.categories.indexOf("parameters");
    for (const storage of run.aliveAt(run.peakTick)) {
      const name = run.storageModule(storage);
      const bytes = run.storages.bytes[storage];
      if (name === "(outside any module)") { this.outside.held += bytes; continue; }
      let node = this.root;
      const along = [node];
      if (name !== "(the model)") {
        for (const part of this.parts(name)) { node = node.child(part); along.push(node); }
      }
      for (const each of along) {
        each.held += bytes;
        if (owned.has(storage) && run.storages.category[storage] === parameters) {
          each.parameters += bytes;
        }
      }
    }
  }

  columns() {
    const { run } = this;
    const { total } = run.data;
    return [
      ...(run.isTimed ? [
        ["time", "seconds", (node) => node.total.seconds, total.seconds],
        ["own time", "seconds", (node) => node.own.seconds, null]] : []),
      ["fwd FLOPs", "FLOPs", (node) => node.total.forward, null],
      ["bwd FLOPs", "FLOPs", (node) => node.total.backward, null],
      ["moved", "bytes", (node) => node.total.moved, total.bytes_moved],
      ["saved", "bytes", (node) => node.total.saved, total.bytes_saved],
      ["parameters", "bytes", (node) => node.parameters, null],
      ["at the peak", "bytes", (node) => node.held, run.data.memory.peak_bytes],
    ];
  }

  draw() {
    const columns = this.columns();
    replaceChildren(this.head, h("tr", {}, h("th", { scope: "col" }, "module"),
      columns.map(([title]) => h("th", { scope: "col", class: "number" }, title)),
      this.run.isTimed ? h("th", { scope: "col" }, "bound") : null));
    this.largest = columns.map(([, , value]) => Math.max(value(this.root), value(this.outside), 1e-30));
    const rows = [];
    const words = this.search.split(/\s+/).filter(Boolean);
    const isFound = (node) => words.every((word) =>
      `${node.path.join(".")} ${node.className}`.toLowerCase().includes(word));
    const hasFound = (node) => isFound(node) || [...node.children.values()].some(hasFound);
    const walk = (node, depth) => {
      if (words.length && !hasFound(node)) return;
      rows.push(this.row(node, depth, columns));
      if (!node.isOpen && !words.length) return;
      [...node.children.values()].sort(ORDERS[this.order]).forEach((child) => walk(child, depth + 1));
    };
    walk(this.root, 0);
    if (this.outside.total.count || this.outside.held) walk(this.outside, 0);
    replaceChildren(this.body, rows);
    if (rows.length) rows[0].setAttribute("tabindex", "0");
    replaceChildren(this.foot, h("tr", {}, h("td", {}, "total"), columns.map(([, unit, , sum]) =>
      h("td", { class: "number" }, sum === null ? "" : formatNumber(sum, unit)))));
  }

  row(node, depth, columns) {
    const hasChildren = node.children.size > 0;
    const row = h("tr", {
      role: "row", tabindex: "-1", "aria-level": String(depth + 1),
      "aria-expanded": hasChildren ? String(node.isOpen) : null,
      class: hasChildren ? "opens" : "",
    },
    h("td", { class: "code", style: { "padding-left": `${depth * 1.3}em` } },
      h("span", { class: "twist", "aria-hidden": "true" },
        hasChildren ? (node.isOpen ? "\u25be" : "\u25b8") : ""),
      node.name, h("span", { class: "faint" }, node.className ? `  ${node.className}` : "",
        node.times.size > 1 ? ` \u00d7${node.times.size}` : "")),
    columns.map(([, unit, value], place) => {
      const number = value(node);
      return h("td", { class: "number barred", style: {
        "--share": `${((100 * number) / this.largest[place]).toFixed(1)}%` } },
      number ? formatNumber(number, unit) : "");
    }),
    this.run.isTimed ? h("td", {}, boundPill(boundOf(node.total))) : null);
    row.node = node;
    return row;
  }

  click(event) {
    const row = event.target.closest("tr");
    if (!row || !row.node.children.size) return;
    this.toggle(row.node, !row.node.isOpen);
  }

  toggle(node, isOpen) {
    node.isOpen = isOpen;
    this.draw();
    this.focus(node);
  }

  focus(node) {
    const row = [...this.body.children].find((each) => each.node === node);
    if (row) { row.setAttribute("tabindex", "0"); row.focus({ preventScroll: true }); }
  }

  treeKey(event) {
    const row = event.target.closest("tbody tr");
    if (!row) return;
    const step = { ArrowDown: "nextSibling", ArrowUp: "previousSibling" }[event.key];
    if (step) {
      event.preventDefault();
      if (row[step]) row[step].focus();
    } else if (event.key === "ArrowRight" || event.key === "ArrowLeft" || event.key === "Enter") {
      event.preventDefault();
      event.stopPropagation();
      const isOpen = event.key === "Enter" ? !row.node.isOpen : event.key === "ArrowRight";
      if (row.node.children.size) this.toggle(row.node, isOpen);
    }
  }

  openAll(isOpen) {
    const walk = (node) => {
      node.isOpen = isOpen || node === this.root;
      for (const child of node.children.values()) walk(child);
    };
    walk(this.root);
    this.draw();
  }

  filter(text) {
    this.search = text.trim().toLowerCase();
    this.draw();
  }
}
