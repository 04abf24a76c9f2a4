// Finished responses: endpoints by cost, and the last slow and broken responses. Each row opens to show its figures and
// what to fix.

const each = (endpoint, key) => endpoint[key] / Math.max(1, endpoint.responses);
const mean = (value) => (value >= 9.95 || Number.isInteger(value) ? decimals[0] : decimals[1]).format(value);

const ENDPOINT_COLUMNS = [
  { explain: "endpoint", name: "endpoint", kind: "target", opens: true, draw: (button, endpoint) => drawRequest(button, endpoint.endpoint) },
  { explain: "endpoint_cost", name: "cost", kind: "number", draw: (cell, endpoint) => drawTime(cell, endpoint.cost_seconds) },
  { explain: "endpoint_responses", name: "responses", kind: "number", draw: (cell, endpoint) => say(cell, count(endpoint.responses)) },
  { explain: "endpoint_held", name: "held", kind: "number", draw: (cell, endpoint) => drawTime(cell, each(endpoint, "held_seconds")) },
  { explain: "endpoint_delivery", name: "delivery", kind: "number wide", draw: (cell, endpoint) => drawTime(cell, each(endpoint, "delivery_seconds")) },
  { explain: "endpoint_writes", name: "calls", kind: "number", draw: (cell, endpoint) => say(cell, mean(each(endpoint, "writes"))) },
  { explain: "endpoint_blocks", name: "blocks", kind: "number wide", draw: (cell, endpoint) => say(cell, mean(each(endpoint, "blocks"))) },
  { explain: "endpoint_bytes", name: "bytes", kind: "number wide", draw: (cell, endpoint) => say(cell, bytes(Math.round(each(endpoint, "body_bytes")))) },
  { explain: "endpoint_failed", name: "failed", kind: "number", draw: (cell, endpoint) => drawCount(cell, endpoint.failed, "warn") },
  { explain: "endpoint_path", name: "path", kind: "path", draw: (cell, endpoint) => say(cell, endpoint.path) },
  { explain: "finding", name: "to fix", kind: "finding", draw: drawKeys },
];

const ENDED_COLUMNS = [
  { explain: "ended_target", name: "request", kind: "target", opens: true, draw: (button, ended) => drawRequest(button, `${ended.method} ${ended.target}`) },
  { explain: "ended_at", name: "ended", kind: "number", draw: (cell, ended) => say(cell, clock.format(new Date(ended.time))) },
  { explain: "ended_total", name: "took", kind: "number", draw: (cell, ended) => drawTime(cell, ended.total_seconds) },
  { explain: "ended_status", name: "status", kind: "number", draw: (cell, ended) => drawStatus(cell, ended) },
  { explain: "ended_ending", name: "ending", kind: "ending", draw: (cell, ended) => drawEnding(cell, ended) },
  { explain: "endpoint_path", name: "path", kind: "path wide", draw: (cell, ended) => say(cell, ended.path) },
  { explain: "request_worker", name: "worker", kind: "number wide", draw: (cell, ended) => say(cell, String(ended.worker)) },
  { explain: "finding", name: "to fix", kind: "finding", draw: drawKeys },
];

function drawRequest(button, text) {
  if (!button.firstChild) button.append(element("b"), " ", element("span"));
  const [method, ...target] = text.split(" ");
  say(button.firstChild, method);
  say(button.lastChild, target.join(" "));
}

function drawTime(cell, value) {
  say(cell, time(value));
  cell.classList.toggle("zero", !value);
}

function drawStatus(cell, { status }) {
  say(cell, status ? String(status) : "–");
  cell.classList.toggle("warn", status >= 500);
}

function drawEnding(cell, { ending }) {
  say(cell, ending);
  cell.classList.toggle("warn", ending !== "complete");
}

function drawKeys(cell, { findings }) {
  say(cell, findings.map(({ key }) => key.replaceAll("-", " ")).join(", ") || "nothing");
  cell.classList.toggle("zero", !findings.length);
}

// What both open to: figures, and findings.
class ResponseDetails {
  constructor(rows) {
    this.rows = rows;
    this.facts = element("dl", { className: "facts" });
    this.findings = element("div", { className: "findings" });
    this.node = element("div", {}, this.facts, this.findings);
  }

