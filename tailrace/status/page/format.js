// Numbers as texts.

const grouped = new Intl.NumberFormat("en");
const decimals = [0, 1, 2].map((digits) => new Intl.NumberFormat("en", {
  minimumFractionDigits: digits,
  maximumFractionDigits: digits,
}));

const count = (value) => grouped.format(value);

// The row with the id of a request, if it has one (--request-id).
const idFact = ({ request_id: id }) => (id ? [["request_id", "id", id]] : []);

// Three significant digits, or all of a larger number.
function three(value) {
  const digits = value >= 99.95 || value === 0 ? 0 : value >= 9.995 ? 1 : 2;
  return decimals[digits].format(value);
}

const rate = (value) => `${value >= 9.995 || value === 0 ? decimals[0].format(value) : decimals[1].format(value)}/s`;

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit ? three(value) : value} ${units[unit]}`;
}

// A time that was measured, in seconds.
function time(seconds) {
  if (seconds === 0) return "0";
  if (seconds < 0.0009995) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 0.9995) return `${three(seconds * 1000)} ms`;
  return lasting(seconds);
}

// The text of a percentile: the first bucket of the histograms ends at 2^-17 s.
const atMost = (seconds) => (seconds <= 2 ** -17 ? "< 8 µs" : time(seconds));

// For how long something has lasted, in seconds.
function lasting(seconds) {
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${decimals[seconds < 9.995 ? 2 : 1].format(seconds)} s`;
  const whole = Math.round(seconds);
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  const two = (number) => String(number).padStart(2, "0");
  if (whole < 3600) return `${minutes} min ${two(whole % 60)} s`;
  if (whole < 86400) return `${hours} h ${two(minutes)} min`;
  return `${count(days)} d ${two(hours)} h`;
}

// A duration in whole seconds.
const roughly = (seconds) => (seconds < 59.5 ? `${Math.round(seconds)} s` : lasting(seconds));

const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const dated = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });

const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
