// The page: numbers to the left, what follows from them to the right. The address keeps them.

const STEPS = 1000;
const LENGTH_WORDS = new Set(["sequence"]);

class NapkinPage {
  constructor(data) {
    this.data = data;
    this.inputs = Object.fromEntries(data.inputs.map((row) => [row.word, row.value]));
    this.chosen = Object.fromEntries(data.choices.map((row) => [row.word, row.chosen]));
    this.begun = { inputs: { ...this.inputs }, chosen: { ...this.chosen } };
    this.fields = new Map();
    this.selects = new Map();
    this.open = new Set();
    this.cards = h("main", { class: "napkin-cards" });
    this.commandNode = h("code", { id: "command" });
    replaceChildren(document.getElementById("page"),
      h("header", {},
        h("div", { class: "title" }, h("h1", {}, "Napkin math"),
          h("p", { class: "faint" }, "Change any number: everything that follows is computed again, "
            + "by the formulas of ", h("code", {}, "tally plan"), ".")),
        h("div", { class: "tools" },
          h("button", { type: "button", id: "reset", onclick: () => this.reset() }, "reset"),
          h("button", { type: "button", title: "theme (t)", "aria-label": "theme", id: "theme",
            onclick: () => this.nextTheme() }, "\u25d0"))),
      h("div", { class: "napkin" }, this.panel(), this.cards));
    document.addEventListener("keydown", (event) => {
      if (event.key === "t" && !event.target.closest("input, select")) this.nextTheme();
    });
    window.addEventListener("hashchange", () => { this.readAddress(); this.update(); });
    this.readAddress();
    this.update();
  }

  panel() {
    const groups = new Map();
    for (const row of this.data.inputs) {
      if (!groups.has(row.group)) groups.set(row.group, []);
      groups.get(row.group).push(this.field(row));
    }
    const place = { model: "model", chip: "chips", recipe: "states", optimizer: "states" };
    for (const choice of [...this.data.choices].reverse()) {
      groups.get(place[choice.word]).unshift(this.select(choice));
    }
    return h("form", { class: "napkin-panel", "aria-label": "numbers",
      onsubmit: (event) => event.preventDefault() },
      [...groups].map(([group, fields]) => h("fieldset", { class: "card" },
        h("legend", {}, group), fields)),
      h("p", { class: "faint" }, "The same in a terminal: ", this.commandNode));
  }

  select(choice) {
    const node = h("select", { id: `choice-${choice.word}`, "aria-label": choice.title,
      onchange: () => this.choose(choice, node.value) },
    Object.keys(choice.options).map((name) => h("option", { value: name }, name)));
    this.selects.set(choice.word, node);
    return h("label", { class: "napkin-choice" }, h("span", {}, choice.title), node);
  }

  choose(choice, name) {
    this.chosen[choice.word] = name;
    Object.assign(this.inputs, choice.options[name]);
    this.update();
  }

  field(row) {
    const isLength = LENGTH_WORDS.has(row.word);
    const text = h("input", { type: "text", id: `input-${row.word}`, spellcheck: "false",
      autocomplete: "off", "aria-label": row.name,
      onchange: () => this.type(row, text, isLength) });
    const slider = h("input", { type: "range", min: "0", max: String(STEPS), step: "1",
      id: `slider-${row.word}`, "aria-label": `${row.name}, as a slider`,
      oninput: () => this.put(row, this.at(row, Number(slider.value))) });
    this.fields.set(row.word, { row, text, slider, isLength });
    return h("div", { class: "napkin-field" }, h("label", { for: `input-${row.word}` }, row.name),
      text, slider);
  }

  /** The amount that a place of the slider stands for: of two or three digits. */
  at(row, place) {
    const share = place / STEPS;
    if (!row.is_logarithmic) {
      return Number((row.least + share * (row.most - row.least)).toPrecision(3));
    }
    const value = row.least * (row.most / row.least) ** share;
    if (LENGTH_WORDS.has(row.word)) return 2 ** Math.round(Math.log2(value));
    const digits = Number(value.toPrecision(2));
    return row.unit === "count" || row.unit === "chips" ? Math.max(row.least, Math.round(digits)) : digits;
  }

  placeOf(row, value) {
    const share = row.is_logarithmic
      ? Math.log(value / row.least) / Math.log(row.most / row.least)
      : (value - row.least) / (row.most - row.least);
    return Math.max(0, Math.min(STEPS, Math.round(STEPS * share))) || 0;
  }

  type(row, text, isLength) {
    const value = parseAmount(text.value, row.unit, isLength);
    const isAmount = value !== null && value >= 0;
    text.setAttribute("aria-invalid", String(!isAmount));
    text.title = isAmount ? "" : "expected an amount: 70B, 128K, 40%, 80GB, 1e12";
    if (isAmount) this.put(row, value);
  }

  put(row, value) {
    this.inputs[row.word] = value;
    // A number typed over that of a model or a chip is of none of them.
    for (const choice of this.data.choices) {
      const own = choice.options[this.chosen[choice.word]];
      if (choice.word === "model" && row.word in own && own[row.word] !== value) {
        this.chosen.model = Object.keys(choice.options)[0];
      }
    }
    if (row.word === "parameters" && this.chosen.model === Object.keys(this.options("model"))[0]) {
      this.inputs.active = value;
    }
    this.update();
  }

