// A table that is sorted by a click on a column, filtered by the search, and walked by the keyboard.
// Rows are put on the page as they are scrolled to, so that ten thousand of them open at once.

const CHUNK = 80;
const TEXT_START = "text";

class DataTable {
  /**
   * columns: {title, unit, value: row -> number or text, bar: share of the column's largest,
   * total, render: row -> node, title: row -> text under the pointer}.
   * detail: row -> node that a click or Enter opens below the row.
   */
  constructor({ columns, rows, label, sort = null, detail = null, note = "", limit = Infinity }) {
    Object.assign(this, { columns, rows, label, detail, limit });
    this.order = sort;
    this.search = "";
    this.open = new Map();
    this.head = h("tr", {}, columns.map((column, place) => this.headOf(column, place)));
    this.body = h("tbody", { onclick: (event) => this.click(event) });
    this.sentinel = h("p", { class: "more" });
    this.note = note;
    this.foot = columns.some((column) => column.total !== undefined && column.total !== null)
      ? h("tfoot", {}, h("tr", {}, columns.map((column, place) => h("td", {
        class: this.classOf(column),
      }, place === 0 && isText(column) && !column.total ? "total"
        : column.total === undefined || column.total === null ? ""
          : isText(column) ? column.total : formatNumber(column.total, column.unit)))))
      : null;
    this.table = h("table", { "aria-label": label, onkeydown: (event) => this.key(event) },
      h("thead", {}, this.head), this.body, this.foot);
    this.node = h("div", { class: "table" }, h("div", { class: "wide" }, this.table),
      this.sentinel, note ? h("p", { class: "note" }, note) : null);
    this.observer = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) this.append();
    }, { rootMargin: "400px" });
    this.observer.observe(this.sentinel);
    this.maxima = columns.map((column) => (column.bar
      ? rows.reduce((most, row) => Math.max(most, column.value(row) || 0), 0) : 0));
    this.update();
  }

  headOf(column, place) {
    return h("th", { scope: "col", class: this.classOf(column) }, h("button", {
      type: "button", onclick: () => this.sortBy(place), title: `sort by ${column.title}`,
    }, column.title || "\u00a0"));
  }

  classOf(column) {
    if (!isText(column)) return "number";
    return column.unit === "place" || column.unit === "line" || column.unit === TEXT_START ? "code" : "";
  }

  /** By a column: largest first of numbers, a to z of texts; a second click turns it round. */
  sortBy(place) {
    const wasDown = this.order && this.order.place === place ? this.order.isDown : null;
    const isDown = wasDown === null ? !isText(this.columns[place]) : !wasDown;
    this.order = { place, isDown };
    this.update();
  }

  filter(text) {
    this.search = text.trim().toLowerCase();
    this.update();
  }

  textOf(row) {
    return this.columns.filter(isText).map((column) => String(column.value(row) ?? "")).join(" ")
      .toLowerCase();
  }

  setRows(rows) {
    this.rows = rows;
    this.open.clear();
    this.maxima = this.columns.map((column) => (column.bar
      ? rows.reduce((most, row) => Math.max(most, column.value(row) || 0), 0) : 0));
    this.update();
  }

  update() {
    const words = this.search.split(/\s+/).filter(Boolean);
    let rows = words.length
      ? this.rows.filter((row) => words.every((word) => this.textOf(row).includes(word)))
      : [...this.rows];
    if (this.order) {
      const column = this.columns[this.order.place];
      const sign = this.order.isDown ? -1 : 1;
      const isOfText = isText(column);
      const keys = new Map(rows.map((row) => [row, column.value(row)]));
      rows.sort((one, other) => {
        const [a, b] = [keys.get(one), keys.get(other)];
        if (isOfText) return sign * String(a).localeCompare(String(b), "en", { numeric: true });
        return sign * ((a ?? -Infinity) - (b ?? -Infinity));
      });
    }
    rows = rows.slice(0, this.limit);
    this.shown = rows;
    this.columns.forEach((_, place) => {
      const isSorted = this.order && this.order.place === place;
      this.head.children[place].setAttribute("aria-sort",
        isSorted ? (this.order.isDown ? "descending" : "ascending") : "none");
    });
    this.placed = 0;
    this.body.replaceChildren();
    this.append();
  }

  append() {
    const rows = this.shown.slice(this.placed, this.placed + CHUNK);
    this.body.append(...rows.map((row, place) => this.rowNode(row, this.placed + place)));
    this.placed += rows.length;
    const left = this.shown.length - this.placed;
    const hidden = this.rows.length - this.shown.length;
    this.sentinel.textContent = left ? `${left} more rows below`
      : this.search && hidden ? `${this.shown.length} of ${this.rows.length} rows match` : "";
  }

  rowNode(row, place) {
    const cells = this.columns.map((column, at) => {
      const value = column.value(row);
      const content = column.render ? column.render(row)
        : isText(column) ? String(value ?? "") : formatNumber(value, column.unit);
      const share = this.maxima[at] ? (value || 0) / this.maxima[at] : 0;
      return h("td", {
        class: `${this.classOf(column)}${column.bar ? " barred" : ""}`,
        title: column.hover ? column.hover(row) : isText(column) && String(value ?? "").length > 40
          ? String(value) : null,
        style: share > 0 ? { "--share": `${(100 * share).toFixed(1)}%` } : undefined,
      }, content);
    });
    const node = h("tr", {
      tabindex: place === 0 ? "0" : "-1",
      class: this.detail ? "opens" : "",
      "aria-expanded": this.detail ? String(this.open.has(row)) : null,
    }, cells);
    node.row = row;
    return node;
  }

  click(event) {
    const node = event.target.closest("tr");
    if (!node || !node.row || event.target.closest("button")) return;
    if (window.getSelection().toString()) return;
    this.toggle(node);
  }

  toggle(node) {
    if (!this.detail) return;
    const isOpen = node.nextSibling && node.nextSibling.classList.contains("detail");
    if (isOpen) node.nextSibling.remove();
    else {
      const inner = this.detail(node.row);
      if (!inner) return;
      node.after(h("tr", { class: "detail" },
        h("td", { colspan: this.columns.length }, inner)));
    }
    node.setAttribute("aria-expanded", String(!isOpen));
  }

  key(event) {
    const node = event.target.closest("tbody tr[tabindex]");
    if (!node || node.closest("table") !== this.table) return;
    const rows = [...this.body.children].filter((each) => each.row);
    const place = rows.indexOf(node);
    const to = { ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      if (to >= rows.length - 1) this.append();
      const next = [...this.body.children].filter((each) => each.row)[to];
      if (next) {
        node.setAttribute("tabindex", "-1");
        next.setAttribute("tabindex", "0");
        next.focus();
      }
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.toggle(node);
    }
  }
}

