// Moving charts of the samples of the last two minutes.

const WINDOW = 120_000;
// Samples are a second apart. A longer pause is a gap: nobody has sampled.
const GAP = 3_000;
const MARGIN = { left: 50, right: 8, top: 8, bottom: 18 };

// The samples, the oldest first; `at`: milliseconds since 1970 by the server's clock.
class Samples {
  constructor() {
    this.list = [];
  }

  // Puts the history of a server before what comes; what was seen of the server before it stays.
  begin(history) {
    const first = history.length ? Date.parse(history[0].time) : Infinity;
    this.list = this.list.filter((sample) => sample.at < first - 500);
    history.forEach((sample) => this.add(sample));
  }

  add(sample) {
    const at = Date.parse(sample.time);
    // Viewers that arrive cause samples between the seconds. A clock may go back.
    while (this.list.length && this.list.at(-1).at > at - 500) this.list.pop();
    this.list.push({ ...sample, at });
    while (this.list[0].at < at - WINDOW - GAP) this.list.shift();
  }

  get last() {
    return this.list.at(-1);
  }
}

// What a counter has grown per second; null where that is not known.
function perSecond(counter) {
  return (sample, before) => {
    if (!before || before.master !== sample.master || sample.at - before.at > GAP) return null;
    const grown = counter(sample) - counter(before);
    // A worker that was killed may take its last counts with it.
    return (Math.max(0, grown) * 1000) / (sample.at - before.at);
  };
}

// The smallest round number that is at least `value`; `steps` of one power of the base.
function roundUp(value, base, steps) {
  let power = 1;
  while (power * base <= value) power *= base;
  return steps.map((step) => step * power).find((step) => step >= value) ?? power * base;
}

const wholes = (least) => (value) => roundUp(Math.max(value, least), 10, [1, 2, 4, 6, 8]);
const binary = (value) => roundUp(Math.max(value, 1 << 20), 1024, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);

// An axis: where a value is, as a part of its length, and the values of its lines.
function linear(top) {
  return { part: (value) => value / top, lines: [0, top / 2, top] };
}

// From a power of ten to another one, at least two powers; values below are at its begin.
function logarithmic(values) {
  const positive = values.filter((value) => value > 0);
  const first = Math.floor(Math.log10(Math.min(0.001, ...positive)) + 1e-9);
  const last = Math.max(first + 2, Math.ceil(Math.log10(Math.max(0.01, ...positive)) - 1e-9));
  const step = Math.ceil((last - first) / 4);
  const lines = [];
  for (let power = first; power <= last; power += step) lines.push(10 ** power);
  return { part: (value) => Math.max(0, Math.log10(Math.max(value, 10 ** first)) - first) / (last - first), lines };
}

