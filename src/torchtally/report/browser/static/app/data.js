// The data of the page, and the sums that every view is made of.

/** Numbers from the differences between them. */
function accumulated(steps) {
  const numbers = new Float64Array(steps.length);
  let sum = 0;
  for (let place = 0; place < steps.length; place += 1) {
    sum += steps[place];
    numbers[place] = sum;
  }
  return numbers;
}

const FORWARD_PHASES = new Set(["forward", "prefill", "decode"]);
const BOUNDS = ["compute", "memory", "network", "transfer", "sleep", "overhead"];

class Run {
  constructor(data) {
    this.data = data;
    this.isTimed = data.total.seconds !== null;
    const { rows, costs, jobs, sites, lines, modules, ops, memory } = data;
    this.jobs = jobs;
    this.rows = rows;
    this.sites = sites;
    this.lines = lines;
    this.modules = modules;
    this.costRows = accumulated(costs.row_steps);
    this.ticks = accumulated(ops.tick_steps);
    this.opRows = accumulated(ops.row_steps);
    this.peakTick = memory.peak_tick;
    this.storages = this.unpackStorages(memory);
    this.leaves = this.makeLeaves();
  }

  /** Those of legends: without the script's own sleep, unless it has any. */
  shownBounds() {
    return BOUNDS.filter((bound) => bound !== "sleep"
      || this.leaves.some((leaf) => leaf.bound === bound));
  }

  unpackStorages(memory) {
    const { born_steps: bornSteps, life, bytes, category, output } = memory.storages;
    const born = accumulated(bornSteps);
    const died = new Float64Array(born.length);
    this.endTick = this.ticks.length ? this.ticks[this.ticks.length - 1] + 1 : 1;
    for (let place = 0; place < born.length; place += 1) {
      this.endTick = Math.max(this.endTick, born[place] + 1);
      died[place] = life[place] < 0 ? Infinity : born[place] + life[place];
    }
    return {
      count: born.length, born, died, bytes: Float64Array.from(bytes),
      category: Uint8Array.from(category), output,
    };
  }

  /** The costs of the period, one row for each provenance and bound: all sums start here. */
  makeLeaves() {
    const { costs } = this.data;
    const { jobs, rows } = this;
    const phases = this.data.phases;
    const column = (name) => (costs[name].length ? costs[name] : null);
    const [seconds, kernels] = [column("seconds"), column("kernel_s")];
    const [network, exposed] = [column("network_s"), column("exposed_s")];
    return Array.from(this.costRows, (row, place) => {
      const job = rows.job[row];
      const count = costs.count[place];
      const flops = count * jobs.flops[job];
      const phase = phases[rows.phase[row]];
      const isForward = FORWARD_PHASES.has(phase);
      return {
        row, job, count, flops, phase, bound: costs.bound[place],
        site: rows.site[row],
        stream: rows.stream[row],
        forward: isForward ? flops : 0,
        backward: phase === "backward" || phase === "recompute" ? flops : 0,
        read: count * jobs.bytes_read[job],
        written: count * jobs.bytes_written[job],
        moved: count * (jobs.bytes_read[job] + jobs.bytes_written[job]),
        networkBytes: count * jobs.network_bytes[job],
        saved: costs.bytes_saved[place],
        allocated: costs.bytes_allocated[place],
        seconds: seconds ? seconds[place] : 0,
        kernel_s: kernels ? kernels[place] : 0,
        network_s: network ? network[place] : 0,
        exposed_s: exposed ? exposed[place] : 0,
        views: isForward && jobs.is_view[job] ? count : 0,
        copies: isForward && jobs.is_copy[job] ? count : 0,
      };
    });
  }

  /** Memory over the run, by category. */
  get timeline() {
    if (!this.knownTimeline) this.knownTimeline = new Timeline(this);
    return this.knownTimeline;
  }

  lineOf(row, isInnermost) {
    const site = this.rows.site[row];
    return isInnermost ? this.sites.library_line[site] : this.sites.line[site];
  }

  /** "model.py:41", or "(no line)". */
  place(line) {
    if (line < 0) return "(no line)";
    return `${this.data.files[this.lines.file[line]].name}:${this.lines.line[line]}`;
  }

  shortPlace(line) {
    return line < 0 ? "(no line)" : this.place(line).split("/").pop();
  }

