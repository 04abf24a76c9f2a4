// The page: hears the server, and draws what it says.

// Without an event for so long the connection is taken for lost (milliseconds).
const SILENCE = 5_000;
const RETRY = 1_000;
// A page that nobody sees gives its place to another viewer.
const HIDDEN = 60_000;

const samples = new Samples();
const workers = new Workers();
const flights = new Flights();
const responses = new Responses();
const charts = [];

let latest = null;
let phases = null;
let paused = false;

const requestRate = perSecond((sample) => sample.totals.requests);
const CHARTS = [
  {
    ...{ id: "throughput", explain: "throughput", title: "Throughput", show: rate, scale: (value) => count(value), top: wholes(10) },
    series: [
      { explain: "answered", name: "answered", of: requestRate },
    ],
  },
  {
    ...{ id: "errors", explain: "errors", title: "Errors", show: rate, scale: (value) => count(value), top: wholes(1) },
    series: [
      { explain: "failed_rate", name: "5xx", color: 3, of: perSecond((sample) => sample.classes?.["5xx"] ?? 0) },
      { explain: "refused_rate", name: "refused", color: 2, of: perSecond((sample) => sample.totals.refused) },
    ],
  },
  {
    ...{ id: "load", explain: "load", title: "Requests", show: count, top: wholes(4) },
    series: [
      { explain: "running", name: "running", of: (sample) => sample.totals.running },
      { explain: "queued", name: "queued", of: (sample) => sample.totals.queued },
    ],
  },
  {
    ...{ id: "connections", explain: "connections", title: "Connections", show: count, top: wholes(4) },
    series: [
      { explain: "open", name: "open", of: (sample) => sample.totals.connections },
      { explain: "accepted_rate", name: "new", of: perSecond((sample) => sample.totals.accepted), show: rate },
    ],
  },
  {
    ...{ id: "memory", explain: "memory", title: "Memory", show: bytes, scale: (value) => bytes(value).replace(/\.0+ /, " "), top: binary },
    series: [
      { explain: "rss", name: "workers", of: (sample) => sample.rss_bytes },
      { explain: "client_memory", name: "for clients", of: (sample) => sample.totals.client_memory },
    ],
  },
];

const PATHS = ["one-write", "direct", "coalesced", "sendfile", "compressed", "spilled", "held", "none"];
const total = (kind) => (sample) => sample.latency?.total?.[kind] ?? null;
// Those that a server draws which counts responses.
const DELIVERY = [
  {
    ...{ id: "latency", explain: "latency", title: "Latency", show: atMost, scale: (value) => time(value).replace(/\.0+ /, " "), isLogarithmic: true },
    series: [
      { explain: "p50", name: "p50", of: total("p50") },
      { explain: "p90", name: "p90", of: total("p90") },
      { explain: "p99", name: "p99", of: total("p99") },
    ],
  },
  {
    ...{ id: "paths", explain: "paths", title: "Delivery", show: rate, scale: (value) => count(value), top: wholes(10), stacked: true },
    series: PATHS.map((path) => ({ explain: `path-${path}`, name: path, of: perSecond((sample) => sample.paths?.[path] ?? 0) })),
  },
];

function addCharts(kinds) {
  for (const kind of kinds) {
    const chart = new Chart(kind, samples);
    charts.push(chart);
    byId("charts").append(chart.node);
  }
}

function draw() {
  if (!latest || paused || document.hidden) return;
  document.querySelector("main").classList.remove("empty-yet");
  drawReadiness(latest, !lost);
  drawServer(latest);
  drawCounters(latest);
  drawHeld(latest, samples);
  workers.draw(latest);
  flights.draw(latest);
  responses.draw(latest);
  if (samples.last.latency && !phases) {
    phases = new Phases(samples);
    addCharts(DELIVERY);
    byId("charts").append(phases.node);
  }
  charts.forEach((chart) => chart.draw());
  phases?.draw();
  document.title = `${latest.ready ? "" : "not ready: "}${latest.application} · Tailrace`;
}

// The connection.

let source = null;
let heard = 0;
let lost = null;
let retry = 0;

function connect() {
  clearTimeout(retry);
  source?.close();
  source = new EventSource("events");
  heard = performance.now();
  source.addEventListener("history", (event) => samples.begin(JSON.parse(event.data)));
  source.addEventListener("state", (event) => {
    const { sample, document: found } = JSON.parse(event.data);
    samples.add(sample);
    latest = found;
    heard = performance.now();
    if (lost) {
      lost = null;
      drawReadiness(latest, true);
    }
    showLink();
    draw();
  });
  source.addEventListener("again", connect);
  source.addEventListener("error", lose);
}

// The server has ended the connection, or is not there.
async function lose() {
  source?.close();
  source = null;
  lost ??= new Date();
  clearTimeout(retry);
  retry = setTimeout(connect, RETRY + Math.random() * RETRY);
  showLink();
  drawReadiness(latest, false);
  const isUp = await fetch("health").then((response) => response.ok, () => false);
  if (isUp && lost) showLink("too many viewers, retrying");
}

// kind: for what is neither live nor lost.
function showLink(text, kind) {
  document.body.classList.toggle("lost", lost !== null);
  const said = text ?? (lost ? `disconnected since ${clock.format(lost)}, retrying` : paused ? "paused" : "live");
  say(byId("link"), said);
  byId("link").className = `link ${kind ?? (lost ? "bad" : paused ? "draining" : "good")}`;
  if (lost && latest) document.title = `disconnected: ${latest.application} · Tailrace`;
}

setInterval(() => {
  if (source && performance.now() - heard > SILENCE) lose();
}, 1000);

let hidden = 0;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hidden);
  if (document.hidden) {
    hidden = setTimeout(() => {
      clearTimeout(retry);
      source?.close();
      source = null;
    }, HIDDEN);
  } else if (source) draw();
  else {
    connect();
    // What is shown is old until the first state.
    if (!lost) showLink("connecting", "");
  }
});

// The controls.

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  say(byId("pause"), paused ? "Resume" : "Pause");
  showLink();
  draw();
});

// A browser may refuse to remember.
function remembered(theme) {
  try {
    if (theme !== undefined) localStorage.setItem("tailrace-theme", theme);
    return localStorage.getItem("tailrace-theme") ?? "";
  } catch {
    return theme ?? "";
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").value = theme;
}

byId("theme").addEventListener("change", (event) => setTheme(remembered(event.target.value)));

setTheme(remembered());
explain();
addCharts(CHARTS);
connect();
