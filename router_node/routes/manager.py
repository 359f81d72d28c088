"""Keeps the table of rules of one process: takes changes in, and has requests go by the newest version.

Changes come from three sides: an operator (through ``desk``), the store (through ``replica``), a file. All end in
``take``. Versions that follow each other quickly become one swap: the first at once, the next no sooner than 20 ms
later, or ten times as long as the last took to compile. What takes long to compile is compiled in slices, and requests
go by the version before until it is done.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from router_node.dispatch import Dispatcher
from router_node.routes.book import Book, Change
from router_node.routes.growth import Growth
from router_node.routes.live import LiveTable
from router_node.routes.slices import Steps, Working, turn, whole
from router_node.routes.table import RouteTable
from shared.logging import event, get

log = get("routes")

SWAP_EVERY: Final = 0.02  # seconds between two swaps at least
REST: Final = 10.0  # so many times the compilation's time passes between two
HISTORY: Final = 200  # changes that are remembered

Listener = Callable[[Book, Sequence[Change] | None], None]


class RouteManager:
    """``table`` is what requests go by. ``caps`` are the router's own caps on sampling parameters."""

    def __init__(
        self, table: RouteTable, dispatcher: Dispatcher, loop: asyncio.AbstractEventLoop, caps: Mapping[str, int]
    ) -> None:
        self.book = Book.empty()
        """The newest version that is known; requests may be a swap behind."""
        self.history: deque[Change] = deque(maxlen=HISTORY)
        """The changes that led to it, oldest first, without a gap."""
        self.listeners: list[Listener] = []
        """Told of each new version, with the changes that led there, or None where it is another table."""
        self.growth = Growth()
        """For work that makes many rules."""
        self.served_none = False
        """It is known that there were no rules, so requests may go by none until a table is ready."""
        self.swaps = 0
        self.swapped_at = 0.0  # time.time() of the last swap
        self._table = table
        self._dispatcher = dispatcher
        self._loop = loop
        self._caps = caps
        # Rules in which the newest version differs from the one that is being compiled, and that one from what requests
        # go by; None where that is not known.
        self._differ: set[str] | None = None
        self._compiling: set[str] | None = set()
        self._next = 0.0
        self._growing: Growth | None = None
        self._timer: asyncio.Handle | None = None

    @property
    def version(self) -> int:
        """The version that requests go by."""
        live = self._table.live
        return live.number if live is not None else 0

    def compiled(self, book: Book, changed: Iterable[str] | None = None) -> Steps[LiveTable]:
        """A version compiled, sharing what it can with the one that requests go by. Raises RouteError.

        ``changed`` are the rules in which it differs from the newest version; None for who knows which.
        """
        parts = (changed, self._differ, self._compiling)
        differ: set[str] | None = set()
        for part in parts:
            differ = None if part is None or differ is None else differ.union(part)
        return LiveTable.of(book.number, book.rules, self._caps, self._table.live, differ)

    def take(self, change: Change) -> None:
        """The next version. Raises RouteError when it does not follow the newest one."""
        self.book = self.book.after(change)
        self.history.append(change)
        self._changed([change])

    def take_all(self, changes: Sequence[Change]) -> None:
        """Several in a row, with one word to the listeners. Raises RouteError; what came before the fault is taken."""
        taken: list[Change] = []
        try:
            for change in changes:
                self.book = self.book.after(change)
                self.history.append(change)
                taken.append(change)
        finally:
            if taken:
                self._changed(taken)

    def reset(self, book: Book, history: Iterable[Change] = ()) -> None:
        """Another table, or a version of this one that does not follow."""
        if book is self.book or (book.lineage and book.same_as(self.book)):
            return
        self.book = book
        self.history.clear()
        self.history.extend(history)
        self._changed(None)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._grown()

    def pools(self) -> set[str]:
        """The names of pools that have nodes, with and without revision."""
        found: set[str] = set()
        for node in self._dispatcher.nodes():
            spec = node.spec
            found.update((spec.model, f"{spec.model}@{spec.revision}", *spec.aliases))
        return found

    def _changed(self, changes: Sequence[Change] | None) -> None:
        if changes is None:
            self._differ = None
        elif self._differ is not None:
            self._differ.update(op.name for change in changes for op in change.ops)
        for listener in self.listeners:
            listener(self.book, changes)
        if self._timer is None:
            wait = self._next - self._loop.time()
            if wait <= 0:
                self._swap()
            else:
                self._timer = self._loop.call_later(wait, self._swap)

    def _swap(self) -> None:
        self._timer = None
        if not self.book.rules:
            self._swapped(None)
            return
        steps = self.compiled(self.book, ())
        differ, self._differ = self._differ, set()
        self._compiling = differ
        # Nobody is to go by no rules while there are some.
        first = self._table.live is None and not self.served_none
        self._growing = self.growth.of(len(self.book.rules) if differ is None else len(differ))
        self._growing.__enter__()
        self._go_on(steps, self.book, 0.0, whole if first else turn)

    def _go_on(
        self, steps: Steps[LiveTable], book: Book, spent: float, work: Callable[[Steps[LiveTable]], LiveTable]
    ) -> None:
        began = time.perf_counter()
        live: LiveTable | None = None
        try:
            live = work(steps)
        except Working:
            spent += time.perf_counter() - began
            self._timer = self._loop.call_soon(self._go_on, steps, book, spent, work)
            return
        except Exception as error:
            # Checked before it was written; only another version of Laya could have written it.
            event(log, logging.ERROR, "routes_unusable", version=book.number, detail=str(error), effect="the old stay")
        self._timer = None
        spent += time.perf_counter() - began
        if live is not None:
            self._swapped(live)
        elif self._differ is not None:
            self._differ = None if self._compiling is None else self._differ.union(self._compiling)
        self._grown()
        self._compiling = set()
        self._next = self._loop.time() + max(SWAP_EVERY, REST * spent)
        if self.book is not book:  # there was another change meanwhile
            self._timer = self._loop.call_later(self._next - self._loop.time(), self._swap)

    def _grown(self) -> None:
        growing, self._growing = self._growing, None
        if growing is not None:
            growing.__exit__(None, None, None)

    def _swapped(self, live: LiveTable | None) -> None:
        self._table.swap(live)
        if live is None:
            self.served_none = True
            self._differ = None
            self._next = self._loop.time() + SWAP_EVERY
        self.swaps += 1
        self.swapped_at = time.time()
