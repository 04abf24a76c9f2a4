// The figures of a document (`/status.json`): the server, its counters, its workers and the requests in flight.

const PHASES = [
  { id: "queued", name: "queued" },
  { id: "running", name: "running" },
  { id: "waiting", name: "waiting for the interpreter" },
  { id: "sending", name: "sending" },
  { id: "draining", name: "draining" },
];
// Seconds after which a request is marked.
const LONG = 1;

const chip = (id, text) => element("span", { className: `chip ${id}` }, text);

function setChip(node, id, text) {
  node.className = `chip ${id}`;
  say(node, text);
}

// A list of names with explanations and values: [[explanation, name, value, class], ...].
function facts(list, rows) {
  keep(
    list,
    rows,
    ([key]) => key,
    ([key, name]) => element("div", {}, element("dt", {}, term(key, name)), element("dd", { "data-explain": key })),
    (node, [, name, value, kind]) => {
      node.className = kind ?? "";
      say(node.firstChild.firstChild, name);
      say(node.lastChild, value);
    },
  );
}

// The class of a count that is to be 0.
const alarming = (value) => (value ? "warn" : "zero");

// The certificate that expires first; none without TLS.
function certificates({ certificates }) {
  const left = Math.min(...certificates.map((each) => each.seconds_left));
  if (left === Infinity) return [];
  const said = left > 0 ? `expires in ${roughly(left)}` : "has expired";
  return [["certificates", "certificate", said, left < 14 * 86400 ? "warn" : ""]];
}

// What the server said last, which is no news while it is not heard. found: null before its first state.
function drawReadiness(found, isHeard) {
  if (!found) return setChip(byId("readiness"), "", "unknown");
  const said = found.ready ? "ready" : `not ready: ${found.reason}`;
  if (!isHeard) return setChip(byId("readiness"), "", `last known: ${said}`);
  setChip(byId("readiness"), found.ready ? "good" : found.draining ? "draining" : "bad", said);
}

function drawServer(found) {
  say(byId("application"), found.application);
  const began = new Date(Date.parse(found.time) - found.uptime_seconds * 1000);
  const serving = found.workers.filter((worker) => worker.state === "serving").length;
  facts(byId("server"), [
    ["version", "Tailrace", found.version],
    ["uptime", "up", `${roughly(found.uptime_seconds)}, since ${dated.format(began)}`],
    ["wanted", "workers", `${serving} of ${found.workers_wanted} serving`, serving < found.workers_wanted ? "warn" : ""],
    ["listeners", "at", found.listeners.join(", ")],
    ...certificates(found),
    ["master", "master", String(found.master)],
  ]);
}

function drawCounters(found) {
  const { totals } = found;
  const reasons = Object.entries(found.restarts).filter(([, number]) => number);
  const restarts = reasons.map(([, number]) => number).reduce((sum, number) => sum + number, 0);
  const why = reasons.map(([reason, number]) => `${reason.replaceAll("_", " ")} ${number}`).join(", ");
  const counted = (key, name) => [key, name, count(totals[key]), alarming(totals[key])];
  const held = (key, name) => [key, name, bytes(totals[key]), totals[key] ? "" : "zero"];
  facts(byId("counters"), [
    ["requests", "requests", count(totals.requests)],
    ["accepted", "connections", count(totals.accepted)],
    counted("refused", "refused"),
    counted("timed_out", "timed out"),
    counted("given_up", "abandoned"),
    // Only --sticky passes requests. A server of an earlier version does not count them.
    ...(totals.passed ? [["passed", "passed to another worker", count(totals.passed)]] : []),
    ["restarts", "restarts", why ? `${count(restarts)} (${why})` : "0", restarts ? "" : "zero"],
  ]);
  facts(byId("gauges"), [
    counted("stuck", "stuck threads"),
    held("heads", "request heads"),
    held("bodies", "request bodies"),
    held("buffered", "responses"),
  ]);
}

// Channels that are named.
const NAMED_CHANNELS = 5;
// After this long (seconds) the figures are those of a process that does not answer.
const SILENT = 5;

