"""`tailrace top`: what the threads of a running server do, live in the terminal. Imports textual (the extra `top`).

Threads: one asks the server again and again; the main thread draws. The values are replaced, never changed.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Static

from tailrace.printable import printable_document
from tailrace.stacks.process import EXPLAINED, FOR_INTERPRETER, IDLE, RUNNING, WAITING, thread_lines
from tailrace_tools.live import responses
from tailrace_tools.live.ask import Asked, AskError

# What stands in the column instead of a long state.
_SHORT: Final = {FOR_INTERPRETER: "waiting: GIL"}
_HOLDS: Final = "running: GIL"
_KEYS: Final = "Enter stack  e endpoints  s slow  ? help  1-6 sort  r reverse  i idle  q quit"
# Characters that each column has beside its text.
_PADDING: Final = 2
# Characters beside a page that scrolls; and those that every page is made for.
_SCROLLBAR: Final = 2
_MIN_WIDTH: Final = 78


@dataclass(frozen=True)
class Row:
    """A thread of a worker, or a request in a greenlet of it."""

    worker: int
    found: Mapping[str, Any]

    @property
    def key(self) -> tuple[int, ...]:
        """Identifies a thread between two readings; a greenlet's request has its number."""
        asked = self.found["request"]
        return self.worker, self.found["thread"], asked["id"] if asked and self.found["name"] == "greenlet" else 0

    @property
    def state(self) -> str:
        """Short, with GIL where the thread holds or wants the interpreter, and with what else it waits for."""
        state: str = self.found["state"]
        # A server of an earlier version does not say it.
        if state == WAITING and (waits_for := self.found.get("waits_for")):
            return f"{state}: {waits_for}"
        return _HOLDS if state == RUNNING and self.found["holds_interpreter"] else _SHORT.get(state, state)

    @property
    def seconds(self) -> float:
        """How long its request has run; -1: there is none."""
        return float(self.found["request"]["seconds"]) if self.found["request"] else -1.0

    @property
    def request(self) -> str:
        """Method and target."""
        asked = self.found["request"]
        return f"{asked['method']} {asked['target']}" if asked else ""

    @property
    def place(self) -> str:
        """The innermost call."""
        frames = self.found["frames"]
        if not frames:
            return ""
        return f"{frames[0]['function']} {frames[0]['file'].rpartition('/')[2]}:{frames[0]['line']}"

    @property
    def cells(self) -> list[Text]:
        """What each column shows of it."""
        return [Text(each.text(self), no_wrap=True, overflow="ellipsis") for each in COLUMNS]

    @property
    def stack(self) -> str:
        """The thread with its stack and its state, explained if this version knows the state."""
        lines = [f"worker {self.worker}", *thread_lines(self.found), "", f"  {EXPLAINED.get(self.found['state'], '')}"]
        return "\n".join(lines if self.found["frames"] else [*lines, "  no Python frames"])


@dataclass(frozen=True)
class Column:
    """A column. width: in characters; 0: a part of what the others leave. falls: sorted with the largest first."""

    title: str
    width: int
    text: Callable[[Row], str]
    key: Callable[[Row], Any]
    explained: str
    falls: bool = False


COLUMNS: Final = (
    Column("wkr", 3, lambda row: str(row.worker), lambda row: row.key, "number of the worker process"),
    Column(
        "thread",
        7,
        lambda row: str(row.found["thread"]),
        lambda row: row.found["thread"],
        "the kernel's thread id, as ps -L and gdb show it",
    ),
    Column(
        "state",
        15,
        lambda row: row.state,
        lambda row: row.state,
        "what the thread is doing or waiting for; see the states",
    ),
    Column(
        "time, s",
        8,
        lambda row: f"{row.seconds:8.2f}" if row.found["request"] else "",
        lambda row: row.seconds,
        "how long its request has been running, in seconds",
        falls=True,
    ),
    Column("request", 0, lambda row: row.request, lambda row: row.request, "method and target of its request"),
    Column("at", 0, lambda row: row.place, lambda row: row.place, "the innermost Python call: function, file, line"),
)
_BY_SECONDS: Final = 3

# The figures of the first lines.
FIGURES: Final = {
    "up": "time since the master started, in seconds",
    "ready": "whether a worker is serving; if not, the reason",
    "workers": "workers serving, of the workers wanted",
    "connections": "open connections of clients",
    "held": "connections held without a thread, by the holder process",
    "published/s": "events published to held connections, per second",
    "requests/s": "requests answered by the application, per second",
    "running": "requests running in the application",
    "queued": "complete requests waiting for a thread or greenlet",
    "passed": "requests passed to the worker that has their session (--sticky)",
    "refused": "requests and connections refused by the server itself",
    "stuck": "threads still in a request whose deadline has passed",
    "memory": "total resident memory of the workers",
}


# What a key shows of the status instead of the table.
PAGES: Final = {"endpoints": responses.endpoint_text, "slow": responses.recent_text}


