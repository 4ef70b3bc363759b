// Operators and the kernels that a compiler fused of them; a row opens its calls by their shapes.

class OperatorsView {
  constructor(run, go) {
    Object.assign(this, { run, go, search: "" });
    this.hasFused = run.jobs.kernel.some(Boolean);
    this.place = h("section", { class: "card" });
    this.node = h("div", {},
      h("div", { class: "toolbar" }, choice("by", [["operator", "by operator"], ["call", "by shape"],
        ["kind", "by kind"], ...(this.hasFused ? [["kernel", "fused kernels"]] : [])], "operator",
      (key) => this.draw(key))),
      this.place);
    this.draw("operator");
  }

  draw(by) {
    const { run } = this;
    const { jobs } = run;
    const keys = {
      operator: (leaf) => jobs.name[leaf.job],
      kind: (leaf) => jobs.kind[leaf.job].replace("_", " "),
      kernel: (leaf) => jobs.kernel[leaf.job],
    };
    if (by === "call") {
      this.table = operatorsTable(run, run.leaves, "operators by their shapes");
    } else {
      const leaves = by === "kernel" ? run.leaves.filter((leaf) => jobs.kernel[leaf.job]) : run.leaves;
      const total = emptyTotal();
      leaves.forEach((leaf) => addTo(total, leaf));
      const rows = [...groupedBy(leaves, keys[by])].map(([name, sum]) => ({ name, total: sum }));
      const columns = [
        { title: by, unit: "text", value: (row) => row.name },
        ...totalColumns(run, total, ["seconds", "share", "flops", "moved", "saved", "allocated",
          "exposed_s", "networkBytes", "count"]),
        ...(run.isTimed ? [boundColumn] : []),
        { title: "mostly at", unit: "place", value: (row) => run.shortPlace(this.mainLine(row.total)),
          render: (row) => h("button", { type: "button", class: "link", onclick: () =>
            this.go("source", { line: this.mainLine(row.total) }) },
          run.shortPlace(this.mainLine(row.total))) },
        ...(by === "kernel" ? [{ title: "made of", unit: "text", value: (row) =>
          [...new Set(row.total.leaves.map((leaf) => jobs.name[leaf.job]))].join(", ") }] : []),
      ];
      this.table = new DataTable({
        label: `operators by ${by}`, rows, columns, sort: { place: 1, isDown: true },
        detail: (row) => operatorsTable(run, row.total.leaves, row.name).node,
      });
    }
    replaceChildren(this.place, this.table.node);
    if (this.search) this.table.filter(this.search);
  }

  /** The line that takes most of a group's time, or does most of its FLOPs. */
  mainLine(total) {
    const by = groupedBy(total.leaves, (leaf) =>
      this.run.lineOf(leaf.row, this.run.data.is_behind_libraries));
    let [most, found] = [-1, -1];
    for (const [line, sum] of by) {
      const size = this.run.isTimed ? sum.seconds : sum.flops;
      if (size > most) [most, found] = [size, line];
    }
    return found;
  }

  filter(text) {
    this.search = text;
    this.table.filter(text);
  }
}
