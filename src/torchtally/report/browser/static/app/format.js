// Numbers as torchtally's other reports write them (units.py): the same prefixes and digits.

const SI = ["", "K", "M", "G", "T", "P", "E", "Z", "Y"];
const BYTE_RUNGS = SI.map((prefix, power) => [1024 ** power, prefix ? `${prefix}iB` : "B"]);
const rungsOf = (unit) => SI.map((prefix, power) => [1000 ** power, `${prefix}${unit}`]);
const RUNGS = {
  bytes: BYTE_RUNGS,
  FLOPs: rungsOf("FLOPs"),
  "FLOP/s": rungsOf("FLOP/s"),
  "bytes/s": rungsOf("B/s"),
  count: [[1, ""], [1e3, "K"], [1e6, "M"], [1e9, "B"], [1e12, "T"]],
  seconds: [[1e-9, "ns"], [1e-6, "us"], [1e-3, "ms"], [1, "s"], [60, "min"], [3600, "h"],
    [86400, "days"], [365.25 * 86400, "years"]],
};

/** Ladders of what is never counted in whole ones. */
const MEASURED = new Set([RUNGS.seconds]);

/** Two decimals, or as many as fit. */
function digitsOf(value, width) {
  for (const decimals of [2, 1]) {
    const text = value.toFixed(decimals);
    if (text.length <= width) return text;
  }
  return value.toFixed(0);
}

/** In the largest unit that the number fills once rounded, its digits in `width` characters. */
function inUnits(number, rungs, width = 6) {
  const plain = rungs.find(([size]) => size === 1)[1];
  if (number === 0 || !Number.isFinite(number)) return `${number} ${plain}`.trim();
  const [sign, amount] = number < 0 ? ["-", -number] : ["", number];
  let [size, unit] = rungs[0];
  for (const [nextSize, nextUnit] of rungs.slice(1)) {
    if (Number(digitsOf(amount / size, width)) < nextSize / size) break;
    [size, unit] = [nextSize, nextUnit];
  }
  const isExact = Number.isInteger(amount) && size === 1 && !MEASURED.has(rungs);
  const text = isExact ? String(amount) : digitsOf(amount / size, width);
  return `${sign}${text} ${unit}`.trim();
}

function formatNumber(number, unit) {
  if (number === null || number === undefined) return "-";
  switch (unit) {
    case "bytes": return inUnits(number, RUNGS.bytes);
    case "FLOPs": return inUnits(number, RUNGS.FLOPs);
    case "FLOP/s": case "op/s": return inUnits(number, RUNGS["FLOP/s"]);
    case "bytes/s": return inUnits(number, RUNGS["bytes/s"]);
    case "seconds": return inUnits(number, RUNGS.seconds, 5);
    case "fraction": return `${(100 * number).toFixed(Math.abs(number) < 9.9995 ? 1 : 0)} %`;
    case "count": case "parameters": case "tokens":
      return Math.abs(number) < 100000 ? String(number) : inUnits(number, RUNGS.count);
    case "tokens/s": return `${inUnits(Math.round(number), RUNGS.count)}/s`;
    default: return typeof number === "number" ? String(Number(number.toPrecision(6))) : number;
  }
}

const formatBytes = (n) => formatNumber(n, "bytes");
const formatFlops = (n) => formatNumber(n, "FLOPs");
const formatSeconds = (s) => formatNumber(s, "seconds");
const formatShare = (f) => formatNumber(f, "fraction");
const formatCount = (n) => formatNumber(n, "count");
const TEXT_UNITS = new Set(["name", "word", "place", "line", "text", "bar"]);
