// Amounts as people write them: 70B, 15T, 128K, 40%, 80GB, 989.4 TFLOP/s, $2.49/h.

const DECIMAL = { "": 1, K: 1e3, M: 1e6, B: 1e9, G: 1e9, T: 1e12, P: 1e15, E: 1e18, Z: 1e21, Y: 1e24 };
const LENGTHS = { ...DECIMAL, K: 1024, M: 1048576 };
const BINARY = { KI: 1024, MI: 1024 ** 2, GI: 1024 ** 3, TI: 1024 ** 4 };
const AMOUNT = /^\$?\s*([0-9][0-9,_]*\.?[0-9]*(?:e[+-]?[0-9]+)?|\.[0-9]+)\s*([a-z%$/]*)$/i;

/** The number, or null where the text is none. A length of a sequence is in 1,024s: 128K. */
function parseAmount(text, unit, isLength) {
  const match = AMOUNT.exec(text.trim());
  if (!match) return null;
  const number = Number(match[1].replace(/[,_]/g, ""));
  let suffix = match[2].toUpperCase().replace(/\/S$|\/H$/, "");
  if (suffix === "%") return number / 100;
  suffix = suffix.replace(/(FLOPS?|TOKENS?|B)$/, unit === "bytes" || /FLOP/.test(unit) ? "" : "$1");
  const factor = suffix in BINARY ? BINARY[suffix] : (isLength ? LENGTHS : DECIMAL)[suffix];
  return factor === undefined || !Number.isFinite(number) ? null : number * factor;
}

const WATT_HOURS = ["u", "m", "", "k", "M", "G", "T"].map((prefix, place) =>
  [1000 ** (place - 2), `${prefix}Wh`]);
MEASURED.add(WATT_HOURS);

/** In the digits of a sentence, as `tally plan` writes it (units.py: format_number). */
function formatProse(number, unit) {
  const short = () => String(Number(number.toPrecision(6)));
  switch (unit) {
    case "FLOPs":
      return number >= 1e18 ? `${Number(number.toPrecision(3)).toExponential().replace("+", "")} FLOPs`
        : formatNumber(number, unit);
    case "seconds": return inUnits(number, RUNGS.seconds);
    case "hours": return `${inUnits(number, RUNGS.count)} h`;
    case "joules": return inUnits(number / 3600, WATT_HOURS);
    case "watts": return `${number.toFixed(0)} W`;
    case "chips": return number.toLocaleString("en-US");
    case "FLOPs/token": case "bytes/token":
      return `${formatNumber(number, unit.slice(0, -"/token".length))}/token`;
    case "bytes/parameter": case "bytes each": return `${short()} B`;
    case "USD": return number < 999.995 ? `$${number.toFixed(2)}` : `$${inUnits(number, RUNGS.count)}`;
    case "USD/h": return `${formatProse(number, "USD")}/h`;
    case "number": return short();
    default: return formatNumber(number, unit);
  }
}

/** As short as is exact enough to type again. */
function writeAmount(value, unit, isLength) {
  if (value === null || Number.isNaN(value)) return "";
  if (unit === "fraction") return `${Number((100 * value).toPrecision(4))}%`;
  if (unit === "chips") return String(value);
  if (unit === "bytes") return formatNumber(value, unit);
  if (isLength) {
    return value >= 1024 && value % 1024 === 0 && value < 1048576 ? `${value / 1024}K` : String(value);
  }
  const steps = /FLOP/.test(unit) ? ["P", "T", "G"] : ["T", "B", "M", "K"];
  for (const step of steps) {
    if (value >= DECIMAL[step] && value < 1e4 * DECIMAL[step]) {
      return `${Number((value / DECIMAL[step]).toPrecision(6))}${step}`;
    }
  }
  return value >= 1e7 ? value.toExponential().replace("+", "") : String(Number(value.toPrecision(6)));
}
