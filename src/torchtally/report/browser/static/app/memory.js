// Memory over the run, stacked by category: zoomed by dragging, and what is alive at any moment.

/** Bytes by category at every tick where they change, and their sum. */
class Timeline {
  constructor(run) {
    const { storages } = run;
    const names = run.data.memory.categories;
    const isChanged = new Uint8Array(run.endTick + 1);
    const end = (place) => Math.min(storages.died[place], run.endTick + 1);
    for (let place = 0; place < storages.count; place += 1) {
      isChanged[storages.born[place]] = 1;
      if (end(place) <= run.endTick) isChanged[end(place)] = 1;
    }
    const placeOf = new Int32Array(run.endTick + 1);
    const ticks = [];
    isChanged.forEach((is, tick) => {
      placeOf[tick] = ticks.length;
      if (is) ticks.push(tick);
    });
    this.ticks = Float64Array.from(ticks);
    const count = ticks.length;
    const parts = names.map(() => new Float64Array(count));
    for (let place = 0; place < storages.count; place += 1) {
      const part = parts[storages.category[place]];
      part[placeOf[storages.born[place]]] += storages.bytes[place];
      if (end(place) <= run.endTick) part[placeOf[end(place)]] -= storages.bytes[place];
    }
    this.total = new Float64Array(count);
    for (const part of parts) {
      let sum = 0;
      for (let place = 0; place < count; place += 1) {
        sum += part[place];
        part[place] = sum;
        this.total[place] += sum;
      }
    }
    this.categories = names.map((_, number) => number).filter((number) =>
      parts[number].some((bytes) => bytes > 0));
    this.parts = parts;
  }

  /**
   * Places that a chart of so many pixels needs between two ticks: in each pixel's stretch the
   * fullest and the emptiest moment, so that no peak is lost.
   */
  placesBetween(first, last, pixels) {
    const start = Math.max(0, upperBound(this.ticks, first) - 1);
    const end = Math.min(this.ticks.length, upperBound(this.ticks, last) + 1);
    if (end - start <= 2 * pixels) {
      return Array.from({ length: end - start }, (_, place) => start + place);
    }
    const places = [start];
    const width = (last - first) / pixels;
    let place = start + 1;
    for (let pixel = 0; pixel < pixels; pixel += 1) {
      const until = first + width * (pixel + 1);
      let [least, most] = [-1, -1];
      for (; place < end && (this.ticks[place] <= until || pixel === pixels - 1); place += 1) {
        if (most < 0 || this.total[place] > this.total[most]) most = place;
        if (least < 0 || this.total[place] < this.total[least]) least = place;
      }
      if (most >= 0) {
        places.push(Math.min(least, most));
        if (least !== most) places.push(Math.max(least, most));
      }
    }
    return places;
  }
}

const LEAST_TICKS = 4;
const MOST_GROUPS = 12;
const PHASE_COLOURS = {
  forward: "--forward", backward: "--backward", recompute: "--warning", optimizer: "--cat-1",
  evaluation: "--cat-3", prefill: "--forward", decode: "--cat-11",
};