  update(item) {
    facts(this.facts, this.rows(item));
    const parts = (finding) => [finding.what, finding.cost, finding.change, finding.code];
    keep(
      this.findings,
      item.findings,
      ({ key }) => key,
      () => element("section", {}, element("h3"), element("p"), element("p"), element("pre")),
      (node, finding) => parts(finding).forEach((text, place) => say(node.children[place], text)),
    );
  }
}

const endpointFacts = (endpoint) => [
  ["endpoint", "endpoint", endpoint.endpoint],
  ["endpoint_responses", "responses", count(endpoint.responses)],
  ["endpoint_path", "sent", Object.entries(endpoint.paths).map(([path, number]) => `${count(number)} ${path}`).join(", ") || "–"],
  ["endpoint_cost", "cost", time(endpoint.cost_seconds)],
  ["endpoint_held", "held", `${time(endpoint.held_seconds)}, each ${time(each(endpoint, "held_seconds"))}`],
  ["endpoint_delivery", "delivery", `${time(endpoint.delivery_seconds)}, each ${time(each(endpoint, "delivery_seconds"))}`],
  ["endpoint_blocked", "blocked on clients", time(endpoint.blocked_seconds), endpoint.blocked_seconds ? "" : "zero"],
  ["endpoint_blocks", "blocks", count(endpoint.blocks)],
  ["endpoint_writes", "system calls", count(endpoint.writes)],
  ["endpoint_bytes", "bytes", bytes(endpoint.body_bytes)],
  ["endpoint_chunked", "in chunks", count(endpoint.chunked), endpoint.chunked ? "" : "zero"],
  ["endpoint_failed", "failed", count(endpoint.failed), alarming(endpoint.failed)],
  ["endpoint_gone", "clients gone", count(endpoint.client_gone), endpoint.client_gone ? "" : "zero"],
];

// The phases of a response that has ended.
const LASTED = ["queued", "application", "iterating", "blocked", "total"];
const endedFacts = (ended) => [
  ["ended_target", "request", `${ended.method} ${ended.target}`],
  ["client", "client", ended.client || "UNIX socket"],
  ["ended_at", "ended", clock.format(new Date(ended.time))],
  ...LASTED.map((phase) => {
    const seconds = ended[`${phase}_seconds`];
    return [`latency-${phase}`, phase, time(seconds), seconds ? "" : "zero"];
  }),
  ["ended_ending", "ending", `${ended.status || "no status"}, ${ended.ending}`],
  [`path-${ended.path}`, "path", ended.path],
  ["endpoint_blocks", "blocks", count(ended.blocks)],
  ["endpoint_writes", "system calls", count(ended.writes)],
  ["endpoint_bytes", "bytes", bytes(ended.body_bytes)],
  ["request_worker", "worker", `${ended.worker}, process ${ended.pid}`],
];

class Responses {
  constructor() {
    const table = (id, columns, key, rows) =>
      new Table(byId(id), columns, { key, open: () => new ResponseDetails(rows) });
    this.endpoints = table("endpoints", ENDPOINT_COLUMNS, ({ endpoint }) => endpoint, endpointFacts);
    // Without the time of its end, which the server estimates anew for each state.
    const key = (ended) => `${ended.pid} ${ended.client} ${ended.target} ${LASTED.map((phase) => ended[`${phase}_seconds`])}`;
    this.ended = ["slow", "broken"].map((id) => [id, table(id, ENDED_COLUMNS, key, endedFacts)]);
  }

  draw(found) {
    const endpoints = found.endpoints ?? [];
    this.show(this.endpoints, endpoints);
    say(byId("endpoints-count"), count(endpoints.length + (found.endpoints_omitted ?? 0)));
    byId("no-endpoints").hidden = endpoints.length > 0;
    for (const [id, table] of this.ended) {
      const responses = found[id] ?? [];
      this.show(table, responses);
      say(byId(`${id}-count`), count(responses.length));
      byId(`no-${id}`).hidden = responses.length > 0;
    }
  }

  show(table, items) {
    table.draw(items);
    const keys = new Set(items.map(table.key));
    for (const key of table.details.keys()) if (!keys.has(key)) table.details.delete(key);
  }
}
