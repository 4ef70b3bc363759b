// What the figures rest on: unknown values, what was not counted, where the run differs from a real one;
// and what the terms mean.

class NotesView {
  constructor(run) {
    const { coverage, glossary, placeholders, remarks, tables } = run.data;
    this.tables = [];
    const keep = (table) => { this.tables.push(table); return table.node; };
    const listed = (label, rows, columns) => keep(new DataTable({ label, rows,
      columns: columns.map(([title, unit], place) => ({ title, unit, value: (row) => row[place] })) }));
    const missing = [["operator", "text"], ["times", "count"], ["why", "text"]];
    const card = (title, ...children) => h("section", { class: "card full" },
      h("h2", {}, title), children);
    const finished = ["step", "category", "workspace", "growth"].filter((name) =>
      tables[name] && tables[name].rows.length);
    this.node = h("div", { class: "cards below" },
      card("Not counted", coverage.uncounted.length
        ? [h("p", { class: "bad" }, "Missing from all totals:"),
          listed("uncounted operators", coverage.uncounted, missing)]
        : h("p", {}, `Every operator has a rule: ${coverage.counted} are counted, ${
          coverage.free} more are views or metadata.`)),
      coverage.untimed.length ? card("Time unknown", h("p", { class: "bad" },
        "Missing from all times:"), listed("untimed operators", coverage.untimed, missing)) : null,
      card("Placeholders", placeholders.length
        ? [h("p", {}, "Values that virtual tensors do not have, and what the script was given. A "
          + "condition that depends on one may take another way on a real GPU."),
        listed("placeholders", placeholders, [["line", "place"], ["source", "text"],
          ["operator", "text"], ["given", "text"], ["used as", "word"], ["times", "count"]])]
        : h("p", {}, "The script read no value that is not known.")),
      remarks.map(({ title, lines }) => card(title.replace(/:$/, ""),
        h("ul", {}, lines.map((line) => h("li", { class: "code" }, line))))),
      finished.map((name) => card(tables[name].title, keep(finishedTable(tables[name])))),
      card("Terms", h("dl", { class: "terms" }, glossary.map(([term, meaning]) => [h("dt", {}, term),
        h("dd", {}, meaning)]))));
  }

  filter(text) { this.tables.forEach((table) => table.filter(text)); }
}
