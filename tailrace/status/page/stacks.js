// Details of a request and of a worker: Python stacks, read from `/stacks` when they are asked for.

const PATIENCE = 20_000;

// A worker with its threads. Throws an Error whose message is one line for the reader.
async function readStacks(pid) {
  let response;
  try {
    response = await fetch(`stacks?pid=${pid}`, { signal: AbortSignal.timeout(PATIENCE) });
  } catch (error) {
    throw new Error(error.name === "TimeoutError" ? "The stacks were not read in time." : "The status process does not answer.");
  }
  if (!response.ok) {
    const [line] = (await response.text()).split("\n");
    // Either there is no such address, or no such worker.
    if (response.status === 404) throw new Error(line.startsWith("pid ") ? "The worker has ended." : "This server does not read stacks.");
    throw new Error(`The stacks cannot be read: ${line || response.statusText} (${response.status})`);
  }
  let found;
  try {
    found = await response.json();
  } catch {
    throw new Error("The stacks cannot be read: the answer is not JSON.");
  }
  const worker = found.workers.find((each) => each.pid === pid);
  if (!worker) throw new Error("The worker has ended.");
  if (worker.error) throw new Error(`The stacks of worker ${worker.number} cannot be read: ${worker.error}`);
  return worker;
}

function frames(thread) {
  if (!thread.frames.length) return element("p", { className: "empty" }, "The thread runs no Python code.");
  return element(
    "ol",
    { className: "frames" },
    ...thread.frames.map((frame) =>
      element("li", {}, element("code", {}, frame.function), " ", element("span", {}, `${frame.file}:${frame.line}`)),
    ),
  );
}

const doing = ({ state, waits_for: what }) => (what ? `${state}: ${what}` : state);

function interpreter(thread) {
  if (thread.holds_interpreter === null) return "";
  return thread.holds_interpreter ? "holds the interpreter" : "does not hold the interpreter";
}

// What both have in common: a line of facts, a button, and a place for stacks.
class Details {
  constructor(pid, title) {
    this.pid = pid;
    this.facts = element("dl", { className: "facts" });
    this.note = element("p", { className: "note", role: "status" });
    this.stacks = element("div", { className: "stacks" });
    this.again = element("button", { type: "button" }, "Read again");
    this.again.addEventListener("click", () => this.read());
    this.node = element("div", {}, this.facts, element("div", { className: "heading" }, element("h3", {}, term("stack", title)), this.again, this.note), this.stacks);
    this.read();
  }

  async read() {
    this.again.disabled = true;
    say(this.note, "Reading …");
    try {
      const worker = await readStacks(this.pid);
      say(this.note, [`Read at ${clock.format(new Date())}`, worker.note].filter(Boolean).join("; "));
      this.show(worker.threads);
    } catch (error) {
      say(this.note, error.message);
    }
    this.again.disabled = false;
  }
}

class FlightDetails extends Details {
  constructor(flight) {
    super(flight.request.pid, "Python stack");
    this.flight = flight;
  }

  update(flight) {
    const { request } = flight;
    if (flight.ended && !this.flight.ended) say(this.note, "The request has ended.");
    this.flight = flight;
    // Further requests have nothing to read.
    this.again.hidden = flight.ended === true;
    facts(this.facts, [
      ["target", "request", `${request.method} ${request.target}`],
      ...idFact(request),
      ["phase", flight.ended ? "ended after about" : "phase", flight.ended ? lasting(request.seconds) : flight.phase.name],
      ["client", "client", request.client || "UNIX socket"],
      ["began", "began", clock.format(flight.began)],
      ["request_worker", "worker", `${request.worker}, process ${request.pid}`],
      ["thread", "thread", String(request.thread)],
      ["id", "number", String(request.id)],
    ]);
  }

  show(threads) {
    const { request } = this.flight;
    const thread = threads.find((each) => each.request?.id === request.id) ?? threads.find((each) => !each.request && each.thread === request.thread);
    if (!thread) {
      say(this.note, "The request has ended; its thread runs another one.");
      return;
    }
    const said = [thread.name, doing(thread), interpreter(thread)].filter(Boolean).join(", ");
    this.stacks.replaceChildren(element("p", { "data-explain": "thread_state" }, said), frames(thread));
  }
}

class WorkerDetails extends Details {
  constructor(worker) {
    super(worker.pid, "Threads and their Python stacks");
  }

  update() {}

  show(threads) {
    const open = new Set([...this.stacks.querySelectorAll("details[open]")].map((each) => each.dataset.thread));
    this.stacks.replaceChildren(
      ...threads.map((thread) => {
        const { request } = thread;
        const title = element(
          "summary",
          {},
          element("b", {}, String(thread.name || "thread")),
          element("span", { className: "number" }, String(thread.thread)),
          element("span", { "data-explain": "thread_state" }, [doing(thread), interpreter(thread)].filter(Boolean).join(", ")),
          element("span", { className: "target" }, request ? `${request.method} ${request.target}` : ""),
          element("code", {}, thread.frames[0]?.function ?? ""),
        );
        return element("details", { "data-thread": String(thread.thread), open: open.has(String(thread.thread)) }, title, frames(thread));
      }),
    );
  }
}