class MemoryView {
  constructor(run, go) {
    Object.assign(this, { run, go, axis: "operators" });
    this.timeline = run.timeline;
    const { time } = run.data.verdict;
    this.timeName = time && time.basis === "measured" ? "measured time" : "predicted time";
    this.first = this.timeline.ticks.length ? this.timeline.ticks[0] : 0;
    this.last = run.endTick;
    this.range = [this.first, this.last];
    this.pinned = run.peakTick;
    this.hovered = null;
    this.hidden = new Set();
    this.seconds = this.clock();
    this.reserved = {
      ticks: accumulated(run.data.memory.reserved.tick_steps),
      bytes: run.data.memory.reserved.bytes,
    };
    this.legend = h("ul", { class: "key legend" });
    this.chart = h("div", { class: "chart", id: "memory-chart" });
    this.map = h("canvas", { class: "minimap", title: "the whole run: click to go there",
      onclick: (event) => this.goToMap(event) });
    this.momentNode = h("section", { class: "card", "aria-live": "polite" });
    this.aliveNode = h("section", { class: "card full" });
    const { step_ends: ends } = run.data.memory;
    this.node = h("div", {},
      h("div", { class: "toolbar" },
        h("span", { class: "choice" },
          h("button", { type: "button", id: "zoom-in", title: "zoom in (+)",
            onclick: () => this.zoom(0.5) }, "+"),
          h("button", { type: "button", id: "zoom-out", title: "zoom out (-)",
            onclick: () => this.zoom(2) }, "\u2212"),
          h("button", { type: "button", id: "zoom-reset", title: "the whole run (0)",
            onclick: () => this.show({ range: [this.first, this.last] }) }, "whole run")),
        h("button", { type: "button", id: "to-peak", title: "the peak (p)",
          onclick: () => this.toPeak() }, "peak"),
        ends.length > 1 && ends.length < 10 ? h("span", { class: "choice" }, ends.map((end, place) =>
          h("button", { type: "button", onclick: () => this.show({
            range: [place ? ends[place - 1] : this.first, end] }) }, `step ${place + 1}`))) : null,
        this.seconds ? choice("axis", [["operators", "by operator"], ["seconds", `by ${this.timeName}`]],
          "operators", (key) => { this.axis = key; this.redraw(); }) : null,
        h("span", { class: "faint" }, "Drag to zoom, double-click for the whole run, click to pin a moment.")),
      h("section", { class: "card" }, this.legend, this.chart, this.map),
      h("div", { class: "cards below" }, this.momentNode, this.aliveNode));
    this.showMoment(this.pinned);
    this.showAlive();
  }

  /** Predicted seconds at the beginning of each operator, as if each followed the one before. */
  clock() {
    const { ns } = this.run.data.ops;
    if (!ns.length) return null;
    const seconds = new Float64Array(ns.length + 1);
    for (let place = 0; place < ns.length; place += 1) {
      seconds[place + 1] = seconds[place] + ns[place] * 1e-9;
    }
    return seconds;
  }

  /** Where a tick stands on the axis. */
  x(tick) {
    if (this.axis === "operators") return tick;
    const { ticks } = this.run;
    const op = upperBound(ticks, tick - 1);
    return this.seconds[Math.min(op, this.seconds.length - 1)];
  }

  /** The tick that stands there. */
  tickAt(x) {
    if (this.axis === "operators") return Math.max(this.first, Math.min(this.last, Math.floor(x)));
    const op = Math.max(0, upperBound(this.seconds, x) - 1);
    return op < this.run.ticks.length ? this.run.ticks[op] : this.last;
  }

  shownCategories() {
    return this.timeline.categories.filter((number) => !this.hidden.has(number));
  }

  /** Columns for the chart: x, the stack from its top down, what is reserved. */
  columns() {
    const { timeline } = this;
    const pixels = Math.max(200, this.chart.clientWidth || 800);
    const places = timeline.placesBetween(this.range[0], this.range[1], pixels);
    const shown = this.shownCategories();
    const ticks = places.map((place) => timeline.ticks[place]);
    const isShort = ticks.length && ticks[ticks.length - 1] < this.range[1];
    if (isShort) { places.push(places[places.length - 1]); ticks.push(this.range[1]); }
    const stack = [];
    let below = new Float64Array(places.length);
    for (const number of shown) {
      const part = timeline.parts[number];
      const sum = new Float64Array(places.length);
      for (let at = 0; at < places.length; at += 1) sum[at] = below[at] + part[places[at]];
      stack.unshift(sum);
      below = sum;
    }
    const reserved = this.reserved.ticks.length ? ticks.map((tick) => {
      const at = upperBound(this.reserved.ticks, tick) - 1;
      return at < 0 ? 0 : this.reserved.bytes[at];
    }) : null;
    return [ticks.map((tick) => this.x(tick)), ...stack, ...(reserved ? [reserved] : [])];
  }

