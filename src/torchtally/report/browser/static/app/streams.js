// What every stream and communicator does when, on a canvas that is zoomed into; the collectives.

const LANE = { height: 30, label: 90, axis: 26, gap: 4 };
const LEAST_NS = 50;

class StreamsView {
  constructor(run, go) {
    Object.assign(this, { run, go, colour: "bound", search: "" });
    this.lanes = run.data.lanes.map((lane) => this.unpack(lane));
    this.end = Math.max(1, ...this.lanes.map((lane) => lane.ends[lane.ends.length - 1] || 0));
    this.range = [0, this.end];
    const { tables } = run.data;
    const names = ["collective", "group", "rank"].filter((name) =>
      tables[name] && tables[name].rows.length);
    this.tables = names.map((name) => [tables[name].title, finishedTable(tables[name])]);
    this.canvas = h("canvas", { class: "lanes", tabindex: "0", role: "img",
      "aria-label": "streams over time; the same by operator is in Operators" });
    this.legend = h("ul", { class: "key legend" });
    this.listen();
    const cut = run.data.lanes.reduce((sum, lane) => sum + lane.left_out, 0);
    this.node = h("div", {},
      this.lanes.length ? [
        h("div", { class: "toolbar" },
          h("span", { class: "choice" },
            h("button", { type: "button", title: "zoom in (+)", onclick: () => this.zoom(0.5) }, "+"),
            h("button", { type: "button", title: "zoom out (-)", onclick: () => this.zoom(2) }, "\u2212"),
            h("button", { type: "button", title: "the whole step (0)",
              onclick: () => this.show([0, this.end]) }, "whole step")),
          choice("colour", [["bound", "by bound"], ["phase", "by phase"]], "bound",
            (key) => { this.colour = key; this.redraw(); }),
          h("span", { class: "faint" },
            "Drag to zoom, double-click for the whole step, click for the source line.")),
        h("section", { class: "card" }, this.legend, this.canvas,
          cut ? h("p", { class: "note" }, `${cut} more operators behind these are not drawn.`) : null),
      ] : h("p", { class: "faint" }, "Times are unknown, so there is nothing to lay out over time."),
      h("div", { class: "cards below" }, this.tables.length
        ? this.tables.map(([title, table]) =>
          h("section", { class: "card full" }, h("h2", {}, title), table.node))
        : h("p", { class: "faint" }, "No collective ran: this is a run of one GPU.")));
  }

  unpack(lane) {
    const count = lane.ns.length;
    const starts = new Float64Array(count);
    const ends = new Float64Array(count);
    let at = 0;
    for (let place = 0; place < count; place += 1) {
      at += lane.gap_ns[place];
      starts[place] = at;
      at += lane.ns[place];
      ends[place] = at;
    }
    return { ...lane, starts, ends, rows: accumulated(lane.row_steps) };
  }

  nameOf(lane, place) {
    const row = lane.rows[place];
    return row < 0 ? lane.others[-1 - row][0] : this.run.jobs.kernel[this.run.rows.job[row]]
      || this.run.jobs.name[this.run.rows.job[row]];
  }

  /** What takes most of a row's time. */
  boundOfRow(row) {
    if (!this.bounds) {
      this.bounds = new Map();
      for (const leaf of this.run.leaves) {
        const known = this.bounds.get(leaf.row);
        if (!known || known[1] < leaf.seconds) this.bounds.set(leaf.row, [leaf.bound, leaf.seconds]);
      }
    }
    return this.bounds.get(row)?.[0] || "overhead";
  }

  colourOfSlice(lane, place, colours) {
    if (lane.is_communicator) return colours["--network"];
    const row = lane.rows[place];
    const [bound, phase] = row < 0 ? lane.others[-1 - row].slice(1)
      : [this.boundOfRow(row), this.run.data.phases[this.run.rows.phase[row]]];
    return colours[this.colour === "bound" ? `--${bound}` : PHASE_COLOURS[phase]];
  }

  /** Lanes with the ranks that they belong to as headings between them. */
  layout() {
    let [top, rank] = [LANE.axis, null];
    const places = [];
    for (const lane of this.lanes) {
      if (lane.rank !== rank) { top += 20; rank = lane.rank; }
      places.push(top);
      top += LANE.height + LANE.gap;
    }
    return { places, height: top + 6 };
  }

  get labelWidth() {
    const letters = Math.max(0, ...this.lanes.map((lane) => lane.name.length));
    return Math.min(Math.max(LANE.label, letters * 6.6), this.canvas.clientWidth * 0.28);
  }

  xOf(ns) {
    const width = this.canvas.clientWidth - this.labelWidth;
    return this.labelWidth + ((ns - this.range[0]) / (this.range[1] - this.range[0])) * width;
  }

  nsAt(x) {
    const width = this.canvas.clientWidth - this.labelWidth;
    const share = Math.max(0, Math.min(1, (x - this.labelWidth) / width));
    return this.range[0] + share * (this.range[1] - this.range[0]);
  }