// One chart: a name, the latest values, and the curves. kind: { id, explain, title, series, show, scale, top, stacked,
// isLogarithmic }. Of a series: { id, explain, name, color, of(sample, before, place), show }.
class Chart {
  constructor(kind, samples) {
    this.kind = kind;
    this.samples = samples;
    this.values = kind.series.map((series, number) => {
      const value = element("dd", { "data-explain": series.explain });
      const name = element("dt", {}, element("i", { className: `mark s${this.color(number)}` }), term(series.explain, series.name));
      return { value, node: element("div", { className: number ? "" : "first" }, name, value) };
    });
    this.svg = svg("svg", { class: "plot", tabindex: 0, role: "img" });
    this.tip = element("div", { className: "tip", role: "status", hidden: true });
    this.node = element(
      "figure",
      { className: `card chart ${kind.stacked ? "many stacked" : ""}`, id: `chart-${kind.id}` },
      element("figcaption", {}, element("h3", {}, term(kind.explain, kind.title)), element("dl", {}, ...this.values.map((each) => each.node))),
      element("div", { className: "area" }, this.svg, this.tip),
    );
    this.picked = null;
    this.svg.addEventListener("pointermove", (event) => this.pick(this.nearest(event.offsetX)));
    this.svg.addEventListener("pointerleave", () => this.pick(null));
    this.svg.addEventListener("focus", () => this.svg.matches(":focus-visible") && this.pick(this.samples.last ?? null));
    this.svg.addEventListener("blur", () => this.pick(null));
    this.svg.addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  color(number) {
    return this.kind.series[number].color ?? number + 1;
  }

  // The values of each series, one for each sample.
  read() {
    const { list } = this.samples;
    return this.kind.series.map((series) => list.map((sample, place) => series.of(sample, list[place - 1], place)));
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.svg;
    const { list, last } = this.samples;
    const { kind } = this;
    const curves = this.read();
    kind.series.forEach((series, number) => {
      const value = curves[number].at(-1) ?? null;
      say(this.values[number].value, value === null ? "–" : (series.show ?? kind.show)(value));
    });
    if (!width || !last) return;
    const sums = kind.stacked ? list.map((_, place) => curves.reduce((sum, curve) => sum + (curve[place] ?? 0), 0)) : curves.flat();
    const most = Math.max(0, ...sums.filter((value) => value !== null));
    const axis = kind.isLogarithmic ? logarithmic(sums.filter((value) => value !== null)) : linear(kind.top(most));
    const bottom = height - MARGIN.bottom;
    const x = (at) => MARGIN.left + (1 - (last.at - at) / WINDOW) * (width - MARGIN.left - MARGIN.right);
    const y = (value) => bottom - axis.part(value) * (bottom - MARGIN.top);
    const parts = [];
    axis.lines.forEach((value, place) => {
      const at = y(value);
      parts.push(svg("path", { class: place ? "line" : "line base", d: `M${MARGIN.left} ${at}H${width - MARGIN.right}` }));
      parts.push(svg("text", { class: "scale", x: MARGIN.left - 6, y: at + 3.5, "text-anchor": "end" }, (kind.scale ?? kind.show)(value)));
    });
    for (const [ago, text, anchor] of [[120, "2 min ago", "start"], [60, "1 min", "middle"], [0, "now", "end"]]) {
      parts.push(svg("text", { class: "scale", x: x(last.at - ago * 1000), y: height - 4, "text-anchor": anchor }, text));
    }
    const below = list.map(() => 0);
    const drawn = [];
    curves.forEach((curve, number) => {
      // What never occurs would hide the curve below it.
      if (kind.stacked && !curve.some((value) => value)) return;
      const layer = [];
      drawn.unshift(layer);
      const lower = [...below];
      if (kind.stacked) curve.forEach((value, place) => (below[place] += value ?? 0));
      const upper = kind.stacked ? curve.map((value, place) => (value === null ? null : below[place])) : curve;
      for (const run of runs(upper, list)) {
        const line = run.map((place) => `${x(list[place].at).toFixed(1)} ${y(upper[place]).toFixed(1)}`);
        const base = run.map((place) => `${x(list[place].at).toFixed(1)} ${y(lower[place]).toFixed(1)}`).reverse();
        if (kind.stacked || (!number && !kind.isLogarithmic)) layer.push(svg("path", { class: `fill s${this.color(number)}`, d: `M${line.join("L")}L${base.join("L")}Z` }));
        if (!kind.stacked) layer.push(svg("path", { class: `curve s${this.color(number)}`, d: `M${line.join("L")}${run.length > 1 ? "" : "h.1"}` }));
      }
    });
    parts.push(...(kind.stacked ? drawn : drawn.reverse()).flat());
    if (this.picked && !list.includes(this.picked)) this.picked = null;
    if (this.picked) {
      const place = list.indexOf(this.picked);
      const at = x(this.picked.at);
      parts.push(svg("path", { class: "cross", d: `M${at} ${MARGIN.top}V${bottom}` }));
      let sum = 0;
      curves.forEach((curve, number) => {
        if (curve[place] === null) return;
        sum = kind.stacked ? sum + curve[place] : curve[place];
        parts.push(svg("circle", { class: `dot s${this.color(number)}`, cx: at, cy: y(sum), r: 3 }));
      });
      this.show(place, curves, at, width);
    }
    this.tip.hidden = !this.picked;
    const said = kind.series.map((series, number) => `${series.name} ${this.values[number].value.textContent}`);
    this.svg.setAttribute("aria-label", `${kind.title}, the last two minutes. Now: ${said.join(", ")}. Arrow keys read the curve.`);
    this.svg.replaceChildren(...parts);
  }

  show(place, curves, at, width) {
    const { kind, samples } = this;
    const ago = Math.round((samples.last.at - this.picked.at) / 1000);
    const rows = kind.series.map((series, number) => {
      const value = curves[number][place];
      const shown = value === null ? "–" : (series.show ?? kind.show)(value);
      return element("div", {}, element("i", { className: `mark s${this.color(number)}` }), element("span", {}, series.name), element("b", {}, shown));
    });
    this.tip.replaceChildren(element("p", {}, `${clock.format(this.picked.at)}, ${ago ? `${ago} s ago` : "now"}`), ...rows);
    this.tip.hidden = false;
    const left = at + 12 + this.tip.offsetWidth > width ? at - 12 - this.tip.offsetWidth : at + 12;
    this.tip.style.left = `${Math.max(0, left)}px`;
  }

  nearest(offset) {
    const { list, last } = this.samples;
    if (!last) return null;
    const inner = this.svg.clientWidth - MARGIN.left - MARGIN.right;
    const at = last.at - (1 - (offset - MARGIN.left) / inner) * WINDOW;
    return list.reduce((best, sample) => (Math.abs(sample.at - at) < Math.abs(best.at - at) ? sample : best));
  }

  pick(sample) {
    if (this.picked === sample) return;
    this.picked = sample;
    this.draw();
  }

  press(event) {
    const { list } = this.samples;
    const place = list.indexOf(this.picked);
    const next = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: list.length - 1 }[event.key];
    if (event.key === "Escape") this.pick(null);
    if (next === undefined || !list.length) return;
    event.preventDefault();
    this.pick(list[Math.min(Math.max(next < -1 ? list.length - 1 : next, 0), list.length - 1)]);
  }
}

// The parts of a curve without gaps, as lists of places.
function runs(curve, list) {
  const found = [];
  curve.forEach((value, place) => {
    if (value === null || list[place].at < list.at(-1).at - WINDOW) return;
    const run = found.at(-1);
    const isNext = run && run.at(-1) === place - 1 && list[place].at - list[place - 1].at <= GAP;
    if (isNext) run.push(place);
    else found.push([place]);
  });
  return found;
}
