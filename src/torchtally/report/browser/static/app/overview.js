// The first page: does it fit, how long does a step take, and what takes the time and the memory.

const CLAIMS = {
  fits: ["good", (chip) => `Fits ${chip}`],
  close: ["warning", (chip) => `Fits ${chip}, but within the margin of error`],
  "does not fit": ["bad", (chip) => `Does not fit ${chip}`],
  unknown: ["", (chip) => `Memory of ${chip} unknown`],
};

function gauge(run) {
  const { verdict, memory } = run.data;
  const whole = Math.max(verdict.capacity_bytes || 0, verdict.high_bytes) || 1;
  const at = bytesAt(run, run.peakTick);
  const parts = memory.categories.map((name, number) =>
    [at[number], `category-${number}`, `${name}: ${formatBytes(at[number])} at the peak`]);
  const rest = verdict.reserved_bytes - verdict.allocated_bytes;
  const besides = verdict.context_bytes + verdict.communicator_bytes;
  parts.push([Math.max(0, rest), "reserved", `reserved by the allocator: ${formatBytes(rest)} more`]);
  parts.push([besides, "context", `CUDA context and NCCL, estimated: ${formatBytes(besides)}`]);
  const percent = (size) => `${(100 * size) / whole}%`;
  const capacity = verdict.capacity_bytes;
  return h("div", { class: "gauge", role: "img", "aria-label": verdict.sentence },
    stackedBar(parts, whole),
    h("span", {
      class: "whisker", title: `between ${formatBytes(verdict.low_bytes)} and ${
        formatBytes(verdict.high_bytes)}`,
      style: {
        left: percent(verdict.low_bytes), width: percent(verdict.high_bytes - verdict.low_bytes),
      },
    }),
    capacity && capacity < whole ? h("span", {
      class: "limit", title: `the chip has ${formatBytes(capacity)}`,
      style: { left: percent(capacity) },
    }) : null);
}

/** Bytes by category at a tick. */
function bytesAt(run, tick) {
  const sums = run.data.memory.categories.map(() => 0);
  for (const storage of run.aliveAt(tick)) {
    sums[run.storages.category[storage]] += run.storages.bytes[storage];
  }
  return sums;
}

function memoryCard(run, picture) {
  const { verdict, chip } = run.data;
  const [tone, sentence] = CLAIMS[verdict.claim] || CLAIMS.unknown;
  const capacity = verdict.capacity_bytes;
  const at = bytesAt(run, run.peakTick);
  return h("section", { class: "card wide-card" },
    h("h2", {}, "Memory"),
    verdict.caveats.map((caveat) => h("p", { class: "bad caveat" }, caveat)),
    h("p", { class: `figure ${tone}`, id: "verdict" }, sentence(chip)),
    gauge(run),
    h("p", {}, verdict.is_open ? "At least " : "Peak ",
      h("b", {}, formatBytes(verdict.is_open ? verdict.likely_bytes : verdict.reserved_bytes)),
      capacity ? ` of ${formatBytes(capacity)}` : "", verdict.is_open
        ? " needed, with the request at which the run ended; what comes after it is not known."
        : ` reserved; with the CUDA context between ${formatBytes(verdict.low_bytes)} and ${
          formatBytes(verdict.high_bytes)}.`),
    verdict.shortage ? h("p", { class: "bad" }, verdict.shortage) : null,
    verdict.causes.map((cause) => h("p", { class: "warning cause" }, cause)),
    h("p", { class: "faint" }, `${formatBytes(verdict.allocated_bytes)} allocated at the peak, in ${
      verdict.peak_moment || "no step"}; ${formatBytes(verdict.reserved_bytes)} reserved by the `
      + `allocator; ${formatBytes(verdict.context_bytes + verdict.communicator_bytes)} besides, `
      + "for the CUDA context and NCCL (estimated). The lower end is what is allocated and the "
      + "context, the upper one has 5 % more reserved: the limit that the allocator's model is "
      + "held to."),
    h("ul", { class: "key" }, run.data.memory.categories.map((name, number) => at[number]
      ? h("li", {}, h("span", { class: `swatch category-${number}` }), `${name} `,
        h("b", {}, formatBytes(at[number]))) : null)),
    picture);
}