// What a counter of the process that holds connections has grown per second; a new process counts from 0.
const heldRate = (key) => {
  const grown = perSecond((sample) => sample.held[key]);
  return (sample, before) => (sample?.held && sample.held.pid === before?.held?.pid ? grown(sample, before) : null);
};
const HELD_RATES = [["held_published", "published", heldRate("published")], ["held_delivered", "delivered", heldRate("delivered")]];

// The process that holds connections; hidden while there is none.
function drawHeld({ held }, samples) {
  byId("held-section").hidden = !held;
  if (!held) return;
  const [before, last] = samples.list.slice(-2);
  const rates = HELD_RATES.map(([key, name, of]) => [key, name, of(last, before)]);
  // A channel may have stored events alone.
  const connected = held.largest.filter(({ connections }) => connections);
  const named = connected.slice(0, NAMED_CHANNELS).map(({ channel, connections }) => `${channel} ${count(connections)}`);
  const more = connected.length > named.length ? ", …" : "";
  facts(byId("held"), [
    ["held_connections", "connections", count(held.connections)],
    ["held_channels", "channels", count(held.channels)],
    ...rates.map(([key, name, value]) => [key, name, value === null ? "–" : rate(value)]),
    ...(named.length ? [["held_largest", "largest", `${named.join(", ")}${more}`]] : []),
    ...(held.bus ? [["held_bus", "other servers", ...(held.bus.connected ? [count(held.bus.servers)] : ["not connected", "warn"])]] : []),
    ...(held.age_seconds > SILENT ? [["held_silent", "no answer for", roughly(held.age_seconds), "warn"]] : []),
  ]);
}

// Workers. `rate`: requests per second, null where it is not known yet.
const counter = (key) => ({ worker }) => worker.counters[key];
const WORKER_COLUMNS = [
  { explain: "worker", name: "worker", kind: "name", opens: true, rises: true, value: ({ worker }) => worker.number, draw: (cell, { worker }) => say(cell, String(worker.number)) },
  { explain: "pid", name: "process", kind: "number", rises: true, value: ({ worker }) => worker.pid, draw: (cell, { worker }) => say(cell, String(worker.pid)) },
  { explain: "state", name: "state", kind: "state", rises: true, value: ({ worker }) => worker.state, draw: (cell, { worker }) => setChip(cell.firstChild ?? cell.appendChild(chip()), worker.state, worker.state) },
  { explain: "state_for", name: "for", kind: "number", value: ({ worker }) => worker.seconds, draw: (cell, { worker }) => say(cell, roughly(worker.seconds)) },
  { explain: "threads", name: "in use", kind: "number meter", value: counter("running"), draw: drawThreads },
  { explain: "worker_queued", name: "queue", kind: "number", value: counter("queued"), draw: (cell, { worker }) => drawCount(cell, worker.counters.queued, "warn") },
  { explain: "worker_connections", name: "connections", kind: "number", value: counter("connections"), draw: (cell, { worker }) => drawCount(cell, worker.counters.connections) },
  { explain: "worker_rate", name: "requests/s", kind: "number", value: ({ rate: found }) => found, draw: (cell, { rate: found }) => say(cell, found === null ? "–" : rate(found).replace("/s", "")) },
  { explain: "worker_requests", name: "requests", kind: "number wide", value: counter("requests"), draw: (cell, { worker }) => say(cell, count(worker.counters.requests)) },
  { explain: "worker_rss", name: "memory", kind: "number", value: ({ worker }) => worker.rss_bytes, draw: (cell, { worker }) => say(cell, worker.rss_bytes === null ? "–" : bytes(worker.rss_bytes)) },
  { explain: "worker_client_memory", name: "for clients", kind: "number wide", value: counter("client_memory"), draw: (cell, { worker }) => drawCount(cell, worker.counters.client_memory, "", bytes) },
  { explain: "worker_trouble", name: "problems", kind: "problems", isEmpty: ({ worker }) => !problems(worker).length, draw: drawProblems },
  { explain: "generation", name: "generation", kind: "number wide", value: ({ worker }) => worker.generation, draw: (cell, { worker }) => say(cell, String(worker.generation)) },
];

