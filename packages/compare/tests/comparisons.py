"""Documents of runs that nobody measured, for tests of reports."""

from typing import Any

MARKUP = "<script>alert('x')</script> & \"quoted\" \x1b[31m\u202e | `code` <img src=http://example.com/x>"
MACHINE = {"processor": "A processor", "cores": "2", "python": "CPython 3.11.7"}


def cell(*figures: float, errors: int = 0, notes: tuple[str, ...] = (), rounds: int | None = None) -> dict[str, Any]:
    """One server in one metric, a figure for each round."""
    middle = sorted(figures)[len(figures) // 2] if figures else None
    return {
        "median": middle,
        "rounds": {str(number): figure for number, figure in enumerate(figures)},
        "rounds_tried": len(figures) if rounds is None else rounds,
        "errors": errors,
        "notes": list(notes),
        "others": [],
    }


def metric(key: str, title: str = "", unit: str = "requests/s", more: bool = True, digits: int = 0) -> dict[str, Any]:
    title = title or key
    return {"key": key, "title": title, "short": key, "unit": unit, "more_is_better": more, "digits": digits}


def scenario(name: str, *metrics: dict[str, Any], title: str = "", group: str = "Small responses", **more: Any) -> Any:
    given = {"meaning": "", "app": "served.shapes:pong", "load": "wrk http://127.0.0.1:8000/", "commands": {}}
    return {"name": name, "title": title or name, "group": group, "metrics": list(metrics), **given, **more}


def document(*measured: tuple[dict[str, Any], dict[str, dict[str, dict[str, Any]]]], **more: Any) -> dict[str, Any]:
    """measured: scenarios, each with its cells by the metric's key and the server's name."""
    scenarios = [told for told, _ in measured]
    cells = {key: servers for _, columns in measured for key, servers in columns.items()}
    names = dict.fromkeys(name for servers in cells.values() for name in servers)
    columns = {
        each["key"]: {
            "title": each["title"],
            "unit": each["unit"],
            "more_is_better": each["more_is_better"],
            "servers": cells[each["key"]],
        }
        for told in scenarios
        for each in told["metrics"]
    }
    return {
        "when": "2026-11-23T12:00:00+00:00",
        "minutes": 3.0,
        "asked": {"command": "tailrace compare", "rounds": 4, "seconds": 1.0},
        "machine": MACHINE,
        "versions": dict.fromkeys(names, "1.0"),
        "commands": {name: f"run {name}" for name in names},
        "reasons": dict.fromkeys(names, "So its documentation says."),
        "scenarios": scenarios,
        "goals": [],
        "columns": columns,
        **more,
    }


def usual(**more: Any) -> dict[str, Any]:
    """A win, a loss, an even, a failure, errors, a floor, an absent server, and a factor of 10,000."""
    rates = {
        "tailrace": cell(200, 204, 196, 201),
        "granian": cell(100, 101, 99, 100),
        "bjoern": cell(90, 89, 91, 90, errors=3, notes=("3 time-outs",)),
        "waitress": cell(errors=2, notes=("ended with status 1: no such module",), rounds=2),
        "uwsgi http": cell(notes=("not installed",), rounds=0),
    }
    times = {
        "tailrace": cell(10.0, 10.5, 9.5, 10.0),
        "granian": cell(5.0, 5.1, 4.9, 5.0),
        "bjoern": cell(50_000.0, 51_000.0, 49_000.0, 50_000.0),
        "nginx": cell(2.0, 2.0, 2.1, 1.9),
    }
    even = {"tailrace": cell(100, 98, 102, 100), "granian": cell(101, 97, 101, 99)}
    flask = "Flask, a worker for each core"
    return document(
        (scenario("pong_c64", metric("pong_c64", "Pong"), title="Pong"), {"pong_c64": rates}),
        (scenario("words", metric("words", "Words", "ms", False, 1), group="Blocks"), {"words": times}),
        (
            scenario(
                "flask_cores",
                metric("flask_cores", flask),
                metric("flask_cores_p99", f"{flask}: p99", "ms", False, 1),
                title=flask,
                group="Frameworks",
                meaning="What people get.",
            ),
            {"flask_cores": even, "flask_cores_p99": times},
        ),
        **more,
    )


def hostile() -> dict[str, Any]:
    """Markup wherever a text of others may stand."""
    cells = {
        "tailrace": cell(1, 2, errors=1, notes=(MARKUP,)),
        MARKUP: cell(1, 3, notes=(MARKUP,)),
        f"{MARKUP}2": cell(errors=1, notes=(MARKUP,), rounds=1),
        f"{MARKUP}3": cell(notes=(MARKUP,), rounds=0),
    }
    told = scenario(
        MARKUP, metric("key", MARKUP, MARKUP), title=MARKUP, group=MARKUP, meaning=MARKUP, load=MARKUP, app=MARKUP
    )
    told["commands"] = {MARKUP: MARKUP}
    made = document((told, {"key": cells}))
    made["versions"] = dict.fromkeys(cells, MARKUP)
    made["reasons"] = dict.fromkeys(cells, MARKUP)
    made["commands"] = dict.fromkeys(cells, MARKUP)
    made["machine"] = {MARKUP: MARKUP, "processor": MARKUP}
    made["asked"] = {"command": MARKUP, "rounds": 2, "seconds": 1}
    made["goals"] = [{"metric": "key", "goal": MARKUP, "measured": MARKUP, "met": False}]
    return made


def empty() -> dict[str, Any]:
    return document()


def all_failed() -> dict[str, Any]:
    gone = {name: cell(errors=1, notes=("no answer",), rounds=1) for name in ("tailrace", "granian")}
    return document((scenario("pong", metric("pong", "Pong")), {"pong": gone}))


def alone() -> dict[str, Any]:
    return document((scenario("pong", metric("pong", "Pong")), {"pong": {"tailrace": cell(5, 6)}}))


EDGES = {
    "usual": usual,
    "hostile": hostile,
    "empty": empty,
    "all failed": all_failed,
    "alone": alone,
    "noisy": lambda: usual(noise={"refused": True, "reason": "The rounds differ by 31 %."}),
}
