// The user's source, each line with what it costs. A backward operator is on its forward line.

const KEYWORDS = new Set(("False None True and as assert async await break class continue def del "
  + "elif else except finally for from global if import in is lambda match nonlocal not or pass "
  + "raise return try while with yield").split(" "));
const TOKEN = /(#.*$)|([rbfuRBFU]{0,2}(?:"""|'''))|([rbfuRBFU]{0,2}"(?:\\.|[^"\\])*"?|[rbfuRBFU]{0,2}'(?:\\.|[^'\\])*'?)|(@[A-Za-z_][\w.]*)|([A-Za-z_]\w*)|(\d[\w.]*)|([^\s\w]|\s+)/g;

/** A line of Python in colours. `state` carries a string of several lines on. */
function highlighted(text, state) {
  const nodes = [];
  let from = 0;
  const put = (part, kind) => nodes.push(kind ? h("span", { class: `tok-${kind}` }, part) : part);
  while (from < text.length) {
    if (state.quote) {
      const end = text.indexOf(state.quote, from);
      const to = end < 0 ? text.length : end + 3;
      put(text.slice(from, to), "string");
      if (end >= 0) state.quote = "";
      from = to;
      continue;
    }
    TOKEN.lastIndex = from;
    const match = TOKEN.exec(text);
    if (!match) { put(text.slice(from)); break; }
    const [part, comment, triple, string, decorator, word, number] = match;
    from = TOKEN.lastIndex;
    if (triple) { state.quote = triple.slice(-3); put(part, "string"); }
    else if (comment) put(part, "comment");
    else if (string) put(part, "string");
    else if (decorator) put(part, "decorator");
    else if (word) put(part, KEYWORDS.has(word) ? "keyword" : "");
    else put(part, number ? "number" : "");
  }
  return nodes;
}

const CONTEXT_LINES = 3;
const MOST_MARKS = 2;

class SourceView {
  constructor(run, go) {
    Object.assign(this, { run, go, search: "", isWhole: false });
    this.isInnermost = run.data.is_behind_libraries;
    this.hasBoth = run.sites.line.some((line, site) => line !== run.sites.library_line[site]);
    this.head = h("div", { class: "toolbar" });
    this.body = h("div", { class: "source", role: "table", "aria-label": "source" });
    this.node = h("div", {}, this.head, this.body);
    this.gather();
  }

  /** Costs by file and line. */
  gather() {
    const { run } = this;
    this.byLine = groupedBy(run.leaves, (leaf) => run.lineOf(leaf.row, this.isInnermost));
    const files = new Map();
    for (const [line, total] of this.byLine) {
      if (line < 0) continue;
      const file = run.lines.file[line];
      if (!files.has(file)) files.set(file, { file, isOwn: false, total: emptyTotal(), lines: [] });
      const entry = files.get(file);
      entry.lines.push(line);
      entry.isOwn = entry.isOwn || Boolean(run.lines.is_own[line]);
      for (const name of QUANTITIES) entry.total[name] += total[name];
    }
    const key = run.isTimed ? "seconds" : "flops";
    this.files = [...files.values()].sort((one, other) =>
      other.isOwn - one.isOwn || other.total[key] - one.total[key]);
    const largest = (of) => Math.max(1e-300, ...[...this.byLine.values()].map(of));
    this.largest = {
      seconds: largest((total) => total.seconds),
      flops: largest((total) => total.forward + total.backward),
      moved: largest((total) => total.moved),
      saved: largest((total) => total.saved),
    };
    if (!this.files.some(({ file }) => file === this.file)) {
      const hottest = [...this.files].sort((one, other) => other.total[key] - one.total[key]);
      this.file = hottest.length ? hottest[0].file : -1;
    }
    this.draw();
  }

  draw() {
    const { run } = this;
    const nameOf = (file) => run.data.files[file].name;
    const picker = h("select", {
      "aria-label": "file",
      onchange: (event) => { this.file = Number(event.target.value); this.drawBody(); },
    }, this.files.map(({ file, total }) => {
      const share = run.isTimed && run.data.total.seconds
        ? ` (${formatShare(total.seconds / run.data.total.seconds)} of time)` : "";
      return h("option", { value: file }, `${nameOf(file)}${share}`);
    }));
    picker.value = String(this.file);
    this.picker = picker;
    replaceChildren(this.head, picker,
      this.hasBoth ? choice("lines", [["own", run.data.delegate ? "the model's lines" : "your lines"], ["inner", "innermost lines"]],
        this.isInnermost ? "inner" : "own", (key) => {
          this.isInnermost = key === "inner";
          this.gather();
        }) : null,
      choice("extent", [["hot", "lines that cost"], ["whole", "whole file"]],
        this.isWhole ? "whole" : "hot", (key) => { this.isWhole = key === "whole"; this.drawBody(); }),
      h("ul", { class: "key" },
        h("li", {}, h("span", { class: "swatch phase-forward" }), "forward"),
        h("li", {}, h("span", { class: "swatch phase-backward" }), "backward, recomputed"),
        run.isTimed ? run.shownBounds().map((bound) => h("li", {},
          h("span", { class: `swatch bound-${bound}` }), bound)) : null));
    this.drawBody();
  }

  drawBody() {
    const { run } = this;
    const head = h("div", { class: "line head", role: "row" }, ["", "source",
      run.isTimed ? "time" : "", "FLOPs", "moved", "saved", ""].map((title) =>
      h("span", { role: "columnheader" }, title)));
    replaceChildren(this.body, head);
    if (run.data.delegate && !this.isInnermost) {
      this.body.append(h("p", { class: "faint aside" }, "One line of yours only calls a library, "
        + "so these are lines of your own or of the library's model that run below it: ",
      h("code", {}, run.data.delegate)));
    }
    const entry = this.files.find(({ file }) => file === this.file);
    if (!entry) {
      this.body.append(h("p", { class: "faint aside" }, "No line of Python is known of these operators."));
      return;
    }
    const costs = new Map();
    for (const line of entry.lines) {
      const number = run.lines.line[line];
      costs.set(number, [...(costs.get(number) || []), line]);
    }
    const text = run.data.files[this.file].text;
    const known = text || [];
    if (!text) {
      for (const line of entry.lines) known[run.lines.line[line] - 1] = run.lines.text[line];
      this.body.append(h("p", { class: "faint aside" },
        "The file was not found as it was when it ran: only the lines that ran are known."));
    }
    const words = this.search.split(/\s+/).filter(Boolean);
    const isFound = (line) => words.every((word) => line.toLowerCase().includes(word));
    const state = { quote: "" };
    let folded = [];
    const flush = () => {
      if (!folded.length) return;
      const lines = folded;
      folded = [];
      const button = h("button", { type: "button", class: "fold", onclick: () => {
        const at = { quote: "" };
        button.replaceWith(...lines.map(([number, line]) => this.lineNode(number, line, [], at)));
      } }, `\u22ef ${lines.length} line${lines.length > 1 ? "s" : ""} without cost`);
      this.body.append(button);
    };
    const near = (number) => {
      for (let at = number - CONTEXT_LINES; at <= number + CONTEXT_LINES; at += 1) {
        if (costs.has(at)) return true;
      }
      return false;
    };
    for (let number = 1; number <= known.length; number += 1) {
      const line = known[number - 1];
      if (line === undefined) continue;
      const isShown = words.length ? isFound(line) : this.isWhole || !text || near(number);
      if (!isShown) {
        if (words.length) continue;
        highlighted(line, state);
        folded.push([number, line]);
        continue;
      }
      flush();
      this.body.append(this.lineNode(number, line, costs.get(number) || [], state));
    }
    flush();
  }

  /** A line with its bars; a click opens what ran there. */
  lineNode(number, text, lines, state) {
    const { run } = this;
    const total = emptyTotal();
    for (const line of lines) this.byLine.get(line).leaves.forEach((leaf) => addTo(total, leaf));
    const hasCost = total.count > 0;
    const largest = this.largest;
    const metric = (of, unit, whole, parts) => h("span", { class: "metric", role: "cell" },
      hasCost && of > 0 ? [h("span", {}, formatNumber(of, unit)), stackedBar(parts, whole)] : "");
    const node = h("div", {
      class: `line${hasCost ? " hot" : ""}`, role: "row", tabindex: hasCost ? "0" : null,
      id: lines.length ? `line-${lines[0]}` : null,
      "aria-expanded": hasCost ? "false" : null,
      onclick: hasCost ? (event) => {
        if (!event.target.closest(".line-detail") && !window.getSelection().toString()) {
          this.toggle(node, total);
        }
      } : null,
      onkeydown: hasCost ? (event) => this.key(event, node, total) : null,
    },
    h("span", { class: "number", role: "cell" }, String(number)),
    h("span", { class: "code", role: "cell" }, h("code", {}, highlighted(text, state)),
      this.marks(total)),
    metric(run.isTimed ? total.seconds : 0, "seconds", largest.seconds, BOUNDS.map((bound) =>
      [total.bounds[bound] || 0, `bound-${bound}`, `${bound}: ${
        formatSeconds(total.bounds[bound] || 0)}`])),
    metric(total.flops, "FLOPs", largest.flops, [
      [total.forward, "phase-forward", `forward: ${formatFlops(total.forward)}`],
      [total.backward, "phase-backward", `backward: ${formatFlops(total.backward)}`]]),
    metric(total.moved, "bytes", largest.moved, [
      [total.read, "moved", `read: ${formatBytes(total.read)}`],
      [total.written, "moved written", `written: ${formatBytes(total.written)}`]]),
    metric(total.saved, "bytes", largest.saved, [
      [total.saved, "saved", `saved for the backward pass: ${formatBytes(total.saved)}`]]),
    h("span", { class: "bound", role: "cell" }, hasCost && run.isTimed
      ? boundPill(boundOf(total)) : ""));
    return node;
  }

  /** Views and copies of a line, with shape and stride of what they make. */
  marks(total) {
    if (!total.views && !total.copies) return null;
    const { jobs } = this.run;
    const made = new Map();
    for (const leaf of total.leaves) {
      if (!leaf.views && !leaf.copies) continue;
      const output = jobs.outputs[leaf.job][0];
      const kind = leaf.views ? "view" : "copy";
      const key = `${kind} ${output}`;
      made.set(key, { kind, output, count: (made.get(key)?.count || 0) + leaf.count,
        names: [...(made.get(key)?.names || []), jobs.name[leaf.job]] });
    }
    const all = [...made.values()].sort((one, other) =>
      (one.kind === "view") - (other.kind === "view"));
    const kept = all.slice(0, MOST_MARKS);
    return h("span", { class: "marks" }, kept.map(({ kind, output, count, names }) =>
      h("span", { class: `pill ${kind}`, title: `${[...new Set(names)].join(", ")}` },
        `${count > 1 ? `${count} ${kind === "copy" ? "copies" : "views"}` : kind} `,
        output === undefined ? "" : this.withStride(output))),
    all.length > kept.length ? h("span", { class: "pill" }, `+${all.length - kept.length}`) : null);
  }

  withStride(spec) {
    const [dtype, shape, stride] = this.run.jobs.specs[spec];
    const own = stride.length ? stride : contiguousStride(shape);
    return `${dtype}[${shape.join(", ")}] stride (${own.join(", ")})`;
  }

  key(event, node, total) {
    if (event.target !== node) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.toggle(node, total);
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const hot = [...this.body.querySelectorAll(".line.hot")];
      const next = hot[hot.indexOf(node) + (event.key === "ArrowDown" ? 1 : -1)];
      if (next) next.focus();
    }
  }

  toggle(node, total) {
    const isOpen = node.nextSibling && node.nextSibling.classList
      && node.nextSibling.classList.contains("line-detail");
    if (isOpen) node.nextSibling.remove();
    else node.after(this.detail(total));
    node.setAttribute("aria-expanded", String(!isOpen));
  }

  /** What ran at a line, and the lines that led there. */
  detail(total) {
    const { run } = this;
    const stack = run.sites.stack[total.leaves[0].site];
    const modules = [...new Set(total.leaves.map((leaf) => run.sites.module[leaf.site]))];
    const names = modules.slice(0, 3).map((module) => run.moduleName(module)).join(", ");
    return h("div", { class: "line-detail" },
      operatorsTable(run, total.leaves, "operators of this line").node,
      h("p", { class: "faint" }, `In ${names}${modules.length > 3
        ? ` and ${modules.length - 3} more modules` : ""}. Called from: `,
      stack.map((line, place) => [place ? " \u2190 " : "", run.shortPlace(line)])));
  }

  filter(text) {
    this.search = text.trim().toLowerCase();
    this.drawBody();
  }

  /** Show a line: its file, scrolled to it, open. */
  show({ line }) {
    if (line === undefined || line < 0) return;
    if (!this.byLine.has(line)) {
      this.isInnermost = !this.isInnermost;
      this.gather();
    }
    this.file = this.run.lines.file[line];
    this.draw();
    const node = this.body.querySelector(`#line-${line}`);
    if (node) {
      node.scrollIntoView({ block: "center" });
      node.focus();
      node.click();
    }
  }
}

function contiguousStride(shape) {
  const stride = [];
  let step = 1;
  for (let place = shape.length - 1; place >= 0; place -= 1) {
    stride.unshift(step);
    step *= shape[place];
  }
  return stride;
}