const isText = (column) => TEXT_UNITS.has(column.unit);

/** A table that Python finished: columns with their units, rows, totals, a note. */
function finishedTable(table) {
  const columns = table.columns.map(([name, title, unit], place) => ({
    name, title, unit, value: (row) => row[place], total: table.totals[place],
    bar: unit === "seconds" || unit === "bytes",
  }));
  const texts = columns.filter(isText);
  const ordered = [...texts.slice(0, 1), ...columns.filter((column) => !isText(column)),
    ...texts.slice(1)];
  return new DataTable({
    columns: ordered.map((column) => ({ ...column })), rows: table.rows, label: table.title,
    note: [table.left_out ? `${table.left_out} more rows.` : "", table.note].join(" ").trim(),
  });
}

/** The columns of sums of operators. `total` is their sum. */
function totalColumns(run, total, names) {
  const all = {
    seconds: { title: "time", unit: "seconds", bar: true },
    share: { title: "of time", unit: "fraction", of: "seconds" },
    forward: { title: "fwd FLOPs", unit: "FLOPs", bar: true },
    backward: { title: "bwd FLOPs", unit: "FLOPs", bar: true },
    flops: { title: "FLOPs", unit: "FLOPs", bar: true },
    moved: { title: "moved", unit: "bytes", bar: true },
    saved: { title: "saved", unit: "bytes", bar: true },
    allocated: { title: "allocated", unit: "bytes", bar: true },
    exposed_s: { title: "exposed", unit: "seconds", bar: true },
    networkBytes: { title: "payload", unit: "bytes", bar: true },
    count: { title: "ops", unit: "count" },
    views: { title: "views", unit: "count" },
    copies: { title: "copies", unit: "count" },
  };
  const isNeeded = (name) => (run.isTimed || !["seconds", "share", "exposed_s"].includes(name))
    && (total.networkBytes > 0 || !["exposed_s", "networkBytes"].includes(name));
  return names.filter(isNeeded).map((name) => {
    const { title, unit, bar, of } = all[name];
    return {
      title, unit, bar,
      value: of ? (row) => (total[of] ? row.total[of] / total[of] : 0) : (row) => row.total[name],
      total: of ? (total[of] ? 1 : 0) : total[name],
    };
  });
}

const boundPill = (bound) => (bound
  ? h("span", { class: `pill bound-${bound}`, title: `bound by ${bound}` }, bound) : "");

const boundColumn = {
  title: "bound", unit: "word", value: (row) => boundOf(row.total),
  render: (row) => boundPill(boundOf(row.total)),
};

/** What ran: the operators of some leaves with their shapes, views and copies marked. */
function operatorsTable(run, leaves, label) {
  const total = emptyTotal();
  leaves.forEach((leaf) => addTo(total, leaf));
  const groups = groupedBy(leaves, (leaf) => `${leaf.job} ${leaf.phase}`);
  const rows = [...groups.values()].map((sum) => ({ total: sum, leaf: sum.leaves[0] }));
  const { jobs } = run;
  const columns = [
    {
      title: "operator", unit: "text", value: (row) => jobs.name[row.leaf.job],
      render: (row) => [jobs.name[row.leaf.job],
        jobs.is_view[row.leaf.job] ? h("span", { class: "pill view" }, "view") : null,
        jobs.is_copy[row.leaf.job] ? h("span", { class: "pill copy" }, "copy") : null],
    },
    { title: "phase", unit: "word", value: (row) => row.leaf.phase },
    ...totalColumns(run, total, ["seconds", "flops", "moved", "saved", "count"]),
    ...(run.isTimed ? [boundColumn] : []),
    { title: "given", unit: "text", value: (row) => run.tensors(jobs.inputs[row.leaf.job]) },
    { title: "makes", unit: "text", value: (row) => run.tensors(jobs.outputs[row.leaf.job]) },
    { title: "with", unit: "text", value: (row) => jobs.literals[row.leaf.job] },
  ];
  const most = columns.findIndex((column) => !isText(column));
  return new DataTable({ columns, rows, label, sort: { place: most, isDown: true } });
}