  redraw() {
    if (!this.chart.isConnected) return;
    if (this.plot) this.plot.destroy();
    const shown = this.shownCategories();
    const ink = colourOf("--faint");
    const rule = colourOf("--rule");
    const step = uPlot.paths.stepped({ align: 1 });
    const font = "12px system-ui, sans-serif";
    const columns = this.columns();
    const axisOf = (more) => ({ stroke: ink, font, grid: { stroke: rule, width: 1 },
      ticks: { stroke: rule, width: 1 }, ...more });
    const seconds = this.axis === "seconds";
    const series = [...shown].reverse().map((number) => ({
      label: this.run.data.memory.categories[number], paths: step, width: 0,
      fill: colourOf(`--cat-${number}`), points: { show: false },
    }));
    if (columns.length > series.length + 1) {
      series.push({ label: "reserved", paths: step, width: 1.5, dash: [5, 4],
        stroke: colourOf("--ink"), points: { show: false } });
    }
    this.plot = new uPlot({
      width: Math.max(240, this.chart.clientWidth),
      height: Math.max(240, Math.min(560, window.innerHeight * 0.45)),
      legend: { show: false },
      scales: {
        x: { time: false, range: () => this.range.map((tick) => this.x(tick)) },
        y: { range: (_, low, high) => [0, Math.max(1, high) * 1.08] },
      },
      axes: [
        axisOf({ values: (_, ticks) => ticks.map((at) => (seconds ? formatSeconds(at)
          : formatCount(at))), space: 80, size: 32, labelGap: 0, labelFont: font, labelSize: 22,
        label: seconds ? `${this.timeName} since the start` : "operators since the start" }),
        axisOf({ values: (_, ticks) => ticks.map((at) => formatBytes(at)), size: 84,
          incrs: Array.from({ length: 40 }, (_, power) => 2 ** (power + 4)) }),
      ],
      series: [{}, ...series],
      cursor: {
        drag: { x: true, y: false, setScale: false }, points: { show: false }, y: false,
        bind: { dblclick: () => () => { this.show({ range: [this.first, this.last] }); return null; } },
      },
      hooks: {
        setSelect: [(plot) => this.select(plot)],
        setCursor: [(plot) => this.hover(plot)],
        draw: [(plot) => this.drawMarks(plot)],
      },
    }, columns, this.chart);
    this.plot.over.addEventListener("mousedown", () => { this.wasDragged = false; });
    this.plot.over.addEventListener("click", (event) => this.click(event));
    this.plot.over.addEventListener("mouseleave", () => this.leave());
    this.plot.over.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      this.zoom(event.deltaY + event.deltaX > 0 ? 1.25 : 0.8,
        this.tickAt(this.plot.posToVal(event.offsetX, "x")));
    }, { passive: false });
    this.drawLegend();
    this.drawMap();
  }

  /** New columns for the same chart: another range. */
  update() {
    if (!this.plot) return;
    this.plot.setData(this.columns());
    this.drawMap();
  }

  drawLegend() {
    const { categories } = this.run.data.memory;
    const at = bytesAt(this.run, this.pinned);
    replaceChildren(this.legend, this.timeline.categories.map((number) => h("li", {},
      h("button", { type: "button", class: "link", "aria-pressed": String(!this.hidden.has(number)),
        title: `show or hide ${categories[number]}`,
        onclick: () => {
          if (!this.hidden.delete(number)) this.hidden.add(number);
          this.redraw();
        } },
      h("span", { class: `swatch category-${number}` }), categories[number], " ",
      h("b", {}, formatBytes(at[number]))))),
    this.reserved.ticks.length ? h("li", {}, "\u2504 reserved by the allocator") : null);
  }

  /** Ends of steps, the phases below, the peak and the pinned moment. */
  drawMarks(plot) {
    const { ctx, bbox } = plot;
    const pixel = devicePixelRatio || 1;
    const at = (tick) => plot.valToPos(this.x(tick), "x", true);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top - 14 * pixel, bbox.width, bbox.height + 14 * pixel);
    ctx.clip();
    ctx.font = `${11 * pixel}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    ctx.fillStyle = colourOf("--faint");
    ctx.strokeStyle = colourOf("--faint");
    ctx.lineWidth = pixel;
    const [from, to] = this.range;
    const ends = this.run.data.memory.step_ends;
    if (ends.filter((end) => end > from && end < to).length < 60) {
      ends.forEach((end) => {
        if (end <= from || end >= to) return;
        ctx.setLineDash([2 * pixel, 3 * pixel]);
        ctx.beginPath();
        ctx.moveTo(at(end), bbox.top);
        ctx.lineTo(at(end), bbox.top + bbox.height);
        ctx.stroke();
      });
      ctx.setLineDash([]);
      [0, ...ends].forEach((start, place) => {
        const end = ends[place] ?? this.last;
        const left = Math.max(at(Math.max(start, from)), bbox.left);
        const right = Math.min(at(Math.min(end, to)), bbox.left + bbox.width);
        const text = place < ends.length ? `step ${place + 1}`
          : place ? `after step ${place}` : "before the end of a step";
        if (right - left > ctx.measureText(text).width + 8 * pixel) {
          ctx.fillText(text, left + 4 * pixel, bbox.top - 3 * pixel);
        }
      });
    }
    this.drawPhases(plot, at, pixel);
    this.labels = [];
    this.drawMoment(plot, at, this.run.peakTick, "--bad", pixel,
      `peak ${formatBytes(this.run.data.memory.peak_bytes)}`);
    if (this.pinned !== this.run.peakTick) {
      this.drawMoment(plot, at, this.pinned, "--accent", pixel, "pinned");
    }
    for (const tick of this.run.data.memory.refused_ticks) {
      this.drawMoment(plot, at, tick, "--bad", pixel, "out of memory");
    }
    ctx.restore();
  }

  drawPhases(plot, at, pixel) {
    const { ctx, bbox } = plot;
    const { ticks, rows, opRows } = this.run;
    const phases = this.run.data.phases;
    const top = bbox.top + bbox.height - 4 * pixel;
    let op = this.run.opAt(this.range[0]);
    const end = Math.min(ticks.length, upperBound(ticks, this.range[1]) + 1);
    while (op < end) {
      const phase = rows.phase[opRows[op]];
      const left = at(ticks[op]);
      while (op < end && rows.phase[opRows[op]] === phase) op += 1;
      const right = at(op < ticks.length ? ticks[op] : this.last);
      ctx.fillStyle = colourOf(PHASE_COLOURS[phases[phase]]);
      ctx.fillRect(left, top, Math.max(right - left, 0.5), 4 * pixel);
    }
  }

  drawMoment(plot, at, tick, colour, pixel, text) {
    if (tick < this.range[0] || tick > this.range[1]) return;
    const { ctx, bbox } = plot;
    const x = at(tick);
    ctx.strokeStyle = ctx.fillStyle = colourOf(colour);
    ctx.lineWidth = 1.5 * pixel;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const width = ctx.measureText(text).width;
    const isRight = x + width + 12 * pixel > bbox.left + bbox.width;
    const left = isRight ? x - width - 10 * pixel : x + 2 * pixel;
    const isNear = ([from, to]) => left < to && from < left + width + 8 * pixel;
    const top = bbox.top + (2 + 18 * this.labels.filter(isNear).length) * pixel;
    this.labels.push([left, left + width + 8 * pixel]);
    ctx.fillRect(left, top, width + 8 * pixel, 16 * pixel);
    ctx.fillStyle = colourOf("--card");
    ctx.fillText(text, left + 4 * pixel, top + 12 * pixel);
  }

  /** The whole run below the chart, with the part that is shown. */
  drawMap() {
    const { map, timeline } = this;
    const pixel = devicePixelRatio || 1;
    const [width, height] = [Math.max(1, map.clientWidth) * pixel, 34 * pixel];
    map.width = width;
    map.height = height;
    const context = map.getContext("2d");
    const most = this.run.data.memory.peak_bytes || 1;
    const whole = this.x(this.last) - this.x(this.first) || 1;
    const xOf = (tick) => ((this.x(tick) - this.x(this.first)) / whole) * width;
    context.fillStyle = colourOf("--track");
    context.fillRect(xOf(this.range[0]), 0, Math.max(2, xOf(this.range[1]) - xOf(this.range[0])), height);
    context.fillStyle = colourOf("--accent");
    const places = timeline.placesBetween(this.first, this.last, width);
    places.forEach((place, at) => {
      const left = Math.floor(xOf(timeline.ticks[place]));
      const next = Math.ceil(at + 1 < places.length ? xOf(timeline.ticks[places[at + 1]]) : width);
      const tall = (timeline.total[place] / most) * (height - 2);
      context.fillRect(left, height - tall, Math.max(1, next - left), tall);
    });
    context.strokeStyle = colourOf("--ink");
    context.lineWidth = pixel;
    context.strokeRect(xOf(this.range[0]) + 0.5, 0.5,
      Math.max(2, xOf(this.range[1]) - xOf(this.range[0])) - 1, height - 1);
  }

  goToMap(event) {
    const share = event.offsetX / this.map.clientWidth;
    const x = this.x(this.first) + share * (this.x(this.last) - this.x(this.first));
    const middle = this.tickAt(x);
    const half = (this.range[1] - this.range[0]) / 2;
    this.show({ range: [middle - half, middle + half] });
  }

  select(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    const [from, to] = [left, left + width].map((at) => this.tickAt(plot.posToVal(at, "x")));
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.wasDragged = true;
    this.show({ range: [from, to] });
  }

  /** A range to look at, within the run; or a moment to pin. */
  show({ range, tick }) {
    if (range) {
      let [from, to] = range;
      const least = Math.min(LEAST_TICKS, this.last - this.first);
      if (to - from < least) [from, to] = [(from + to - least) / 2, (from + to + least) / 2];
      const width = Math.min(to - from, this.last - this.first);
      from = Math.min(Math.max(from, this.first), this.last - width);
      this.range = [from, from + width];
      this.update();
    }
    if (tick !== undefined) this.pin(tick);
  }

  zoom(factor, around) {
    const [from, to] = this.range;
    const isSeen = this.pinned >= from && this.pinned <= to;
    const middle = around ?? (isSeen ? this.pinned : (from + to) / 2);
    this.show({ range: [middle - (middle - from) * factor, middle + (to - middle) * factor] });
  }

  toPeak() {
    const half = Math.max(LEAST_TICKS, (this.last - this.first) / 40);
    this.pin(this.run.peakTick);
    this.show({ range: [this.run.peakTick - half, this.run.peakTick + half] });
  }

  hover(plot) {
    const { left } = plot.cursor;
    if (left === null || left === undefined || left < 0) return;
    const tick = this.tickAt(plot.posToVal(left, "x"));
    if (tick === this.hovered) return;
    this.hovered = tick;
    if (!this.frame) {
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        if (this.hovered !== null) this.showMoment(this.hovered);
      });
    }
  }

  leave() {
    this.hovered = null;
    this.showMoment(this.pinned);
  }

  click() {
    if (this.wasDragged) { this.wasDragged = false; return; }
    if (this.hovered !== null) this.pin(this.hovered);
  }

  pin(tick) {
    this.pinned = Math.max(this.first, Math.min(this.last - 1, Math.round(tick)));
    this.showMoment(this.pinned);
    this.showAlive();
    this.drawLegend();
    if (this.plot) this.plot.redraw();
  }

  /** What is held at a moment, by category and by the lines and modules that hold most. */
  showMoment(tick) {
    const { run } = this;
    const { storages } = run;
    const alive = run.aliveAt(tick);
    const names = run.data.memory.categories;
    const groups = new Map();
    let total = 0;
    for (const storage of alive) {
      total += storages.bytes[storage];
      const row = run.storageRow(storage);
      const line = row < 0 ? -1 : run.lineOf(row, run.data.is_behind_libraries);
      const key = storages.category[storage] * 1e7 + line;
      const group = groups.get(key);
      if (group) { group.bytes += storages.bytes[storage]; group.count += 1; }
      else {
        groups.set(key, { bytes: storages.bytes[storage], count: 1, line, storage,
          category: storages.category[storage] });
      }
    }
    const ordered = [...groups.values()].sort((one, other) => other.bytes - one.bytes);
    const kept = ordered.slice(0, MOST_GROUPS);
    const at = bytesAt(run, tick);
    const op = run.ticks.length ? run.opRows[run.opAt(tick)] : -1;
    const title = tick === run.peakTick ? "The peak" : tick === this.pinned ? "Pinned" : "Here";
    replaceChildren(this.momentNode,
      h("h2", {}, title),
      h("p", { class: "figure", id: "moment-bytes" }, formatBytes(total)),
      h("p", {}, run.moment(tick)),
      h("p", { class: "faint code" }, op < 0 ? "" : `${run.jobs.name[run.rows.job[op]]}   ${
        run.lineText(run.lineOf(op, false))}`),
      stackedBar(names.map((name, number) => [at[number], `category-${number}`, name]), total || 1,
        { class: "bar tall" }),
      h("div", { class: "wide" }, h("table", { class: "alive" }, h("tbody", {}, kept.map((group) => h("tr", {},
        h("td", {}, h("span", { class: `swatch category-${group.category}` }),
          names[group.category]),
        h("td", { class: "number" }, formatBytes(group.bytes)),
        h("td", { class: "number" }, `${group.count}\u00d7`),
        h("td", { class: "code" }, group.line < 0 ? run.storageName(group.storage)
          : run.shortPlace(group.line)),
        h("td", { class: "code" }, run.lineText(group.line))))))),
      ordered.length > kept.length ? h("p", { class: "faint" },
        `and ${ordered.length - kept.length} more groups`) : null);
  }

  /** Every storage at the pinned moment. */
  showAlive() {
    const { run } = this;
    this.alive = storagesTable(run, this.pinned);
    const isPeak = this.pinned === run.peakTick;
    replaceChildren(this.aliveNode,
      h("h2", {}, `Every storage ${isPeak ? "at the peak" : "at the pinned moment"}`),
      h("p", {}, `${run.moment(this.pinned)}. `, h("button", { type: "button",
        onclick: () => this.go("treemap", { tick: this.pinned }) }, "as a treemap")),
      this.alive.node);
    if (this.search) this.alive.filter(this.search);
  }

  filter(text) {
    this.search = text;
    this.alive.filter(text);
  }

  key(event) {
    const width = this.range[1] - this.range[0];
    const pan = (share) => this.show({ range: this.range.map((tick) => tick + share * width) });
    const { ticks } = this.timeline;
    const at = upperBound(ticks, this.pinned);
    const keys = {
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
      0: () => this.show({ range: [this.first, this.last] }),
      p: () => this.toPeak(), "[": () => pan(-0.25), "]": () => pan(0.25),
      ArrowRight: () => at < ticks.length && this.pin(ticks[at]),
      ArrowLeft: () => at >= 2 && this.pin(ticks[at - 2]),
    };
    if (keys[event.key] && !event.target.closest("table")) {
      event.preventDefault();
      keys[event.key]();
    }
  }
}

/** The storages that are alive at a tick, largest first. */
function storagesTable(run, tick) {
  const { storages } = run;
  const ends = run.data.memory.step_ends;
  const names = run.data.memory.categories;
  const alive = run.aliveAt(tick);
  const total = alive.reduce((sum, storage) => sum + storages.bytes[storage], 0);
  const lineOf = (storage) => {
    const row = run.storageRow(storage);
    return row < 0 ? -1 : run.lineOf(row, run.data.is_behind_libraries);
  };
  return new DataTable({
    label: "storages", rows: alive, sort: { place: 1, isDown: true },
    columns: [
      { title: "held for", unit: "name", value: (storage) => names[storages.category[storage]],
        render: (storage) => [h("span", { class: `swatch category-${storages.category[storage]}` }),
          names[storages.category[storage]]] },
      { title: "bytes", unit: "bytes", value: (storage) => storages.bytes[storage], bar: true, total },
      { title: "share", unit: "fraction", value: (storage) => storages.bytes[storage] / (total || 1),
        total: total ? 1 : 0 },
      { title: "tensor", unit: "text", value: (storage) => run.storageTensor(storage) },
      { title: "name or module", unit: "place",
        value: (storage) => run.storageName(storage) || run.storageModule(storage) },
      { title: "line", unit: "place", value: (storage) => run.shortPlace(lineOf(storage)) },
      { title: "source", unit: "text", value: (storage) => run.lineText(lineOf(storage)) },
      { title: "since", unit: "word", value: (storage) =>
        `step ${upperBound(ends, storages.born[storage]) + 1}` },
      { title: "age in operators", unit: "count",
        value: (storage) => tick - storages.born[storage] },
    ],
  });
}
