"""What to fix, as the record of one response shows it: one that was slow, or did not end well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.findings import figures
from tailrace.findings.figures import Figures
from tailrace.findings.finding import RAISED, SLOW, Finding, before_first_block, time_of


def findings(record: Mapping[str, Any], application: str) -> list[Finding]:
    """All that fits, the gravest first. record: as `Scoreboard.recent` has it; application: as it was named."""
    found = [*_ended(record), *_spent(record, application)]
    return found + [one for one in figures.findings(_figures(record), application) if one.key != "exception"]


def _figures(record: Mapping[str, Any]) -> Figures:
    application = 1e3 * (record["application"] + record["iterating"])
    return Figures(
        responses=1,
        application=application,
        delivery=0.0 if record["event_stream"] else 1e3 * record["iterating"],
        blocked=1e3 * record["blocked"],
        blocks=record["blocks"],
        writes=record["writes"],
        bytes=record["body_bytes"],
        paths={record["path"]: 1},
        gone=int(record["ending"] == "client-disconnected"),
        event_streams=int(record["event_stream"]),
        streaming=application if record["event_stream"] else 0.0,
    )


def _ended(record: Mapping[str, Any]) -> list[Finding]:
    """Why the client did not get what it asked for."""
    ending, status = record["ending"], record["status"]
    if ending == "timed-out":
        return [
            Finding(
                "deadline",
                "The deadline of the request passed.",
                "The client got 504, or a truncated response. The log contains the stack of the thread.",
                "Make the request faster, or give it more time.",
                'environ["tailrace.set_deadline"](120)  # seconds\n# in Flask and Django, environ is '
                "request.environ\n# or for all requests: --request-timeout 120",
            )
        ]
    if ending == "cut":
        return [
            Finding(
                "cut",
                "The server ended before the response was complete.",
                "The client can tell that the response is truncated.",
                "Give requests more time when the server stops.",
                "--graceful-timeout 60",
            )
        ]
    if ending == "broken":
        what = (
            "The response was truncated: the application raised an exception, or returned fewer bytes than its "
            "Content-Length."
        )
        return [Finding("exception", what, "The client can tell. The log states the cause.", *RAISED)]
    if status >= 500:
        what = f"The application failed: status {status}."
        return [Finding("exception", what, "The log contains the exception if it was not caught.", *RAISED)]
    return []


def _spent(record: Mapping[str, Any], application: str) -> list[Finding]:
    """Where most of the time went, if it was before the first block."""
    queued, called, iterating = record["queued"], record["application"], record["iterating"]
    if queued > max(called, iterating) and queued >= 0.1:
        return [
            Finding(
                "queue",
                f"The request waited for a free thread for {time_of(1e3 * queued)}.",
                "All threads were busy, or one of them held the interpreter.",
                "Run more requests at once, or find out what occupies the threads.",
                f"tailrace {application} --workers 4 --threads 64\ntailrace threads --status ADDRESS",
            )
        ]
    if called >= max(queued, iterating) and 1e3 * called >= SLOW and not record["event_stream"]:
        spent = (1e3 * (called + iterating), 1e3 * record["cpu"])
        return [before_first_block(1e3 * called, application, spent=spent)]
    return []
