// The roofline: how far each operator is from what the chip allows at its arithmetic intensity.

const PLOT = { left: 84, right: 20, top: 16, bottom: 48 };

class RooflineView {
  constructor(run) {
    this.run = run;
    const plot = run.data.roofline;
    this.figure = h("div", { class: "roofline" });
    this.hidden = new Set();
    if (!plot) {
      this.node = h("p", { class: "faint" },
        "The chip's speed is not known, so there is no roofline.");
      return;
    }
    this.table = new DataTable({
      label: "operators of the roofline", rows: plot.marks, sort: { place: 1, isDown: true },
      columns: [
        { title: "operator", unit: "text", value: (mark) => mark[4] },
        { title: "of time", unit: "fraction", value: (mark) => mark[3], bar: true },
        { title: "FLOP/s", unit: "FLOP/s", value: (mark) => mark[1] },
        { title: "FLOPs/byte", unit: "number", value: (mark) => Number(mark[0].toPrecision(3)) },
        { title: "of the roof", unit: "fraction", value: (mark) => mark[1] / this.roofAt(mark[0]) },
        { title: "bound", unit: "word", value: (mark) => plot.series[mark[2]],
          render: (mark) => boundPill(plot.series[mark[2]]) },
        { title: "called with", unit: "text", value: (mark) => mark[5] },
        { title: "line", unit: "place", value: (mark) => mark[6] },
      ],
    });
    this.used = [...new Set(plot.marks.map((mark) => mark[2]))].sort();
    this.legend = h("ul", { class: "key legend" });
    this.utilisation = finishedTable(run.data.tables.utilisation);
    this.bounds = finishedTable(run.data.tables.bound);
    const leftOut = plot.left_out.map(([name, share]) => `${name} (${formatShare(share)})`).join(", ");
    this.node = h("div", { class: "cards below" },
      h("section", { class: "card full" }, h("h2", {}, plot.title), this.legend, this.figure,
        h("p", { class: "note" }, leftOut ? `Not drawn: ${leftOut}. ` : "", plot.note)),
      h("section", { class: "card full" }, h("h2", {}, "Operators"), this.table.node),
      h("section", { class: "card full" }, h("h2", {}, "What limits the time"), this.bounds.node),
      h("section", { class: "card full" }, h("h2", {}, "How much of the chip a step uses"),
        this.utilisation.node));
  }

  /** What the highest limit allows at an intensity: straight on logarithmic axes. */
  roofAt(x) {
    let roof = 0;
    for (const [, , points] of this.run.data.roofline.curves) {
      for (let place = 0; place + 1 < points.length; place += 1) {
        const [[x0, y0], [x1, y1]] = [points[place], points[place + 1]];
        if (x < x0 || x > x1) continue;
        const share = x1 > x0 ? Math.log(x / x0) / Math.log(x1 / x0) : 0;
        roof = Math.max(roof, y0 * (y1 / y0) ** share);
      }
    }
    return roof || Infinity;
  }

  redraw() {
    if (this.figure.isConnected) this.draw();
  }