  options(word) { return this.data.choices.find((choice) => choice.word === word).options; }

  reset() {
    this.inputs = { ...this.begun.inputs };
    this.chosen = { ...this.begun.chosen };
    this.update();
  }

  update() {
    for (const { row, text, slider, isLength } of this.fields.values()) {
      const value = this.inputs[row.word];
      if (document.activeElement !== text || text.getAttribute("aria-invalid") !== "true") {
        text.value = writeAmount(value, row.unit, isLength);
        text.setAttribute("aria-invalid", "false");
      }
      if (value !== null) slider.value = String(this.placeOf(row, value));
    }
    for (const [word, node] of this.selects) node.value = this.chosen[word];
    const sheet = new Sheet(this.data.nodes, this.inputs, this.chosen);
    replaceChildren(this.cards, this.data.cards.map((card, place) => this.card(card, place, sheet)));
    this.commandNode.textContent = this.command();
    this.writeAddress();
  }

  card(card, place, sheet) {
    const [answer, ...rest] = card.figures;
    const shown = (number) => this.amount(sheet, number);
    const details = h("details", { open: this.open.has(place), ontoggle: () => {
      if (details.open) this.open.add(place); else this.open.delete(place);
    } }, h("summary", {}, "working"), this.working(card.figures, sheet));
    return h("section", { class: "card", id: `card-${place}` },
      h("h2", {}, card.title),
      h("p", { class: "figure" }, shown(answer),
        h("span", { class: "faint" }, ` ${this.data.nodes[answer].name}`)),
      rest.length ? h("dl", { class: "napkin-figures" }, rest.map((number) => h("div", {},
        h("dt", {}, this.data.nodes[number].name), h("dd", {}, shown(number))))) : null,
      h("p", { class: "faint" }, card.note), details);
  }

  amount(sheet, number) {
    const value = sheet.value(number);
    const node = this.data.nodes[number];
    if (Number.isNaN(value)) return `unknown${node.note ? `: ${node.note}` : ""}`;
    return Number.isFinite(value) ? formatProse(value, node.unit) : "undefined: a term is 0";
  }

  working(figures, sheet) {
    const numbers = [];
    for (const figure of figures) sheet.working(figure, numbers);
    return h("ol", { class: "napkin-working" }, numbers.map((number) => {
      const node = this.data.nodes[number];
      const inWords = (say) => node.formula.replace(/(?<![\w.])[A-Za-z_]\w*/g, (word) =>
        (word in node.terms ? say(node.terms[word], word) : word));
      return h("li", {},
        h("b", {}, node.name), " = ", inWords((term, word) => this.data.nodes[term].name || word),
        h("br", {}), h("span", { class: "faint" }, "= ", inWords((term) => this.amount(sheet, term))),
        h("br", {}), "= ", this.amount(sheet, number),
        node.source || node.note ? h("p", { class: "faint" },
          [node.note, node.source].filter(Boolean).join(". ")) : null);
    }));
  }

  command() {
    const bySize = Object.keys(this.options("model"))[0];
    const model = this.chosen.model === bySize
      ? writeAmount(this.inputs.parameters, "parameters")
      : this.chosen.model.toLowerCase().replaceAll(" ", "-");
    const words = ["tally plan", model, "--tokens", writeAmount(this.inputs.tokens, "tokens"),
      "--gpus", `${this.inputs.chips}x${this.chosen.chip}`, "--mfu", String(this.inputs.mfu)];
    if (this.chosen.model !== bySize) words.push("--sequence", String(this.inputs.sequence));
    words.push("--explain");
    return words.join(" ");
  }

  writeAddress() {
    const words = new URLSearchParams();
    for (const [word, name] of Object.entries(this.chosen)) {
      if (name !== this.begun.chosen[word]) words.set(word, name);
    }
    const set = Object.assign({}, ...this.data.choices.map((row) => row.options[this.chosen[row.word]]));
    for (const [word, value] of Object.entries(this.inputs)) {
      const start = word in set && this.chosen !== this.begun.chosen ? set[word] : this.begun.inputs[word];
      if (value !== start && value !== null) words.set(`n.${word}`, String(value));
    }
    try {
      history.replaceState(null, "", `#${words}`);
    } catch {
      // a page within another one may have no address of its own
    }
  }

  /** Numbers and choices of the address; what it does not name begins as it did. */
  readAddress() {
    const words = new URLSearchParams(location.hash.slice(1));
    this.inputs = { ...this.begun.inputs };
    this.chosen = { ...this.begun.chosen };
    for (const choice of this.data.choices) {
      const name = words.get(choice.word);
      if (name in choice.options) {
        this.chosen[choice.word] = name;
        Object.assign(this.inputs, choice.options[name]);
      }
    }
    for (const row of this.data.inputs) {
      const value = words.has(`n.${row.word}`) ? Number(words.get(`n.${row.word}`)) : NaN;
      if (Number.isFinite(value) && value >= 0) this.inputs[row.word] = value;
    }
  }

  nextTheme() {
    const root = document.documentElement;
    const after = { "": "light", light: "dark", dark: "" }[root.dataset.theme || ""];
    if (after) root.dataset.theme = after; else delete root.dataset.theme;
  }
}

window.tally = {
  open(data) { this.page = new NapkinPage(data); },
  Sheet, parseAmount, writeAmount, formatProse,
};
