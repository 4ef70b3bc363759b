// Closed forms as the planner exports them: a table of nodes, each a number, an input, a formula
// over other nodes, or one of several by a choice.

/** To the nearest whole number, halves to the even one, as Python rounds. */
function rounded(number) {
  const below = Math.floor(number);
  const rest = number - below;
  if (rest !== 0.5) return rest < 0.5 ? below : below + 1;
  return below % 2 === 0 ? below : below + 1;
}

const OPERATIONS = {
  "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, "/": (a, b) => a / b,
  "//": (a, b) => Math.floor(a / b), "%": (a, b) => a - b * Math.floor(a / b),
  "**": (a, b) => a ** b, neg: (a) => -a,
  ">": (a, b) => a > b, ">=": (a, b) => a >= b, "<": (a, b) => a < b, "<=": (a, b) => a <= b,
  if: (test, then, otherwise) => (test ? then : otherwise),
  ceil: Math.ceil, exp: Math.exp, floor: Math.floor, log2: Math.log2, max: Math.max, min: Math.min,
};

function computed(tree, termOf) {
  if (typeof tree === "number") return tree;
  if (typeof tree === "string") return termOf(tree);
  const [operation, ...operands] = tree;
  return OPERATIONS[operation](...operands.map((operand) => computed(operand, termOf)));
}

/** The values of all nodes for some inputs. NaN: unknown. */
class Sheet {
  constructor(nodes, inputs, chosen) {
    Object.assign(this, { nodes, inputs, chosen, values: new Map() });
  }

  /** The node that stands for this one under the choices made; null where there is none. */
  resolved(number) {
    const node = this.nodes[number];
    if (node.choice === undefined) return number;
    const option = this.chosen[node.choice];
    return option in node.by_option ? node.by_option[option] : node.otherwise;
  }

  value(number) {
    if (!this.values.has(number)) this.values.set(number, this.evaluate(number));
    return this.values.get(number);
  }

  evaluate(number) {
    const node = this.nodes[number];
    if (node.choice !== undefined) {
      const own = this.resolved(number);
      return own === null ? NaN : this.value(own);
    }
    if (node.input !== undefined) return this.inputs[node.input] ?? NaN;
    if (node.value !== undefined) return node.value;
    const value = computed(node.tree, (word) => this.value(node.terms[word]));
    return node.is_whole && Number.isFinite(value) ? rounded(value) : value;
  }

  /** Every formula behind a node, terms first, each once. */
  working(number, found = []) {
    const own = this.resolved(number);
    if (own === null || found.includes(own)) return found;
    const node = this.nodes[own];
    for (const term of Object.values(node.terms || {})) this.working(term, found);
    if (node.formula && !found.includes(own)) found.push(own);
    return found;
  }
}
