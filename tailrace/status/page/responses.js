// Finished responses: endpoints with what they cost and how long they take, and by endpoint those that were slow and those
// that broke. Each row opens to show its figures and what to fix.

const each = (endpoint, key) => endpoint[key] / Math.max(1, endpoint.responses);
const mean = (value) => (value >= 9.95 || Number.isInteger(value) ? decimals[0] : decimals[1]).format(value);
const perResponse = (key) => (endpoint) => each(endpoint, key);
const figure = (key) => (item) => item[key] ?? null;

const ENDPOINT_COLUMNS = [
  { explain: "endpoint", name: "endpoint", kind: "target", opens: true, rises: true, value: figure("endpoint"), draw: (button, endpoint) => drawRequest(button, endpoint.endpoint) },
  { explain: "endpoint_responses", name: "responses", kind: "number", value: figure("responses"), draw: (cell, endpoint) => say(cell, count(endpoint.responses)) },
  { explain: "endpoint_mean", name: "mean", kind: "number", value: figure("mean_seconds"), draw: (cell, endpoint) => drawTime(cell, endpoint.mean_seconds) },
  { explain: "endpoint_p95", name: "p95", kind: "number", value: figure("p95_seconds"), draw: (cell, endpoint) => drawTime(cell, endpoint.p95_seconds, atMost) },
  { explain: "endpoint_cost", name: "cost", kind: "number", value: figure("cost_seconds"), draw: (cell, endpoint) => drawTime(cell, endpoint.cost_seconds) },
  { explain: "endpoint_application", name: "application", kind: "number wide", value: perResponse("application_seconds"), draw: (cell, endpoint) => drawTime(cell, each(endpoint, "application_seconds")) },
  { explain: "endpoint_cpu", name: "cpu", kind: "number wide", value: perResponse("cpu_seconds"), draw: (cell, endpoint) => drawTime(cell, each(endpoint, "cpu_seconds")) },
  { explain: "endpoint_writes", name: "calls", kind: "number wide", value: perResponse("writes"), draw: (cell, endpoint) => say(cell, mean(each(endpoint, "writes"))) },
  { explain: "endpoint_blocks", name: "blocks", kind: "number wide", value: perResponse("blocks"), draw: (cell, endpoint) => say(cell, mean(each(endpoint, "blocks"))) },
  { explain: "endpoint_grown", name: "memory", kind: "number grown", value: grownFor, draw: drawGrown },
  { explain: "endpoint_failed", name: "failed", kind: "number failures", value: figure("failed"), draw: (cell, endpoint) => drawCount(cell, endpoint.failed, "warn") },
  { explain: "endpoint_path", name: "path", kind: "path wide", rises: true, value: figure("path"), draw: (cell, endpoint) => say(cell, endpoint.path) },
  { explain: "finding", name: "to fix", kind: "finding", draw: drawKeys },
];

// Slow or broken responses of an endpoint: how many there were, and the last ones, the last first.
const GROUP_COLUMNS = [
  { explain: "endpoint", name: "endpoint", kind: "target", opens: true, rises: true, value: figure("endpoint"), draw: (button, group) => drawRequest(button, group.endpoint) },
  { explain: "group_number", name: "responses", kind: "number", value: figure("number"), draw: (cell, group) => say(cell, count(group.number)) },
  { explain: "group_last", name: "last", kind: "number", value: ({ last }) => (last.length ? Date.parse(last[0].time) : null), draw: (cell, { last }) => say(cell, last.length ? clock.format(new Date(last[0].time)) : "–") },
  { explain: "group_longest", name: "longest", kind: "number", value: longest, draw: (cell, group) => drawTime(cell, longest(group)) },
  { explain: "group_endings", name: "ended", kind: "endings", draw: drawEndings },
  { explain: "finding", name: "to fix", kind: "finding", draw: (cell, { last }) => (last.length ? drawKeys(cell, { findings: findingsOf(last) }) : drawNothing(cell)) },
];

function longest({ last }) {
  return last.length ? Math.max(...last.map((ended) => ended.total_seconds)) : null;
}

// What the client has got: with a status, what broke after the head is visible only in the ending.
const ENDINGS = {
  "client-disconnected": "client disconnected", broken: "broken off", "timed-out": "timed out", cut: "cut off",
  cancelled: "cancelled",
};
function outcome({ status, ending }) {
  if (ending === "complete") return String(status);
  return status ? `${status}, then ${ENDINGS[ending] ?? ending}` : (ENDINGS[ending] ?? ending);
}