  lineText(line) { return line < 0 ? "" : this.lines.text[line]; }

  moduleName(module) {
    const name = this.modules.name[module];
    if (name) return name;
    return this.modules.class[module] ? "(the model)" : "(outside any module)";
  }

  /** A tensor as people write it: "bfloat16[32, 768]", with its stride where it has gaps. */
  tensor(number, hasStride = true) {
    const [dtype, shape, stride, isOnDevice] = this.jobs.specs[number];
    const gaps = hasStride && stride.length ? ` stride (${stride.join(", ")})` : "";
    return `${dtype}[${shape.join(", ")}]${gaps}${isOnDevice ? "" : " on the host"}`;
  }

  tensors(numbers, hasStride = true) {
    return numbers.map((number) => this.tensor(number, hasStride)).join("  ");
  }

  /** The place in `ops` of the operator at a tick, or of the last one before it. */
  opAt(tick) { return Math.max(0, upperBound(this.ticks, tick) - 1); }

  /** Where a moment is: "step 2, backward of model.py:41". */
  moment(tick) {
    if (!this.ticks.length) return "";
    const row = this.opRows[this.opAt(tick)];
    const ends = this.data.memory.step_ends;
    const step = ends.filter((end) => end <= tick).length + 1;
    const line = this.lineOf(row, false);
    const phase = this.data.phases[this.rows.phase[row]];
    return `step ${step}, ${phase}${line < 0 ? "" : ` of ${this.shortPlace(line)}`}`;
  }

  /** The provenance of a storage: of the operator that allocated it; -1 where none did. */
  storageRow(storage) {
    const { born } = this.storages;
    const op = upperBound(this.ticks, born[storage]) - 1;
    return op >= 0 && this.ticks[op] === born[storage] ? this.opRows[op] : -1;
  }

  storageName(storage) { return this.data.memory.names[storage] || ""; }

  /** The module that a storage belongs to: a parameter's owner, else where it was allocated. */
  storageModule(storage) {
    if (!this.owned) this.owned = new Set(this.data.memory.owned);
    if (this.owned.has(storage)) {
      return this.storageName(storage).split(".").slice(0, -1).join(".") || "(the model)";
    }
    const row = this.storageRow(storage);
    if (row < 0) return "(outside any module)";
    return this.moduleName(this.sites.module[this.rows.site[row]]);
  }

  storageTensor(storage) {
    const row = this.storageRow(storage);
    const output = this.storages.output[storage];
    if (row < 0 || output < 0) return "";
    const spec = this.jobs.outputs[this.rows.job[row]][output];
    return spec === undefined ? "" : this.tensor(spec, false);
  }

  /** Numbers of the storages that are alive at a tick. */
  aliveAt(tick) {
    const { count, born, died } = this.storages;
    const alive = [];
    for (let place = 0; place < count; place += 1) {
      if (born[place] <= tick && tick < died[place]) alive.push(place);
    }
    return alive;
  }
}

/** The first place behind all numbers that are no larger. */
function upperBound(sorted, number) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= number) low = middle + 1; else high = middle;
  }
  return low;
}

const QUANTITIES = ["count", "flops", "forward", "backward", "read", "written", "moved", "saved",
  "networkBytes", "allocated", "seconds", "kernel_s", "network_s", "exposed_s", "views", "copies"];

function emptyTotal() {
  const total = { bounds: {}, leaves: [] };
  for (const name of QUANTITIES) total[name] = 0;
  return total;
}

function addTo(total, leaf) {
  for (const name of QUANTITIES) total[name] += leaf[name];
  total.bounds[leaf.bound] = (total.bounds[leaf.bound] || 0) + leaf.seconds;
  total.leaves.push(leaf);
}

/** Sums of the groups that `key` makes of the leaves. They add up to the period's total. */
function groupedBy(leaves, key) {
  const groups = new Map();
  for (const leaf of leaves) {
    const name = key(leaf);
    let total = groups.get(name);
    if (!total) groups.set(name, total = emptyTotal());
    addTo(total, leaf);
  }
  return groups;
}

/** What takes most of a group's time; "" without times. */
function boundOf(total) {
  let [most, name] = [0, ""];
  for (const [bound, seconds] of Object.entries(total.bounds)) {
    if (seconds > most) [most, name] = [seconds, bound];
  }
  return name;
}