@dataclass(frozen=True)
class Look:
    """The server at one moment; `at` by the monotonic clock."""

    at: float
    status: Mapping[str, Any]
    workers: list[dict[str, Any]]

    def rows(self, column: int, reversed_: bool, *, idle: bool) -> list[Row]:
        """The threads, sorted by a column; reversed_: the other way round. idle: with those that have nothing to do."""
        by = COLUMNS[column]
        rows = [Row(worker["number"], each) for worker in self.workers for each in worker["threads"]]
        rows = [row for row in rows if idle or row.found["state"] != IDLE]
        return sorted(rows, key=by.key, reverse=by.falls != reversed_)

    def figures(self, before: Look | None) -> dict[str, str]:
        """The figures by name; before: an earlier look, for what is per second."""
        totals, workers = self.status["totals"], self.status["workers"]
        # A server of an earlier version has no such process.
        held, held_before = self.status.get("held"), before and before.status.get("held")
        rate = published = ""
        if before is not None and self.at > before.at:
            answered = totals["requests"] - before.status["totals"]["requests"]
            rate = f"{max(0, answered) / (self.at - before.at):.0f}"
            # A new process counts from 0.
            if held and held_before and held["pid"] == held_before["pid"]:
                published = f"{(held['published'] - held_before['published']) / (self.at - before.at):.0f}"
        serving = sum(each["state"] == "serving" for each in workers)
        memory = sum(each["rss_bytes"] or 0 for each in workers)
        shown = {name: str(totals.get(name, 0)) for name in ("connections", "running", "queued", "refused", "stuck")}
        found = {
            **shown,
            "up": f"{self.status['uptime_seconds']:.0f} s",
            "ready": "yes" if self.status["ready"] else self.status["reason"],
            "workers": f"{serving}/{self.status['workers_wanted']}",
            "held": str(held["connections"]) if held else "",
            # Only --sticky passes requests. A server of an earlier version does not count them.
            "passed": str(totals.get("passed") or ""),
            "published/s": published,
            "requests/s": rate,
            "memory": f"{memory / (1 << 20):.0f} MiB",
        }
        return {name: found[name] for name in FIGURES}

    def check(self, before: Look | None) -> None:
        """Builds every text that is drawn, as a trial. Raises an error that `Asked.understood` catches if the server's
        documents have an unexpected form: an error while drawing would end the program.

        before: the look that is drawn now, from which this one's rates are computed.
        """
        self.heading(before)
        # The rates of the first look and of the next one are computed from the same keys.
        self.heading(dataclasses.replace(self, at=self.at - 1))
        self.faults()
        for column in range(len(COLUMNS)):
            self.rows(column, False, idle=True)
        for row in self.rows(_BY_SECONDS, False, idle=True):
            _ = row.key, row.cells, row.stack
        for page in PAGES.values():
            self.page(page, _MIN_WIDTH)

    def heading(self, before: Look | None) -> str:
        """The application and the figures, as a line."""
        application: str = self.status["application"]
        return "  ".join([application, *(f"{name} {value}" for name, value in self.figures(before).items() if value)])

    def faults(self) -> str:
        """What could not be read, and what is to be known, a line each."""
        said = dict.fromkeys(each["error"] or each["note"] for each in self.workers)
        return "\n".join(each for each in said if each)

    def page(self, text: Callable[[Mapping[str, Any], int], str], width: int) -> str:
        """One of PAGES for a terminal of this width, if the server's version has it."""
        if "endpoints" in self.status:
            return text(self.status, width)
        return f"Tailrace {self.status['version']} does not report this"


def explanation() -> str:
    """Each figure, column and state in one line."""
    parts = {
        "Figures": FIGURES,
        "Columns": {each.title: each.explained for each in COLUMNS},
        "States": {_SHORT.get(state, state): said for state, said in EXPLAINED.items()}
        | {_HOLDS: "the thread is computing and holds the interpreter (the GIL)"},
    }
    return "\n\n".join(
        "\n".join([title, *(f"  {name:<13} {said}" for name, said in part.items())]) for title, part in parts.items()
    )


