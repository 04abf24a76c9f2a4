"""The agents of APM services, as they are: each sees every request of every worker, and loses none when it exits.

docs/guides/opentelemetry.md has the same commands.
"""

import contextlib
import json
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from harness.collector import Collector
from harness.encrypted import authority_in
from harness.intake import Intake, ScoutAgent
from harness.operated import Operated

SCRIPTS = Path(sys.executable).parent
APP = """
from flask import Flask
{before}
app = Flask(__name__)
{after}
@app.get("/orders/<int:number>")
def order(number):
    return {{"number": number}}

@app.get("/missing")
def missing():
    return "none", 404

@app.get("/fail")
def fail():
    raise ValueError("no stock")
"""
ORDERS = 8
MODES = {"forked": (), "preload": ("--preload",)}


class Agent:
    """modules: without them, its test is skipped. command: what starts the server with it. before, after: lines of the
    application, around that which creates it. hooks: the module of --hooks."""

    modules: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    before = after = hooks = ""

    @contextlib.contextmanager
    def taking(self, directory):
        """What it sends to: the variables that say so, and what `seen` reads."""
        with Intake() as intake:
            yield self.environment(intake.url), intake

    def environment(self, url):
        raise NotImplementedError

    def seen(self, taken):
        """The name and the status of each request, and the exceptions."""
        raise NotImplementedError


class NewRelic(Agent):
    modules = ("newrelic",)
    command = ("newrelic-admin", "run-program")
    hooks = (
        "def post_fork(worker):\n    import newrelic.agent\n\n    newrelic.agent.register_application(timeout=10.0)\n"
    )
    name = "WebTransaction/Function/{module}:{function}"

    @contextlib.contextmanager
    def taking(self, directory):
        authority = authority_in(directory)
        with Intake(authority) as intake:
            variables = {
                "LICENSE_KEY": "0" * 40,
                "APP_NAME": "shop",
                "HOST": "localhost",
                "PORT": str(intake.port),
                "CA_BUNDLE_PATH": str(authority.root),
            }
            yield {f"NEW_RELIC_{name}": value for name, value in variables.items()}, intake

    def seen(self, taken):
        events = [event for body in of(taken, "analytic_event_data") for event in body[2]]
        errors = [event[0]["error.class"] for body in of(taken, "error_event_data") for event in body[2]]
        names = [event[0]["name"].removeprefix("WebTransaction/Function/shop:") for event in events]
        return [(name, int(event[2]["response.status"])) for name, event in zip(names, events, strict=True)], [
            error.removeprefix("builtins:") for error in errors
        ]


def of(intake, method):
    """The bodies of New Relic's requests with this method."""
    return [json.loads(sent.body) for sent in intake.sent if sent.query.get("method") == method]


class Datadog(Agent):
    modules = ("ddtrace", "msgpack")
    command = ("ddtrace-run",)

    def environment(self, url):
        return {"DD_TRACE_AGENT_URL": url, "DD_SERVICE": "shop", "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false"}

    def seen(self, taken):
        requests, errors = [], []
        for sent in taken.sent:
            if sent.path != "/v0.5/traces":
                continue
            texts, traces = sys.modules["msgpack"].unpackb(sent.body, strict_map_key=False)
            for spans in traces:
                # Name, resource and the tags of the first; the others are its parts.
                tags = {texts[key]: texts[value] for key, value in spans[0][9].items()}
                requests.append((texts[spans[0][2]], int(tags["http.status_code"])))
                tags = [{texts[key]: texts[value] for key, value in span[9].items()} for span in spans]
                errors += {each["error.type"] for each in tags if "error.type" in each}
        return [(name.removeprefix("GET "), status) for name, status in requests], [
            error.removeprefix("builtins.") for error in errors
        ]


class Elastic(Agent):
    modules = ("elasticapm",)
    before = "from elasticapm.contrib.flask import ElasticAPM"
    after = "ElasticAPM(app)"
    # Its own exit function waits for the last batch only if the process has sent none before.
    hooks = """
def worker_stop(worker):
    import threading
    import elasticapm

    elasticapm.get_client().close()
    for thread in threading.enumerate():
        if thread.name == "eapm event processor thread":
            thread.join(5.0)
"""

    def environment(self, url):
        return {"ELASTIC_APM_SERVER_URL": url, "ELASTIC_APM_SERVICE_NAME": "shop"}

    def seen(self, taken):
        events = [event for sent in taken.sent if sent.path.startswith("/intake/") for event in sent.lines()]
        requests = [event["transaction"] for event in events if "transaction" in event]
        errors = [event["error"]["exception"]["type"] for event in events if "error" in event]
        # For an exception, it sends only the class of the status.
        status = {"HTTP 2xx": 200, "HTTP 4xx": 404, "HTTP 5xx": 500}
        return [(each["name"].removeprefix("GET "), status[each["result"]]) for each in requests], errors


