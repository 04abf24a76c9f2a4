"""The endpoints of `/status.json`, and its slow and broken responses, as text for `tailrace top`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# The suffix of keys that are times of a response.
_SECONDS: Final = "_seconds"


def endpoint_text(found: Mapping[str, Any]) -> str:
    """The endpoints of a document, for a terminal."""
    lines = [
        f"{'cost, s':>9} {'responses':>10} {'mean, ms':>9} {'p95, ms':>9} {'app, ms':>9} {'calls':>6} {'path':9} "
        "endpoint, with what to fix"
    ]
    for each in found["endpoints"]:
        number = max(1, each["responses"])
        # Servers of earlier versions do not send them.
        mean, p95 = (_milliseconds(each.get(key)) for key in ("mean_seconds", "p95_seconds"))
        lines.append(
            f"{each['cost_seconds']:>9,.3f} {each['responses']:>10,} {mean:>9} {p95:>9} "
            f"{_milliseconds(each['application_seconds'] / number):>9} {each['writes'] / number:>6,.1f} "
            f"{each['path']:9} {each['endpoint']}"
        )
        lines += [f"    {one['key']}: {one['what']} {one['change']}" for one in each["findings"]]
        # Servers of earlier versions do not send hints.
        lines += [f"    {one['key']}: {one['what']} {one['cost']}" for one in each.get("hints", ())]
    return "\n".join(lines if found["endpoints"] else ["the application has not sent any response yet"])


def recent_text(found: Mapping[str, Any]) -> str:
    """The slow and broken responses of a document, for a terminal."""
    lines: list[str] = []
    for kind in ("slow", "broken"):
        lines += [f"the last {kind} responses", ""] if found[kind] else [f"no response was {kind}", ""]
        for each in found[kind]:
            times = ((key.removesuffix(_SECONDS), time) for key, time in each.items() if key.endswith(_SECONDS))
            phases = ", ".join(f"{phase} {_time(time)}" for phase, time in times if time)
            request_id = f" (id {each['request_id']})" if each.get("request_id") else ""
            lines += [
                f"  {each['method']} {each['target']}{request_id}",
                f"    {each['time'][11:19]} UTC, worker {each['worker']}: {each['status']} {each['ending']}; {phases}",
                *(f"    {one['key']}: {one['what']} {one['change']}" for one in each["findings"]),
                "",
            ]
    return "\n".join(lines)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:,.2f}"


def _time(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{1e3 * seconds:,.2f} ms"