class Page(ModalScreen[None]):
    """A text over the table, which a key closes. refresh: the text again, for one that changes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,e,s,enter,question_mark", "dismiss"),
    ]

    def __init__(self, text: Callable[[], str]) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """The text, which scrolls."""
        yield VerticalScroll(Static(self._text(), id="text", markup=False))
        yield Static("Escape back  arrows scroll", id="keys", markup=False)

    def renew(self) -> None:
        """Shows the text as it is now."""
        # As long as the page is not composed, there is none.
        for text in self.query("#text").results(Static):
            text.update(self._text())


class Top(App[None]):
    """The program. interval: between two looks, in seconds."""

    CSS = """
    #figures { height: auto; }
    #said { height: auto; color: $warning; }
    #keys { height: 1; dock: bottom; background: $panel; }
    DataTable { height: 1fr; }
    Page { background: $surface; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "explain"),
        *(Binding(str(number + 1), f"sort({number})") for number in range(len(COLUMNS))),
        Binding("r", "reverse"),
        Binding("i", "idle"),
        Binding("e", "endpoints"),
        Binding("s", "slow"),
        Binding("q", "quit"),
    ]

    def __init__(self, asked: Asked, interval: float) -> None:
        super().__init__()
        self._asked, self._interval = asked, interval
        self._over = threading.Event()
        self._look: Look | None = None
        self._rows: list[Row] = []
        self._by, self._reversed, self._idle = _BY_SECONDS, False, False

    def compose(self) -> ComposeResult:
        """Figures, the table, what is to be said, the keys."""
        yield Static(f"asking {self._asked.address}", id="figures", markup=False)
        table: DataTable[Text] = DataTable(cursor_type="row")
        yield table
        yield Static("", id="said", markup=False)
        yield Static(_KEYS, id="keys", markup=False)

    def on_mount(self) -> None:
        """Begins to ask."""
        self.run_worker(self._ask, thread=True)

    def on_unmount(self) -> None:
        """Ends the thread that asks."""
        self._over.set()

    def on_resize(self, _event: events.Resize) -> None:
        """Other widths of columns."""
        self.call_after_refresh(self._draw)
        if isinstance(self.screen, Page):
            self.screen.renew()

    def _ask(self) -> None:
        while not self._over.is_set():
            try:
                found: Look | str = self._read()
            except AskError as error:
                found = str(error)
            if self._over.is_set():
                return
            self.call_from_thread(self._show, found)
            self._over.wait(self._interval)

    def _read(self) -> Look:
        status, workers = self._asked.status(), self._asked.stacks()
        with self._asked.understood():
            look = Look(time.monotonic(), printable_document(status), printable_document(workers))
            look.check(self._look)
        return look

    def _show(self, found: Look | str) -> None:
        if not self.query("#said"):
            # The program ends, and its widgets are gone already.
            return
        if isinstance(found, str):
            self.query_one("#said", Static).update(found)
            return
        before, self._look = self._look, found
        self.query_one("#figures", Static).update(found.heading(before))
        self.query_one("#said", Static).update(found.faults())
        self._draw()
        if isinstance(self.screen, Page):
            self.screen.renew()

    def _draw(self) -> None:
        if self._look is None:
            return
        table = self.screen_stack[0].query_one(DataTable)
        chosen = self._chosen()
        self._rows = self._look.rows(self._by, self._reversed, idle=self._idle)
        fixed = sum(each.width for each in COLUMNS) + len(COLUMNS) * _PADDING + _PADDING
        wide = max(10, (self.size.width - fixed) // 2)
        table.clear(columns=True)
        for number, each in enumerate(COLUMNS):
            mark = ("▼" if each.falls != self._reversed else "▲") if number == self._by else ""
            table.add_column(Text(each.title + mark), width=each.width or wide)
        for row in self._rows:
            table.add_row(*row.cells)
        at = next((at for at, row in enumerate(self._rows) if chosen is not None and row.key == chosen.key), 0)
        table.move_cursor(row=at)

    def _chosen(self) -> Row | None:
        at = self.screen_stack[0].query_one(DataTable).cursor_row
        return self._rows[at] if 0 <= at < len(self._rows) else None

    def action_sort(self, column: int) -> None:
        """Sorts by a column; by the same one again: the other way round."""
        self._reversed = not self._reversed if column == self._by else False
        self._by = column
        self._draw()

    def action_reverse(self) -> None:
        """Sorts the other way round."""
        self._reversed = not self._reversed
        self._draw()

    def action_idle(self) -> None:
        """Shows or hides threads that have nothing to do."""
        self._idle = not self._idle
        self._draw()

    def action_explain(self) -> None:
        """What each figure means."""
        self.push_screen(Page(explanation))

    def action_endpoints(self) -> None:
        """The cost of endpoints."""
        self.push_screen(Page(lambda: self._page("endpoints")))

    def action_slow(self) -> None:
        """The last slow and broken responses."""
        self.push_screen(Page(lambda: self._page("slow")))

    def _page(self, name: str) -> str:
        if self._look is None:
            return "the server has not responded yet"
        return self._look.page(PAGES[name], max(_MIN_WIDTH, self.size.width - _SCROLLBAR))

    def on_data_table_row_selected(self, _event: DataTable.RowSelected) -> None:
        """The stack of the thread, as it is now, as long as it is shown."""
        chosen = self._chosen()
        if chosen is None:
            return

        def text() -> str:
            rows = self._look.rows(self._by, self._reversed, idle=True) if self._look else []
            now = next((row for row in rows if row.key == chosen.key), None)
            if now is None:
                return f"thread {chosen.found['thread']} has ended"
            return now.stack

        self.push_screen(Page(text))


def run(asked: Asked, interval: float) -> None:
    """Runs the program until its user leaves it. Raises AskError when the server does not answer at the start."""
    asked.status()
    Top(asked, interval).run()