class Scout(Agent):
    modules = ("scout_apm",)
    before = "from scout_apm.flask import ScoutApm"
    after = "ScoutApm(app)"

    @contextlib.contextmanager
    def taking(self, directory):
        with ScoutAgent() as agent:
            variables = {
                "MONITOR": "true",
                "KEY": "key",
                "NAME": "shop",
                "CORE_AGENT_DOWNLOAD": "false",
                "CORE_AGENT_LAUNCH": "false",
                "CORE_AGENT_SOCKET_PATH": agent.url,
                "ERRORS_ENABLED": "false",
            }
            yield {f"SCOUT_{name}": value for name, value in variables.items()}, agent

    def seen(self, taken):
        names = [command["StartSpan"]["operation"] for command in taken.commands if "StartSpan" in command]
        tags = [command["TagRequest"]["tag"] for command in taken.commands if "TagRequest" in command]
        requests = [name.removeprefix("Controller/shop.") for name in names if name.startswith("Controller/")]
        # It sends no statuses and, in this way, no types of exceptions.
        return [(name, STATUS[name]) for name in requests], ["ValueError"] * tags.count("error")


class Sentry(Agent):
    modules = ("sentry_sdk",)
    before = "import os, sentry_sdk\nsentry_sdk.init(dsn=os.environ.get('SENTRY_DSN'), traces_sample_rate=1.0)"

    def environment(self, url):
        return {"SENTRY_DSN": url.replace("//", "//key@") + "/1"}

    def seen(self, taken):
        events = [event for sent in taken.sent for event in sent.lines()]
        requests = [event for event in events if event.get("type") == "transaction" and "transaction" in event]
        errors = [event["exception"]["values"][0]["type"] for event in events if "exception" in event]
        return [(each["transaction"], each["contexts"]["response"]["status_code"]) for each in requests], errors


class OpenTelemetry(Agent):
    modules = ("opentelemetry.distro", "opentelemetry.instrumentation.flask")
    command = ("opentelemetry-instrument",)

    @contextlib.contextmanager
    def taking(self, directory):
        with Collector() as collector:
            yield (
                {
                    "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
                    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                    "OTEL_SERVICE_NAME": "shop",
                },
                collector,
            )

    def seen(self, taken):
        spans = taken.spans()
        names = [(span.name.removeprefix("GET "), span.attributes["http.status_code"]) for span in spans]
        return names, ["ValueError" for span in spans if span.is_error]


STATUS = {"order": 200, "missing": 404, "fail": 500}
AGENTS = {each.__name__: each() for each in (NewRelic, Datadog, Elastic, Scout, Sentry, OpenTelemetry)}


@contextlib.contextmanager
def watched(directory, agent, *arguments, app=None):
    """A server with this agent, whose data is complete when it has stopped."""
    for module in agent.modules:
        pytest.importorskip(module)
    directory.joinpath("shop.py").write_text(app or APP.format(before=agent.before, after=agent.after))
    if agent.hooks:
        directory.joinpath("apm_hooks.py").write_text(agent.hooks)
        arguments = (*arguments, "--hooks", "apm_hooks")
    prefix = (str(SCRIPTS / agent.command[0]), *agent.command[1:], sys.executable) if agent.command else ()
    with agent.taking(directory) as (environment, taken):
        with Operated(
            directory, "shop:app", "--workers", "2", *arguments, environment=environment, prefix=prefix
        ) as server:
            server.logged("ready in", 2)
            yield server, taken


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", AGENTS)
def test_each_request_is_seen_with_its_name_and_status_in_every_worker(tmp_path, name, mode):
    agent = AGENTS[name]
    with watched(tmp_path, agent, *MODES[mode]) as (server, taken):
        for number in range(ORDERS):
            assert server.get(f"/orders/{number}").status == 200
        assert server.get("/missing").status == 404
        assert server.get("/fail").status == 500
        # What has been recorded is sent when the workers exit.
        assert server.stop() == 0
        requests, errors = agent.seen(taken)
        names = {"/orders/<int:number>": "order", "/missing": "missing", "/fail": "fail"}
        found = Counter((names.get(each, each), status) for each, status in requests)
        assert found == {("order", 200): ORDERS, ("missing", 404): 1, ("fail", 500): 1}
        assert errors == ["ValueError"]


PLAIN = """
def app(environ, start_response):
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
"""
WRAPPED = f"""{PLAIN}
import newrelic.agent
app = newrelic.agent.WSGIApplicationWrapper(app, dispatcher=("Tailrace", "1"))
"""


def test_new_relic_sees_an_application_without_a_framework_and_the_name_of_the_server_if_it_is_wrapped(tmp_path):
    agent = AGENTS["NewRelic"]
    for app, requests in ((PLAIN, 0), (WRAPPED, 1)):
        with watched(tmp_path, agent, app=app) as (server, taken):
            server.get("/one", f"X-Request-Start: t={time.time() - 0.25}")
            assert server.stop() == 0
            events = [event for body in of(taken, "analytic_event_data") for event in body[2]]
            metrics = {each[0]["name"]: each[1] for body in of(taken, "metric_data") for each in body[3]}
            assert len(events) == requests
            assert metrics.get("Python/Dispatcher/Tailrace/1", [0])[0] == requests
            # The time in the proxy.
            assert all(0.25 <= event[0]["queueDuration"] < 10 for event in events)
            assert all(event[0]["name"] == "WebTransaction/Uri/one" for event in events)


def test_scout_gets_the_time_in_the_proxy(tmp_path):
    with watched(tmp_path, AGENTS["Scout"]) as (server, taken):
        server.get("/orders/1", f"X-Request-Start: t={time.time() - 0.25}")
        assert server.stop() == 0
        tags = {
            each["TagRequest"]["tag"]: each["TagRequest"]["value"] for each in taken.commands if "TagRequest" in each
        }
        assert 0.25e9 <= tags["scout.queue_time_ns"] < 10e9