/** Memory over the run as a small picture: the fullest moment of each pixel, by category. */
function drawPicture(canvas, run, timeline) {
  const pixel = devicePixelRatio || 1;
  const [width, height] = [Math.max(1, canvas.clientWidth) * pixel, canvas.clientHeight * pixel];
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  const first = timeline.ticks[0] || 0;
  const xOf = (tick) => ((tick - first) / (run.endTick - first || 1)) * width;
  const most = run.data.memory.peak_bytes || 1;
  const places = timeline.placesBetween(first, run.endTick, Math.max(1, Math.floor(width / 2)));
  places.forEach((place, at) => {
    const left = Math.floor(xOf(timeline.ticks[place]));
    const right = at + 1 < places.length ? xOf(timeline.ticks[places[at + 1]]) : width;
    let bottom = height;
    for (const number of timeline.categories) {
      const tall = (timeline.parts[number][place] / most) * height;
      context.fillStyle = timeline.colours[number];
      context.fillRect(left, bottom - tall, Math.ceil(right) - left, tall);
      bottom -= tall;
    }
  });
}

/** The step's time by phase. */
function phasesBar(run, whole) {
  const phases = [...groupedBy(run.leaves, (leaf) => leaf.phase)].filter(([, total]) =>
    total.seconds > 0);
  const swatch = (phase) => h("span", { class: "swatch",
    style: { background: `var(${PHASE_COLOURS[phase]})` } });
  const bar = stackedBar(phases.map(([phase, total]) => [total.seconds, `phase-${phase}`,
    `${phase}: ${formatSeconds(total.seconds)}`]), whole, { class: "bar tall" });
  return [bar, h("ul", { class: "key" }, phases.map(([phase, total]) => h("li", {}, swatch(phase),
    `${phase} `, h("b", {}, formatSeconds(total.seconds)))))];
}

function timeCard(run) {
  const { verdict, period } = run.data;
  const time = verdict.time;
  if (!time) {
    return h("section", { class: "card" }, h("h2", {}, "Time"),
      h("p", { class: "figure" }, "unknown"),
      h("p", { class: "faint" }, "The chip's speed is not known, so nothing is predicted."));
  }
  const bounds = [...groupedBy(run.leaves, (leaf) => leaf.bound)].sort((one, other) =>
    other[1].seconds - one[1].seconds);
  return h("section", { class: "card" },
    h("h2", {}, "Time"),
    h("p", { class: "figure", id: "step-time" }, formatSeconds(time.step_s)),
    h("p", {}, time.basis === "measured" ? `per ${period}, measured by a profiler.`
      : `per ${period}, typically between ${formatSeconds(time.low_s)} and ${
        formatSeconds(time.high_s)}.`),
    stackedBar(bounds.map(([bound, total]) => [total.seconds, `bound-${bound}`,
      `${bound}: ${formatSeconds(total.seconds)}`]), time.step_s, { class: "bar tall" }),
    h("ul", { class: "key" }, bounds.filter(([, total]) => total.seconds > 0).map(
      ([bound, total]) => h("li", {}, h("span", { class: `swatch bound-${bound}` }), `${bound} `,
        h("b", {}, formatShare(total.seconds / time.step_s))))),
    verdict.generation ? h("p", { id: "generation" }, verdict.generation) : null,
    phasesBar(run, time.step_s),
    h("p", { class: "faint" }, time.basis === "measured"
      ? "Kernels as they ran; a profiler that records stacks slows the host."
      : time.basis === "calibrated"
      ? `Predicted by a calibration. Such steps were ${formatShare(time.error)} off in the median.`
      : `Predicted ${time.basis === "fitted" ? "by published rates of the chip"
        : "from its data sheet"}. Published training steps were ${
        formatShare(time.error)} off in the median; half of them further.`));
}

