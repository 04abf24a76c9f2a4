"""Metrics of the application on `/metrics`: exact over all workers, and kept when workers are replaced."""

import os
import re
import signal
import urllib.request

import pytest
from harness.addresses import free_address
from harness.operated import Checking, Operated
from harness.tools import need_module
from prometheus_client.parser import text_string_to_metric_families

APP = """
import os

from tailrace import metrics

metrics.share_prometheus_client()

from prometheus_client import Counter, Gauge, Histogram

ASKED = Counter("asked", "Requests.", ["pid"])
ALL = Counter("all", "Requests.")
BUSY = Gauge("busy", "Workers that have answered.", multiprocess_mode="sum")
TIMES = Histogram("times", "Times.", buckets=[1.0])

def app(environ, start_response):
    with TIMES.time():
        ALL.inc()
        ASKED.labels(os.getpid()).inc()
        BUSY.set(1)
        start_response("200 OK", [("Content-Type", "text/plain")])
        body = environ["PATH_INFO"].encode()
    return [body]
"""


class Served(Operated):
    """A server of an application with metrics."""

    def __init__(self, folder, app, *arguments):
        (folder / "app.py").write_text(app)
        self.status = free_address()
        super().__init__(folder, "app:app", "--status", self.status.bind, *arguments)

    def samples(self):
        """All samples: name and labels, and the value."""
        with urllib.request.urlopen(f"{self.status.url}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        found = [each for family in text_string_to_metric_families(text) for each in family.samples]
        return {(each.name, *sorted(each.labels.items())): each.value for each in found}


class Clients(Checking):
    """They ask for paths that come back."""

    @staticmethod
    def body(number):
        return f"/{number}".encode()


@pytest.mark.parametrize("more", [[], ["--preload"], ["--gevent"]], ids=["threads", "preload", "gevent"])
def test_they_are_exact_over_workers_and_kept_when_these_are_replaced(tmp_path, more):
    with Served(tmp_path, APP, "--workers", "3", *more) as server:
        server.logged("ready in", 3)
        with Clients(server.address) as clients:
            server.until(lambda: server.samples().get(("all_total",), 0) > 500, "requests")
            server.tell(signal.SIGHUP)
            server.replaced()
            clients.go_on()
        asked = sum(clients.counts.values())
        samples = server.samples()
        by_worker = {key: value for key, value in samples.items() if key[0] == "asked_total"}
        assert samples[("all_total",)] == sum(by_worker.values()) == samples[("times_count",)]
        assert samples[("times_bucket", ("le", "+Inf"))] == samples[("all_total",)] == asked > 500
        assert len(by_worker) > 3
        assert samples[("busy",)] == 3
        assert samples[("tailrace_application_metrics_refused_total",)] == 0
        server.stop()


def test_a_killed_worker_loses_nothing_but_its_own_gauge(tmp_path):
    with Served(tmp_path, APP, "--workers", "1") as server:
        server.serves()
        for _ in range(5):
            assert server.get("/a").body == b"/a"
        (killed,) = map(int, re.findall(r"worker 1 \(pid (\d+)\) ready", server.log))
        assert server.samples()[("busy",)] == 1
        os.kill(killed, signal.SIGKILL)
        server.logged("ready in", 2)
        samples = server.samples()
        assert samples[("all_total",)] == 5
        assert samples.get(("busy",), 0) == 0
        assert server.get("/a").status == 200
        samples = server.samples()
        assert (samples[("all_total",)], samples[("busy",)]) == (6, 1)
        server.stop()


FLASK = """
from tailrace import metrics

metrics.share_prometheus_client()

from flask import Flask
from prometheus_flask_exporter import PrometheusMetrics

app = Flask(__name__)
PrometheusMetrics(app, path=None)

@app.get("/seeds")
def seeds():
    return "seeds"
"""
DJANGO = """
from tailrace import metrics

metrics.share_prometheus_client()

import django
from django.conf import settings

settings.configure(
    ALLOWED_HOSTS=["*"],
    INSTALLED_APPS=["django_prometheus"],
    MIDDLEWARE=[
        "django_prometheus.middleware.PrometheusBeforeMiddleware",
        "django_prometheus.middleware.PrometheusAfterMiddleware",
    ],
    PROMETHEUS_EXPORT_MIGRATIONS=False,
    ROOT_URLCONF=__name__,
    SECRET_KEY="tests",
)
django.setup()

from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path

urlpatterns = [path("seeds", lambda request: HttpResponse("seeds"), name="seeds")]
app = get_wsgi_application()
"""


@pytest.mark.parametrize(
    ("module", "app", "counter", "labels"),
    [
        ("prometheus_flask_exporter", FLASK, "flask_http_request_total", {"method": "GET", "status": "200"}),
        (
            "django_prometheus",
            DJANGO,
            "django_http_responses_total_by_status_view_method_total",
            {"method": "GET", "status": "200", "view": "seeds"},
        ),
    ],
    ids=["flask", "django"],
)
def test_existing_instrumentation_counts_over_all_workers(tmp_path, module, app, counter, labels):
    need_module(module)
    with Served(tmp_path, app, "--workers", "2") as server:
        server.logged("ready in", 2)
        for _ in range(60):
            assert server.get("/seeds").body == b"seeds"
        assert server.samples()[(counter, *sorted(labels.items()))] == 60
        assert not list(tmp_path.glob("**/*.db"))
        server.stop()