function drawCount(cell, value, kind = "", show = count) {
  say(cell, show(value));
  cell.classList.toggle("zero", !value);
  if (kind) cell.classList.toggle(kind, value > 0);
}

function drawThreads(cell, { worker, threads }) {
  if (!cell.firstChild) cell.append(element("span"), element("i", { className: "gauge", "aria-hidden": "true" }, element("b")));
  say(cell.firstChild, `${count(worker.counters.running)} of ${count(threads)}`);
  cell.lastChild.firstChild.style.width = `${Math.min(100, (worker.counters.running / threads) * 100)}%`;
}

function problems({ counters }) {
  const rows = [[counters.stuck, "stuck"], [counters.timed_out, "timed out"], [counters.given_up, "abandoned"], [counters.refused, "refused"]];
  return rows.filter(([number]) => number);
}

function drawProblems(cell, { worker }) {
  const rows = problems(worker);
  say(cell, rows.map(([number, name]) => `${count(number)} ${name}`).join(", ") || "none");
  cell.classList.toggle("zero", !rows.length);
  cell.classList.toggle("warn", rows.length > 0);
}

class Workers {
  constructor() {
    this.table = new Table(byId("workers"), WORKER_COLUMNS, {
      key: ({ worker }) => worker.pid,
      by: "worker",
      open: ({ worker }) => new WorkerDetails(worker),
    });
    this.before = new Map();
  }

  draw(found) {
    const at = found.uptime_seconds;
    const items = found.workers.map((worker) => {
      const { requests } = worker.counters;
      const known = this.before.get(worker.pid);
      const passed = known ? at - known.at : 0;
      const measured = passed > 0.3 ? Math.max(0, requests - known.requests) / passed : known?.rate ?? null;
      const rate = passed > 5 || passed < 0 ? null : measured;
      if (!known || passed > 0.3 || passed < 0) this.before.set(worker.pid, { at, requests, rate });
      return { worker, rate, threads: found.threads_each };
    });
    const pids = new Set(found.workers.map((worker) => worker.pid));
    for (const pid of this.before.keys()) {
      if (pids.has(pid)) continue;
      this.before.delete(pid);
      this.table.details.delete(pid);
    }
    this.table.draw(items);
    say(byId("workers-count"), count(items.length));
    say(byId("workers-link"), count(items.length));
    byId("no-workers").hidden = items.length > 0;
    say(byId("no-workers"), `There is no worker: ${found.reason || "none is wanted"}.`);
  }
}

// Requests in flight.
const FLIGHT_COLUMNS = [
  { explain: "phase", name: "phase", kind: "state", rises: true, value: ({ phase }) => phase.name, draw: (cell, { phase, ended }) => setChip(cell.firstChild ?? cell.appendChild(chip()), ended ? "ended" : phase.id, ended ? "ended" : phase.name) },
  { explain: "seconds", name: "for", kind: "number", value: ({ request }) => request.seconds, draw: drawSeconds },
  { explain: "target", name: "request", kind: "target", opens: true, rises: true, value: ({ request }) => `${request.target} ${request.method}`, draw: drawTarget },
  { explain: "request_worker", name: "worker", kind: "number", rises: true, value: ({ request }) => request.worker, draw: (cell, { request }) => say(cell, String(request.worker)) },
  { explain: "thread", name: "thread", kind: "number wide", rises: true, value: ({ request }) => request.thread, draw: (cell, { request }) => say(cell, String(request.thread)) },
  { explain: "client", name: "client", kind: "client", rises: true, value: ({ request }) => request.client, draw: (cell, { request }) => say(cell, request.client || "–") },
];

function drawSeconds(cell, { request }) {
  say(cell, lasting(request.seconds));
  cell.classList.toggle("warn", request.seconds >= LONG);
}

function drawTarget(button, { request }) {
  if (!button.firstChild) button.append(element("b"), " ", element("span"));
  say(button.firstChild, request.method);
  say(button.lastChild, request.target);
}