const isAlarming = ({ status, ending }) =>
  status >= 500 || !["complete", "client-disconnected", "cancelled"].includes(ending);

// Each outcome of the last responses, the most frequent first.
function drawEndings(cell, { last }) {
  const counted = new Map();
  for (const ended of last) counted.set(outcome(ended), (counted.get(outcome(ended)) ?? 0) + 1);
  const parts = [...counted].sort(([, one], [, other]) => other - one);
  say(cell, parts.map(([text, number]) => (parts.length > 1 ? `${number} × ${text}` : text)).join("; ") || "–");
  cell.classList.toggle("warn", last.some(isAlarming));
}

// The findings of several responses, each kind once.
function findingsOf(responses) {
  return [...new Map(responses.flatMap(({ findings }) => findings).reverse().map((finding) => [finding.key, finding])).values()].reverse();
}

function drawRequest(button, text) {
  if (!button.firstChild) button.append(element("b"), " ", element("span"));
  const [method, ...target] = text.split(" ");
  say(button.firstChild, method);
  say(button.lastChild, target.join(" "));
}

function drawTime(cell, value, show = time) {
  say(cell, value === null || value === undefined ? "–" : show(value));
  cell.classList.toggle("zero", !value);
}

// A growth counts if it is at least three times its standard error. Otherwise, another endpoint may have caused it.
const isSure = ({ grown_bytes: grown, grown_error_bytes: error }) => grown >= 2 ** 20 && grown >= 3 * error;

function grownFor(endpoint) {
  return isSure(endpoint) ? endpoint.grown_bytes : null;
}

function drawGrown(cell, endpoint) {
  say(cell, isSure(endpoint) ? `+${bytes(endpoint.grown_bytes)}` : "–");
  cell.classList.toggle("zero", !isSure(endpoint));
}

function drawNothing(cell) {
  say(cell, "–");
  cell.classList.add("zero");
}

function drawKeys(cell, item) {
  const found = allFindings(item);
  say(cell, found.map(({ key }) => key.replaceAll("-", " ")).join(", ") || "nothing");
  cell.classList.toggle("zero", !found.length);
}

// Findings, and hints about a slow endpoint.
const allFindings = ({ findings, hints }) => [...findings, ...(hints ?? [])];

// What each opens to: figures, and findings. rows(item): lists of figures, each with a key.
class ResponseDetails {
  constructor(rows, findings) {
    this.rows = rows;
    this.findingsOf = findings;
    this.facts = element("div", {});
    this.empty = element("p", { className: "empty" }, "The last responses that were kept are of other endpoints.");
    this.findings = element("div", { className: "findings" });
    this.node = element("div", {}, this.facts, this.empty, this.findings);
  }

