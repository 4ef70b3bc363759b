// The frame: views by tabs and by the address, search, theme and keyboard.

const VIEWS = [
  ["overview", "Overview", (run, go) => overview(run, go)],
  ["source", "Source", (run, go) => new SourceView(run, go)],
  ["memory", "Memory", (run, go) => new MemoryView(run, go)],
  ["treemap", "Treemap", (run, go) => new TreemapView(run, go)],
  ["modules", "Modules", (run) => new ModulesView(run)],
  ["operators", "Operators", (run, go) => new OperatorsView(run, go)],
  ["roofline", "Roofline", (run) => new RooflineView(run)],
  ["streams", "Streams", (run, go) => new StreamsView(run, go)],
  ["notes", "Notes", (run) => new NotesView(run)],
];

const KEYS = [
  ["1 to 9", "views, in their order"],
  ["/", "search; Esc empties it"],
  ["\u2191 \u2193 Home End", "rows of a table, lines of the source"],
  ["Enter", "open a row or a line"],
  ["t", "theme: the system's, light, dark"],
  ["?", "this help"],
];

class Page {
  constructor(run) {
    this.run = run;
    this.built = new Map();
    const { data } = run;
    this.tabs = h("nav", { role: "tablist", "aria-label": "views" }, VIEWS.map(([name, title], place) =>
      h("button", {
        type: "button", role: "tab", "data-view": name, title: `${title} (${place + 1})`,
        onclick: () => this.go(name),
      }, title)));
    this.search = h("input", {
      type: "search", id: "search", placeholder: "search  /", "aria-label": "search",
      spellcheck: "false", autocomplete: "off",
      oninput: () => this.filter(),
    });
    this.main = h("main", {});
    this.help = h("div", { class: "help", role: "dialog", "aria-label": "keys", hidden: true },
      h("h2", {}, "Keys"), h("dl", {}, [...KEYS, ...MORE_KEYS].map(([key, what]) =>
        h("div", {}, h("dt", {}, key), h("dd", {}, what)))));
    const [rank, size] = data.rank;
    replaceChildren(document.getElementById("page"),
      h("header", {},
        h("div", { class: "title" },
          h("h1", { title: data.script }, data.script),
          h("p", { class: "faint" }, data.facts.join(" "), size > 1 ? ` Rank ${rank} of ${size}.` : ""),
          this.ending(data)),
        h("div", { class: "tools" }, this.search,
          h("button", { type: "button", title: "theme (t)", "aria-label": "theme",
            id: "theme", onclick: () => this.nextTheme() }, "\u25d0"),
          h("button", { type: "button", title: "keys (?)", "aria-label": "keys", id: "keys",
            onclick: () => this.toggleHelp() }, "?")),
        this.tabs),
      this.main, tooltip, this.help);
    document.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("hashchange", () => this.openAddress());
    window.addEventListener("resize", () => this.redraw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw(true));
    this.openAddress();
  }

  ending(data) {
    const [kind, message] = data.ending;
    return kind === "steps" || kind === "exit" ? null
      : h("p", { class: "bad" }, `Ended by ${kind}${message ? `: ${message}` : ""}.`);
  }

  openAddress() {
    const name = location.hash.slice(1);
    this.go(VIEWS.some(([known]) => known === name) ? name : VIEWS[0][0]);
  }

  go(name, what) {
    hideTooltip();
    const [, , build] = VIEWS.find(([known]) => known === name);
    if (!this.built.has(name)) this.built.set(name, build(this.run, (...to) => this.go(...to)));
    this.view = this.built.get(name);
    for (const tab of this.tabs.children) {
      tab.setAttribute("aria-selected", String(tab.getAttribute("data-view") === name));
    }
    const tab = this.tabs.querySelector("[aria-selected=true]");
    this.tabs.scrollLeft = tab.offsetLeft - (this.tabs.clientWidth - tab.offsetWidth) / 2;
    if (this.name !== name) {
      this.name = name;
      replaceChildren(this.main, this.view.node);
      try {
        history.replaceState(null, "", `#${name}`);
      } catch {
        // a page within another one may have no address of its own
      }
      window.scrollTo(0, 0);
      this.filter();
      this.redraw();
    }
    if (what && this.view.show) this.view.show(what);
  }

  filter() {
    if (this.view.filter && this.view.filtered !== this.search.value) {
      this.view.filtered = this.search.value;
      this.view.filter(this.search.value);
    }
  }

  redraw(isRecoloured = false) {
    for (const view of isRecoloured ? this.built.values() : [this.view]) {
      if (view.redraw) view.redraw(isRecoloured);
    }
  }

  nextTheme() {
    const root = document.documentElement;
    const after = { "": "light", light: "dark", dark: "" }[root.dataset.theme || ""];
    if (after) root.dataset.theme = after; else delete root.dataset.theme;
    this.redraw(true);
  }

  toggleHelp() { this.help.hidden = !this.help.hidden; }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isTyping = event.target.closest && event.target.closest("input, select, textarea");
    if (event.key === "Escape") {
      this.help.hidden = true;
      hideTooltip();
      if (this.search.value) { this.search.value = ""; this.filter(); }
      this.search.blur();
      return;
    }
    if (isTyping) return;
    if (event.key === "/") { event.preventDefault(); this.search.focus(); this.search.select(); }
    else if (event.key === "?") this.toggleHelp();
    else if (event.key === "t") this.nextTheme();
    else if (/^[1-9]$/.test(event.key) && VIEWS[event.key - 1]) this.go(VIEWS[event.key - 1][0]);
    else if (this.view.key) this.view.key(event);
  }
}

const MORE_KEYS = [
  ["+ - 0", "memory, streams: zoom in, out, the whole run"],
  ["[ ]", "memory, streams: to the left, to the right"],
  ["\u2190 \u2192 p", "memory: the moment before, the next one, the peak"],
  ["Backspace", "treemap: out of a box"],
];

/** What starts the page, and for the console of a browser what a reader may want to look at. */
window.tally = {
  formatNumber,
  Timeline,
  open(data) {
    window.tally.run = new Run(data);
    window.tally.page = new Page(window.tally.run);
  },
};
