"""Where an operator's wishes come in: each is checked as a whole, and taken whole or not at all."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from router_node.routes.book import Book, Change, Op, Put, applied, back
from router_node.routes.manager import RouteManager
from router_node.routes.review import costs, review, told
from router_node.routes.rules import RouteError, Rule
from router_node.routes.slices import in_turns
from shared.errors import Code, LayaError, invalid


class Keeper(ABC):
    """Who makes a checked change last: the store, or this process alone."""

    @abstractmethod
    async def write(self, book: Book, change: Change) -> None:
        """Make ``change`` follow version ``book``, and have the manager take it.

        Called once per change. Raises LayaError: ABORTED when ``book`` is not the newest any more, UNAVAILABLE when
        the change cannot be kept now. After an error nothing has changed.
        """


class LocalKeeper(Keeper):
    """Without a store: the change lasts as long as the process, or its snapshot file."""

    def __init__(self, manager: RouteManager) -> None:
        self._manager = manager

    async def write(self, book: Book, change: Change) -> None:
        if not book.same_as(self._manager.book):
            raise moved(self._manager.book.number)
        if book.lineage:
            self._manager.take(change)
        else:
            self._manager.served_none = True
            self._manager.reset(Book.begun(applied(book.rules, change.ops)))


class Outcome(NamedTuple):
    """What became of a wish: the version there is now, the change that was made (None for none), and warnings."""

    book: Book
    change: Change | None
    warnings: Sequence[str]


class Desk:
    """Checks changes and hands them to the keeper."""

    def __init__(self, manager: RouteManager, keeper: Keeper) -> None:
        self._manager = manager
        self._keeper = keeper

    async def change(
        self,
        puts: Iterable[Rule],
        removes: Iterable[Op],
        *,
        author: str,
        note: str = "",
        replace: bool = False,
        expected: int = -1,
        dry: bool = False,
    ) -> Outcome:
        """Put and remove rules; with ``replace`` the ones put are all there are. ``dry`` only checks.

        ``expected`` is the version that the operator saw, -1 for whatever there is. Raises LayaError: INVALID_ARGUMENT
        with one sentence for what cannot be, ABORTED where the version has moved on.
        """
        book = self._manager.book
        if expected >= 0 and expected != book.number:
            raise moved(book.number)
        try:
            ops: list[Op] = book.replacing(puts) if replace else [*(Put(rule) for rule in puts), *removes]
            return await self._apply(book, ops, author, note, dry)
        except RouteError as error:
            raise invalid(f"Nothing was changed: {error}.", "routes", "ROUTE_INVALID") from None

    async def roll_back(self, number: int, *, author: str, expected: int = -1, dry: bool = False) -> Outcome:
        """A new version that is as version ``number`` was. Raises LayaError."""
        book = self._manager.book
        if expected >= 0 and expected != book.number:
            raise moved(book.number)
        ops = self.difference(number)
        try:
            return await self._apply(book, ops, author, f"back to version {number}", dry)
        except RouteError as error:
            raise invalid(f"Nothing was changed: {error}.", "number", "ROUTE_INVALID") from None

    def difference(self, number: int) -> list[Op]:
        """What makes version ``number`` of the newest one. Raises LayaError for a version not remembered."""
        book, history = self._manager.book, self._manager.history
        oldest = history[0].number - 1 if history else book.number
        if not oldest <= number <= book.number:
            raise LayaError(
                Code.NOT_FOUND,
                "VERSION_UNKNOWN",
                f"Version {number} is not remembered: there are {oldest} to {book.number}.",
                param="number",
            )
        return back(history, number)

    async def _apply(self, book: Book, ops: Sequence[Op], author: str, note: str, dry: bool) -> Outcome:
        change = book.change(ops, author[:128] or "unknown", note[:1024])
        if change is None:
            return Outcome(book, None, [])
        after = Book(book.lineage, change.number, change.digest, applied(book.rules, change.ops))
        with self._manager.growth.of(len(change.ops)):
            live = await in_turns(self._manager.compiled(after, [op.name for op in change.ops]))
        changed = [op.rule.name for op in change.ops if isinstance(op, Put)]
        dear = [after.rules[name] for name in changed if after.rules[name].when.content]
        warnings = await asyncio.to_thread(costs, dear) if dear else []
        warnings += await in_turns(review(after.rules, changed, live.matcher, self._manager.pools()))
        if dry:
            return Outcome(book, change, told(warnings))
        await self._keeper.write(book, change)
        return Outcome(self._manager.book, change, told(warnings))


def moved(number: int) -> LayaError:
    """ABORTED: somebody was faster."""
    return LayaError(
        Code.ABORTED,
        "VERSION_MOVED",
        f"Nothing was changed: the routes are at version {number} by now; look at them again and repeat the change.",
        metadata={"version": str(number)},
    )