  update(item) {
    const lists = this.rows(item);
    keep(this.facts, lists, ([key]) => key, () => element("dl", { className: "facts" }), (node, [, rows]) => facts(node, rows));
    this.empty.hidden = lists.length > 0;
    const parts = (finding) => [finding.what, finding.cost, finding.change, finding.code];
    keep(
      this.findings,
      this.findingsOf(item),
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
  ["endpoint_mean", "mean", endpoint.mean_seconds === null ? "–" : time(endpoint.mean_seconds)],
  ["endpoint_p95", "p95", endpoint.p95_seconds === null ? "–" : atMost(endpoint.p95_seconds)],
  ["endpoint_cost", "cost", time(endpoint.cost_seconds)],
  ["endpoint_application", "application", `${time(endpoint.application_seconds)}, each ${time(each(endpoint, "application_seconds"))}`],
  ["endpoint_delivery", "delivery", `${time(endpoint.delivery_seconds)}, each ${time(each(endpoint, "delivery_seconds"))}`],
  ...PARTS.map((part) => {
    const seconds = endpoint[`${part}_seconds`];
    return [`latency-${part}`, part, `${time(seconds)}, each ${time(seconds / endpoint.responses)}`, seconds ? "" : "zero"];
  }),
  ["endpoint_grown", "memory", grownFact(endpoint), isSure(endpoint) ? "" : "zero"],
  ["endpoint_blocks", "blocks", count(endpoint.blocks)],
  ["endpoint_writes", "system calls", count(endpoint.writes)],
  ["endpoint_bytes", "bytes", bytes(endpoint.body_bytes)],
  ["endpoint_chunked", "in chunks", count(endpoint.chunked), endpoint.chunked ? "" : "zero"],
  ["endpoint_slow", "slow", count(endpoint.slow), endpoint.slow ? "" : "zero"],
  ["endpoint_failed", "failed", count(endpoint.failed), alarming(endpoint.failed)],
  ["endpoint_disconnected", "clients disconnected", count(endpoint.client_disconnected),
    endpoint.client_disconnected ? "" : "zero"],
];

function grownFact({ grown_bytes: grown, grown_error_bytes: error, grown_responses: number }) {
  if (!number || error === undefined) return "–";
  const size = (value) => `${value < 0 ? "−" : ""}${bytes(Math.abs(Math.round(value)))}`;
  return `${size(grown)} ± ${size(2 * error)}, each ${size(grown / number)}`;
}

// The phases of a response that has ended.
const SECONDS = "_seconds";
const phasesOf = (ended) => Object.keys(ended).filter((key) => key.endsWith(SECONDS)).map((key) => key.slice(0, -SECONDS.length));
const endedFacts = (ended) => [
  ["ended_target", "request", `${ended.method} ${ended.target}`],
  ...idFact(ended),
  ["client", "client", ended.client || "UNIX socket"],
  ["ended_at", "at", clock.format(new Date(ended.time))],
  ...phasesOf(ended).map((phase) => {
    const seconds = ended[phase + SECONDS];
    return [`latency-${phase}`, phase, time(seconds), seconds ? "" : "zero"];
  }),
  ["ended_ending", "ended", outcome(ended), isAlarming(ended) ? "warn" : ""],
  [`path-${ended.path}`, "path", ended.path],
  ["endpoint_blocks", "blocks", count(ended.blocks)],
  ["endpoint_writes", "system calls", count(ended.writes)],
  ["endpoint_bytes", "bytes", bytes(ended.body_bytes)],
  ["request_worker", "worker", `${ended.worker}, process ${ended.pid}`],
];

// Responses of an endpoint whose figures are shown.
const LAST = 4;
const groupFacts = ({ last }) => last.slice(0, LAST).map((ended) => [keyOf(ended), endedFacts(ended)]);
// Without the time of its end, which the server estimates anew for each state.
const keyOf = (ended) => `${ended.pid} ${ended.client} ${ended.target} ${phasesOf(ended).map((phase) => ended[phase + SECONDS])}`;

// By endpoint: how many its workers have counted, and those that were kept.
function groupedByEndpoint(endpoints, counted, kept) {
  const groups = new Map();
  for (const endpoint of endpoints) {
    if (endpoint[counted]) groups.set(endpoint.endpoint, { endpoint: endpoint.endpoint, number: endpoint[counted], last: [] });
  }
  for (const ended of kept) {
    const group = groups.get(ended.endpoint) ?? { endpoint: ended.endpoint, number: 0, last: [] };
    groups.set(ended.endpoint, group);
    group.last.push(ended);
    // Workers that have ended before a reload are not counted.
    group.number = Math.max(group.number, group.last.length);
  }
  return [...groups.values()];
}

class Responses {
  constructor() {
    const table = (id, columns, by, open, first) => new Table(byId(id), columns, { key: figure("endpoint"), by, open, first });
    this.endpoints = table("endpoints", ENDPOINT_COLUMNS, "cost", () => new ResponseDetails((endpoint) => [["", endpointFacts(endpoint)]], allFindings));
    const group = () => new ResponseDetails(groupFacts, ({ last }) => findingsOf(last));
    this.groups = [["slow", "slow"], ["broken", "failed"]].map(([id, counted]) => [id, counted, table(id, GROUP_COLUMNS, "responses", group, 5)]);
  }

  draw(found) {
    const endpoints = found.endpoints ?? [];
    this.show(this.endpoints, "endpoints", endpoints);
    const number = endpoints.length + (found.endpoints_omitted ?? 0);
    say(byId("endpoints-link"), count(number));
    say(byId("endpoints-count"), found.endpoints_omitted ? `${count(endpoints.length)} of ${count(number)}, those that cost the most` : count(number));
    for (const [id, counted, table] of this.groups) {
      const groups = groupedByEndpoint(endpoints, counted, found[id] ?? []);
      const all = groups.reduce((sum, group) => sum + group.number, 0);
      this.show(table, id, groups);
      say(byId(`${id}-count`), all ? `${count(all)}, from ${plural(groups.length, "endpoint")}` : "0");
      say(byId(`${id}-link`), count(all));
    }
  }

  show(table, id, items) {
    table.forget(new Set(items.map(table.key)));
    table.draw(items);
    byId(`no-${id}`).hidden = items.length > 0;
  }
}
