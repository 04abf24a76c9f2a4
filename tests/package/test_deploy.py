"""What is in deploy/ names metrics, labels and values that /metrics has."""

import json
import os
import re
from pathlib import Path

import pytest
from package.in_status import Board, holding, shared, worker
from package.test_status_pages import families

from tailrace.master.recycle import Reason

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SELECTOR = re.compile(r'(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"')
# What Prometheus adds to each series.
ADDED = {"job", "instance"}


def expressions(name):
    if name == "grafana.json":
        board = json.loads((DEPLOY / name).read_text())
        return [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    text = (DEPLOY / name).read_text()
    found = re.findall(r"^ +expr: (?:>-\n((?: {10}.*\n)+)|(.*)\n)", text, re.MULTILINE)
    assert len(found) == text.count("- alert:")
    return ["".join(each) for each in found]


@pytest.fixture(scope="module")
def series():
    """By name: the values of each label."""
    found = {}
    with holding() as address:
        more = {"restarts": {reason.value: 0 for reason in Reason}, "holder": os.getpid(), "holder_address": address}
        read = families(Board({}), shared(worker(), **more))
    for family in read:
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    # Absent where the memory of a process cannot be read, as that of this one, which does not exist.
    return {**found, "tailrace_workers_proportional_memory_bytes": {}}


@pytest.mark.parametrize("name", ["grafana.json", "alerts.yml"])
def test_every_metric_label_and_value_exists(name, series):
    used = set()
    for expression in expressions(name):
        names = re.findall(r"(tailrace_\w+)(?:\{([^}]*)\})?", expression)
        assert names, expression
        for metric, selectors in names:
            assert metric in series, expression
            used.add(metric)
            for label, operator, value in SELECTOR.findall(selectors):
                if label in ADDED:
                    continue
                assert label in series[metric], expression
                for each in value.split("|") if "~" in operator else [value]:
                    assert each in series[metric][label], (each, expression)
        grouped = re.findall(r"(?:by|without) \(([^)]*)\)", expression)
        labels = {label.strip() for group in grouped for label in group.split(",")}
        assert labels <= {label for metric, _ in names for label in series[metric]}, expression
    everywhere = ("queue_requests", "worker_restarts_total", "requests_timed_out_total", "refused_total")
    for wanted in (*everywhere, "held_closed_total", "held_connections", "bus_connected", "bus_waiting"):
        assert f"tailrace_{wanted}" in used


def test_the_dashboard_has_its_panels_beside_each_other():
    board = json.loads((DEPLOY / "grafana.json").read_text())
    cells = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in cells, panel["title"]
                cells.add((x, y))
        assert panel["description"].endswith("."), panel["title"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert max(x for x, _ in cells) < 24