// A request in flight is `running` or `sending`; what runs in a worker that drains is the last that it does.
function phaseOf(request, worker) {
  const told = request.phase === "sending" ? "sending" : worker?.state === "draining" ? "draining" : "running";
  return PHASES.find(({ id }) => id === told);
}

class Flights {
  constructor() {
    this.table = new Table(byId("flights"), FLIGHT_COLUMNS, {
      key: ({ key }) => key,
      by: "for",
      open: (flight) => new FlightDetails(flight),
    });
    this.flights = new Map();
    byId("filter").addEventListener("input", () => this.show());
  }

  draw(found) {
    const workers = new Map(found.workers.map((worker) => [worker.pid, worker]));
    const now = Date.parse(found.time);
    const present = new Set();
    for (const request of found.requests) {
      const key = `${request.pid} ${request.id} ${request.thread}`;
      const known = this.flights.get(key);
      present.add(key);
      this.flights.set(key, { key, request, began: known?.began ?? now - request.seconds * 1000, phase: phaseOf(request, workers.get(request.pid)) });
    }
    for (const [key, flight] of this.flights) {
      if (present.has(key)) continue;
      // What somebody reads stays.
      if (this.table.details.has(key)) this.flights.set(key, { ...flight, ended: true });
      else this.flights.delete(key);
    }
    this.drawPhases(found);
    this.show();
  }

  drawPhases(found) {
    const numbers = Object.fromEntries(PHASES.map(({ id }) => [id, 0]));
    for (const { phase, ended } of this.flights.values()) if (!ended) numbers[phase.id] += 1;
    numbers.queued = found.totals.queued;
    numbers.waiting = found.threads?.waiting ?? 0;
    numbers.running += found.requests_omitted;
    facts(byId("phases"), PHASES.map(({ id, name }) => [id, name, count(numbers[id]), `${id} ${numbers[id] ? "" : "zero"}`]));
    keep(byId("phase-bar"), PHASES, ({ id }) => id, ({ id }) => element("i", { className: id }), (node, { id }) => {
      node.style.flexGrow = numbers[id];
    });
    for (const id of ["requests-count", "requests-link"]) say(byId(id), count(found.requests.length + found.requests_omitted));
  }

  show() {
    const text = byId("filter").value.trim().toLowerCase();
    const matches = ({ request, phase }) =>
      !text || `${request.method} ${request.target} ${request.client} ${request.request_id ?? ""} ${phase.name}`.toLowerCase().includes(text);
    const all = [...this.flights.values()];
    const matching = all.filter(matches);
    this.table.draw(matching);
    byId("no-requests").hidden = matching.length > 0;
    say(byId("no-requests"), all.length ? "No request in flight contains this text." : "No request is in flight.");
  }
}

// How long the requests of the last seconds took, by phase.
class Phases {
  constructor(samples) {
    this.samples = samples;
    const heads = [["latency_phase", "phase"], ["latency_p50", "p50"], ["latency_p90", "p90"], ["latency_p99", "p99"], ["latency_mean", "mean"]];
    this.body = element("tbody");
    this.node = element(
      "section",
      { className: "card chart latencies" },
      element("h3", {}, term("phases", "Where the time goes")),
      element(
        "table",
        {},
        element("thead", {}, element("tr", {}, ...heads.map(([key, name], place) => element("th", { scope: "col", className: place ? "number" : "" }, term(key, name))))),
        this.body,
      ),
    );
  }

  draw() {
    // Few proxies state when they received a request.
    const found = Object.entries(this.samples.last.latency ?? {}).filter(([name, latency]) => latency || name !== "proxied");
    keep(
      this.body,
      found,
      ([name]) => name,
      ([name]) => {
        const cells = ["p50", "p90", "p99", "mean"].map((kind) => element("td", { className: "number", "data-explain": `latency_${kind}`, "data-name": kind }));
        return element("tr", {}, element("th", { scope: "row" }, term(`latency-${name}`, name)), ...cells);
      },
      (row, [, latency]) => {
        ["p50", "p90", "p99"].forEach((kind, place) => say(row.cells[place + 1], latency ? atMost(latency[kind]) : "–"));
        say(row.cells[4], latency ? time(latency.mean) : "–");
      },
    );
  }
}