  redraw() {
    if (!this.canvas.isConnected || !this.lanes.length) return;
    const { places, height } = this.layout();
    const pixel = devicePixelRatio || 1;
    const width = this.canvas.clientWidth;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = width * pixel;
    this.canvas.height = height * pixel;
    const context = this.canvas.getContext("2d");
    context.scale(pixel, pixel);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const names = ["--compute", "--memory", "--network", "--overhead", "--forward", "--backward",
      "--warning", "--cat-1", "--cat-3", "--cat-11",
      "--moved", "--ink", "--faint", "--rule", "--card", "--track"];
    const colours = Object.fromEntries(names.map((name) => [name, colourOf(name)]));
    this.drawAxis(context, colours, height);
    let rank = null;
    this.lanes.forEach((lane, number) => {
      const top = places[number];
      context.textAlign = "left";
      if (lane.rank !== rank) {
        rank = lane.rank;
        context.fillStyle = colours["--ink"];
        context.font = "600 12px system-ui, sans-serif";
        context.fillText(rank, 0, top - 10);
        context.font = "12px system-ui, sans-serif";
      }
      context.fillStyle = colours["--faint"];
      context.save();
      context.beginPath();
      context.rect(0, top, this.labelWidth - 8, LANE.height);
      context.clip();
      context.fillText(lane.name, 0, top + LANE.height / 2);
      context.restore();
      this.drawLane(context, lane, top, colours);
    });
    if (this.dragged) {
      const [from, to] = this.dragged;
      context.fillStyle = colours["--faint"];
      context.globalAlpha = 0.25;
      context.fillRect(Math.min(from, to), 0, Math.abs(to - from), height);
      context.globalAlpha = 1;
    }
    this.drawLegend();
  }

  drawAxis(context, colours, height) {
    const span = this.range[1] - this.range[0];
    const width = this.canvas.clientWidth - this.labelWidth;
    const rough = (span * 110) / width;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((times) => times * power).find((each) => each >= rough);
    context.textAlign = "center";
    for (let at = Math.ceil(this.range[0] / step) * step; at <= this.range[1]; at += step) {
      const x = this.xOf(at);
      context.fillStyle = colours["--rule"];
      context.fillRect(x, LANE.axis - 6, 1, height - LANE.axis);
      context.fillStyle = colours["--faint"];
      context.fillText(formatSeconds(at * 1e-9), Math.max(this.labelWidth + 24, Math.min(x,
        this.canvas.clientWidth - 28)), 9);
    }
  }

  /** The slices that are seen. Those of one pixel are drawn as one. */
  drawLane(context, lane, top, colours) {
    const [label, width] = [this.labelWidth, this.canvas.clientWidth];
    const scale = (width - label) / (this.range[1] - this.range[0]);
    const xOf = (ns) => label + (ns - this.range[0]) * scale;
    context.fillStyle = colours["--track"];
    context.fillRect(label, top, width - label, LANE.height);
    const words = this.search.split(/\s+/).filter(Boolean);
    let place = Math.max(0, upperBound(lane.starts, this.range[0]) - 1);
    let drawn = -1;
    context.textAlign = "left";
    for (; place < lane.starts.length && lane.starts[place] < this.range[1]; place += 1) {
      if (lane.ends[place] < this.range[0]) continue;
      const left = Math.max(label, xOf(lane.starts[place]));
      const right = Math.min(width, xOf(lane.ends[place]));
      if (right <= drawn) continue;
      const wide = Math.max(right - left, 0.7);
      const isFound = !words.length || words.every((word) =>
        this.textOf(lane, place).includes(word));
      context.globalAlpha = isFound ? 1 : 0.15;
      const waits = lane.wait_ns.length ? lane.wait_ns[place] : 0;
      const met = waits ? Math.max(left, xOf(lane.starts[place] + waits)) : left;
      context.fillStyle = colours["--faint"];
      if (met > left) context.fillRect(left, top + LANE.height / 2 - 2, met - left, 4);
      context.fillStyle = this.colourOfSlice(lane, place, colours);
      context.fillRect(met, top, Math.max(0.7, right - met - (wide > 3 ? 0.6 : 0)), LANE.height);
      if (right - met > 46) {
        context.save();
        context.beginPath();
        context.rect(met, top, right - met - 3, LANE.height);
        context.clip();
        context.fillStyle = colours["--card"];
        context.fillText(this.nameOf(lane, place).replace(/^aten\./, ""), met + 4,
          top + LANE.height / 2);
        context.restore();
      }
      drawn = left + Math.max(wide, 0.7);
      if (wide < 0.7) drawn = Math.max(drawn, right);
    }
    context.globalAlpha = 1;
  }

  textOf(lane, place) {
    const row = lane.rows[place];
    const line = row < 0 ? -1 : this.run.lineOf(row, false);
    return `${this.nameOf(lane, place)} ${this.run.lineText(line)} ${row < 0 ? ""
      : this.run.moduleName(this.run.sites.module[this.run.rows.site[row]])}`.toLowerCase();
  }