  draw() {
    const plot = this.run.data.roofline;
    const { left, right, top, bottom } = PLOT;
    const width = Math.max(340, this.figure.clientWidth);
    const height = Math.max(280, Math.min(width * 0.55, window.innerHeight * 0.62));
    const [, , xLow, xHigh] = plot.x;
    const [, , yLow, yHigh] = plot.y;
    const share = (value, low, high) => Math.log(value / low) / Math.log(high / low);
    const x = (value) => left + share(value, xLow, xHigh) * (width - left - right);
    const y = (value) => height - bottom - share(value, yLow, yHigh) * (height - top - bottom);
    const powers = (low, high) => {
      const found = [];
      for (let power = Math.ceil(Math.log10(low)); 10 ** power <= high; power += 1) found.push(10 ** power);
      return found;
    };
    const text = (words, more) => svg("text", more, words);
    const parts = [];
    for (const value of powers(xLow, xHigh)) {
      parts.push(svg("line", { class: "grid", x1: x(value), x2: x(value), y1: top, y2: height - bottom }),
        text(String(Number(value.toPrecision(3))), { x: x(value), y: height - bottom + 20,
          "text-anchor": "middle", class: "tick" }));
    }
    for (const value of powers(yLow, yHigh)) {
      parts.push(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
        text(inUnits(value, RUNGS["FLOP/s"]).replace(".00", ""), { x: left - 8, y: y(value) + 4,
          "text-anchor": "end", class: "tick" }));
    }
    parts.push(text(`${plot.x[0]} (${plot.x[1]})`, { x: (left + width - right) / 2, y: height - 12,
      "text-anchor": "middle", class: "tick" }));
    for (const [name, basis, points] of plot.curves) {
      const [lastX, lastY] = points[points.length - 1];
      parts.push(svg("polyline", { class: `curve ${basis}`,
        points: points.map(([px, py]) => `${x(px).toFixed(1)},${y(py).toFixed(1)}`).join(" ") },
      svg("title", {}, name)));
      const isPromised = basis === "promised";
      const [firstX, firstY] = points[0];
      if (firstY === lastY) {  // left of where it begins, where nothing can be
        parts.push(text(name, { x: x(firstX) - (isPromised ? 12 : 48), y: y(lastY) + (isPromised ? 2 : 18),
          class: "tick halo", "text-anchor": "end" }));
      } else if (isPromised || width > 560) {
        const [middleX, middleY] = [(x(firstX) + x(lastX)) / 2, (y(firstY) + y(lastY)) / 2];
        parts.push(text(name, { x: middleX + (isPromised ? -14 : 18), y: middleY + (isPromised ? -8 : 20),
          class: "tick halo", "text-anchor": isPromised ? "end" : "start" }));
      }
    }
    const heaviest = Math.max(...plot.marks.map((mark) => mark[3]), 1e-12);
    for (const mark of [...plot.marks].sort((one, other) => other[3] - one[3])) {
      if (this.hidden.has(mark[2])) continue;
      parts.push(svg("circle", {
        class: `mark ${plot.series[mark[2]]}`, cx: x(mark[0]), cy: y(mark[1]),
        r: Math.max(4, Math.min(24, width / 40) * Math.sqrt(mark[3] / heaviest)), tabindex: "0",
        "aria-label": `${mark[4]} in ${mark[6]}`,
        onmousemove: (event) => this.tell(event, mark), onmouseleave: hideTooltip,
        onfocus: (event) => {
          const box = event.target.getBoundingClientRect();
          this.tell({ clientX: box.x, clientY: box.y }, mark);
        },
        onblur: hideTooltip,
      }));
    }
    replaceChildren(this.figure, svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": plot.title }, parts));
    replaceChildren(this.legend, this.used.map((number) => h("li", {}, h("button", {
      type: "button", class: "link", "aria-pressed": String(!this.hidden.has(number)),
      onclick: () => {
        if (!this.hidden.delete(number)) this.hidden.add(number);
        this.draw();
      },
    }, h("span", { class: `swatch bound-${plot.series[number]}` }), plot.series[number]))),
    h("li", {}, "area: share of the time"));
  }

  tell(event, mark) {
    const plot = this.run.data.roofline;
    showTooltip(event, h("b", {}, mark[4]), h("p", { class: "code" }, mark[5]), h("p", {}, mark[6]),
      h("p", {}, `${formatNumber(mark[1], "FLOP/s")} at ${mark[0].toPrecision(3)} FLOPs/byte: ${
        formatShare(mark[1] / this.roofAt(mark[0]))} of the roof`),
      h("p", {}, `${formatShare(mark[3])} of the time, bound by ${plot.series[mark[2]]}`));
  }

  filter(text) {
    if (this.table) this.table.filter(text);
  }
}