function workCard(run) {
  const { verdict, total } = run.data;
  const items = [
    [formatFlops(total.flops), "work"],
    [formatBytes(total.bytes_moved), "moved from and to memory"],
    verdict.time && verdict.time.basis === "measured" ? null
      : [formatBytes(total.bytes_saved), "saved for the backward pass"],
    verdict.mfu ? [formatShare(verdict.mfu[1]), verdict.mfu[0]] : null,
    verdict.parameters
      ? [formatCount(verdict.parameters), verdict.is_rank_share ? "parameters on this rank" : "parameters"]
      : null,
    [formatCount(total.count), "operators"],
  ];
  return h("section", { class: "card" }, h("h2", {}, "Work"),
    h("dl", { class: "figures" }, items.filter(Boolean).map(([figure, name]) =>
      h("div", {}, h("dt", {}, name), h("dd", {}, figure)))));
}

function trustCard(run, go) {
  const { coverage, placeholders } = run.data;
  const uncounted = coverage.uncounted.reduce((sum, [, count]) => sum + count, 0);
  const untimed = coverage.untimed.reduce((sum, [, count]) => sum + count, 0);
  const branches = placeholders.filter(([, , , , use]) => use === "branch").length;
  const line = (count, text, tone) => h("li", { class: count ? tone : "good" },
    h("b", {}, String(count)), ` ${text}`);
  return h("section", { class: "card" }, h("h2", {}, "Trust"),
    h("ul", { class: "plain" },
      line(uncounted, "operators without a rule, missing from all totals", "bad"),
      line(untimed, "operators whose time is unknown", "bad"),
      line(branches, "conditions that read a placeholder", "warning"),
      line(placeholders.length - branches, "other reads of unknown values", "")),
    h("button", { type: "button", onclick: () => go("notes") }, "What is assumed; terms"));
}

function topLines(run, go) {
  const isInnermost = run.data.is_behind_libraries;
  const groups = groupedBy(run.leaves, (leaf) => run.lineOf(leaf.row, isInnermost));
  const rows = [...groups].map(([line, total]) => ({ line, total }));
  const total = emptyTotal();
  run.leaves.forEach((leaf) => addTo(total, leaf));
  const key = run.isTimed ? "seconds" : "flops";
  rows.sort((one, other) => other.total[key] - one.total[key]);
  const table = new DataTable({
    label: "Hottest lines", rows: rows.slice(0, 10),
    columns: [
      { title: "line", unit: "place", value: (row) => run.shortPlace(row.line),
        render: (row) => h("button", { type: "button", class: "link",
          onclick: () => go("source", { line: row.line }) }, run.shortPlace(row.line)) },
      ...totalColumns(run, total, ["seconds", "forward", "backward", "saved"]).map((column) =>
        ({ ...column, total: undefined })),
      ...(run.isTimed ? [boundColumn] : []),
      { title: "source", unit: "text", value: (row) => run.lineText(row.line) },
    ],
  });
  return [h("section", { class: "card full" }, h("h2", {}, "Hottest lines"), table.node), table];
}

function overview(run, go) {
  const [lines, linesTable] = topLines(run, go);
  const phases = finishedTable(run.data.tables.phase);
  const { timeline } = run;
  const picture = h("canvas", { class: "picture", title: "memory over the run: click to open it",
    onclick: () => go("memory") });
  const node = h("div", { class: "cards" },
    memoryCard(run, picture), timeCard(run),
    h("div", { class: "column" }, workCard(run), trustCard(run, go)), lines,
    h("section", { class: "card full" }, h("h2", {}, "Phases"), phases.node));
  return {
    node,
    redraw() {
      if (!picture.isConnected) return;
      timeline.colours = run.data.memory.categories.map((_, number) => colourOf(`--cat-${number}`));
      drawPicture(picture, run, timeline);
    },
    filter(text) { linesTable.filter(text); phases.filter(text); },
  };
}