  drawLegend() {
    const { phases } = this.run.data;
    const used = new Set(this.run.leaves.map((leaf) => leaf.phase));
    const hasNetwork = this.run.data.total.network_bytes > 0;
    const items = this.colour === "bound"
      ? this.run.shownBounds().filter((bound) => bound !== "network" || hasNetwork)
        .map((bound) => [`--${bound}`, bound])
      : [...phases.filter((phase) => used.has(phase)).map((phase) => [PHASE_COLOURS[phase], phase]),
        ...(hasNetwork ? [["--network", "network"]] : [])];
    const swatch = (colour) => h("span", { class: "swatch", style: { background: `var(${colour})` } });
    replaceChildren(this.legend, items.map(([colour, title]) => h("li", {}, swatch(colour), title)),
      this.lanes.some((lane) => lane.wait_ns.length)
        ? h("li", {}, swatch("--faint"), "waiting for other ranks") : null);
  }

  /** The slice under the pointer: its lane and its place there. */
  sliceAt(x, y) {
    const { places } = this.layout();
    const number = places.findIndex((top) => y >= top && y < top + LANE.height);
    if (number < 0 || x < this.labelWidth) return null;
    const lane = this.lanes[number];
    const ns = this.nsAt(x);
    const slack = ((this.range[1] - this.range[0]) / this.canvas.clientWidth) * 2;
    const place = upperBound(lane.starts, ns) - 1;
    if (place >= 0 && ns <= lane.ends[place] + slack) return [lane, place];
    return null;
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("mousedown", (event) => {
      if (event.offsetX > this.labelWidth) this.dragged = [event.offsetX, event.offsetX];
    });
    canvas.addEventListener("mousemove", (event) => {
      if (this.dragged && event.buttons) {
        this.dragged[1] = event.offsetX;
        hideTooltip();
        this.redraw();
      } else this.hover(event);
    });
    canvas.addEventListener("mouseup", (event) => {
      const dragged = this.dragged;
      this.dragged = null;
      if (!dragged) return;
      const [from, to] = [Math.min(...dragged), Math.max(...dragged)];
      if (to - from > 4) this.show([this.nsAt(from), this.nsAt(to)]);
      else this.click(event);
    });
    canvas.addEventListener("mouseleave", () => {
      hideTooltip();
      if (this.dragged) { this.dragged = null; this.redraw(); }
    });
    canvas.addEventListener("dblclick", () => this.show([0, this.end]));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      this.zoom(event.deltaY + event.deltaX > 0 ? 1.25 : 0.8, this.nsAt(event.offsetX));
    }, { passive: false });
  }

  hover(event) {
    const found = this.sliceAt(event.offsetX, event.offsetY);
    if (!found) { hideTooltip(); return; }
    const [lane, place] = found;
    const row = lane.rows[place];
    const { run } = this;
    const waits = lane.wait_ns.length ? lane.wait_ns[place] : 0;
    const line = row < 0 ? -1 : run.lineOf(row, run.data.is_behind_libraries);
    showTooltip(event, h("b", {}, this.nameOf(lane, place)),
      h("p", {}, `${formatSeconds(lane.ns[place] * 1e-9)} from ${
        formatSeconds(lane.starts[place] * 1e-9)}${waits
        ? `, ${formatSeconds(waits * 1e-9)} of it waiting for other ranks` : ""}`),
      row < 0 ? h("p", {}, `${lane.rank}: ${lane.others[-1 - row].slice(1).reverse().join(", ")}-bound`) : [
        h("p", { class: "code" }, run.tensors(run.jobs.inputs[run.rows.job[row]])),
        h("p", {}, `${run.data.phases[run.rows.phase[row]]}, ${run.moduleName(
          run.sites.module[run.rows.site[row]])}, ${lane.is_communicator ? "network"
          : this.boundOfRow(row)}-bound`),
        h("p", { class: "code" }, `${run.shortPlace(line)}  ${run.lineText(line)}`)]);
  }

  click(event) {
    const found = this.sliceAt(event.offsetX, event.offsetY);
    if (!found || found[0].rows[found[1]] < 0) return;
    this.go("source", { line: this.run.lineOf(found[0].rows[found[1]],
      this.run.data.is_behind_libraries) });
  }

  show([from, to]) {
    const least = Math.min(LEAST_NS, this.end);
    const width = Math.max(least, Math.min(to - from, this.end));
    const start = Math.min(Math.max(from, 0), this.end - width);
    this.range = [start, start + width];
    this.redraw();
  }

  zoom(factor, around) {
    const [from, to] = this.range;
    const middle = around ?? (from + to) / 2;
    this.show([middle - (middle - from) * factor, middle + (to - middle) * factor]);
  }

  key(event) {
    const width = this.range[1] - this.range[0];
    const keys = {
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
      0: () => this.show([0, this.end]),
      "[": () => this.show(this.range.map((ns) => ns - width / 4)),
      "]": () => this.show(this.range.map((ns) => ns + width / 4)),
    };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  }

  filter(text) {
    this.search = text.trim().toLowerCase();
    this.tables.forEach(([, table]) => table.filter(text));
    this.redraw();
  }
}
