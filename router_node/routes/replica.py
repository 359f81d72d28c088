"""The store's table and ours, kept the same: follows the log, writes changes, heals what fell apart.

One task reads the log, waiting in the store for at most a second at a time; a store that does not answer within
``op_timeout`` is given up and dialled anew, with back-off. What it reads is compared with what is known:

* the next version is taken as it comes; a gap, a trimmed log, or a chain that does not fit means reading all of it;
* another lineage in the store wins over ours: somebody put it there on purpose;
* a store that is empty, or behind us within our lineage (restored, failed over with writes lost), is written anew from
  here. Every router does so with what it has and an older version never replaces a newer, so for ``SETTLE`` seconds,
  in which no change is taken, the newest one finds its way back. A route deleted before does not return.

No request waits for any of this.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from router_node.discovery.backoff import Backoff
from router_node.routes import scripts
from router_node.routes.book import FORMAT, Book, Change, Op, Put, applied
from router_node.routes.desk import Keeper, moved
from router_node.routes.manager import HISTORY, RouteManager
from router_node.routes.rules import RouteError, Rule
from router_node.routes.slices import in_turns
from router_node.routes.wire import (
    FIELDS,
    LOG_LENGTH,
    Head,
    Seal,
    entry_id,
    keys_of,
    number_of,
    read_head,
    read_table,
)
from shared.config.loader import redact_url
from shared.errors import Code, LayaError, unavailable
from shared.logging import event, get
from shared.store import connect
from shared.tasks import cancel_all

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = get("routes.store")

BLOCK: Final = 1.0  # seconds that a read waits in the store
BATCH: Final = 512  # entries of one read
SETTLE: Final = 2.0  # seconds after a table was written anew in which only newer versions of it may follow
FRESH: Final = 1.0  # seconds after a (re)connection before a change is written: others may know more
FIRST: Final = 3.0  # seconds that an empty store stays empty before a lineage is begun: others may have one
WAIT: Final = 5.0  # seconds that an operator's change may wait for the store

_TROUBLE: Final = ("gap", "lineage", "fork", "trimmed", "unreadable")


class StoreTrouble(Exception):
    """The store was reached and cannot be used: one sentence."""


class Replica(Keeper):
    """``seed`` gives the rules to begin with where nobody has any. ``op_timeout`` bounds each command, in seconds."""

    def __init__(
        self,
        manager: RouteManager,
        url: str,
        cluster: str,
        token: str,
        *,
        seed: Callable[[], Mapping[str, Rule]] = dict,
        reconcile: float = 5.0,
        op_timeout: float = 2.0,
    ) -> None:
        self.reloads: Counter[str] = Counter()
        """Times that the whole table was read, by reason."""
        self.rejected = 0
        """Values in the store that were not of our making."""
        self.reseeds = 0
        """Times that the store was written anew from here."""
        self.up = False
        self.detail = f"store {redact_url(url)} has not been read yet"
        self._manager = manager
        self._url = url
        self._keys = keys_of(cluster)
        self._seal = Seal(cluster, token.encode())
        self._seed = seed
        self._reconcile = reconcile
        self._op_timeout = op_timeout
        self._since = 0.0  # loop time of the connection
        self._synced = asyncio.Event()
        self._client: Redis | None = None
        self._empty_since = -1.0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to follow; returns without waiting for the store."""
        import redis.asyncio  # noqa: F401 - slow to load: now, rather than while clients are there

        self._task = asyncio.create_task(self._run(), name="routes-follow")

    async def close(self) -> None:
        """Stop."""
        await cancel_all([self._task])

    @property
    def trouble(self) -> str:
        """What is wrong with the rules that were read, one sentence, or ""."""
        if not self._manager.book.partial:
            return ""
        return "some routes in the store cannot be read here: is server.cluster_token that of the other routers?"

    # An operator's changes

    async def write(self, book: Book, change: Change) -> None:
        """See Keeper."""
        sent = asyncio.Event()  # and not answered yet
        try:
            async with asyncio.timeout(WAIT):
                await self._write(book, change, sent)
        except TimeoutError:
            what = "The change may or may not have been made" if sent.is_set() else "Nothing was changed"
            why = self.detail or "the store does not answer in time"
            raise unavailable(f"{what}: {why}; look at the routes and try again.", "STORE_AWAY", 2.0) from None

    async def _write(self, book: Book, change: Change, sent: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._synced.wait()
            await asyncio.sleep(max(0.0, self._since + FRESH - loop.time()))
            client = self._client
            if client is None or not self._synced.is_set():
                continue
            sent.set()
            if not book.lineage:
                await self._begin(client, applied(book.rules, change.ops))
                return
            answer = await self._send(client, book, change)
            sent.clear()
            if answer[0] == "settling":
                await asyncio.sleep(max(0.01, float(answer[1]) / 1000))
                continue
            if answer[0] == "gone":
                await asyncio.sleep(0.1)  # the follower is about to write it anew
                continue
            if answer[0] == "moved":
                raise moved(int(answer[2]) if answer[1] == book.lineage else 0)
            if answer[0] != "ok":
                raise LayaError(Code.FAILED_PRECONDITION, "STORE_UNUSABLE", f"Nothing was changed: {_odd(answer)}.")
            with contextlib.suppress(RouteError):  # the follower may have been faster
                if self._manager.book.number < change.number:
                    self._manager.take(change)
            return

    async def _send(self, client: Redis, book: Book, change: Change) -> list[str]:
        args: list[Any] = [FORMAT, book.lineage, book.number, book.digest, change.number, change.digest]
        args += [self._seal.change(book.lineage, change), LOG_LENGTH]
        for op in change.ops:
            args += self._wired(op)
        return _texts(await self._eval(client, scripts.WRITE, args))

    def _wired(self, op: Op) -> tuple[str, str, bytes]:
        return ("put", op.rule.name, self._seal.rule(op.rule)) if isinstance(op, Put) else ("rm", op.name, b"")

    async def _eval(self, client: Redis, script: str, args: Sequence[Any]) -> Any:
        """Run a script. Raises LayaError for what the store refuses to an operator's change."""
        from redis.exceptions import RedisError, ResponseError

        try:
            async with asyncio.timeout(self._op_timeout * 2):
                return await client.eval(script, 3, *self._keys, *args)
        except ResponseError as error:
            said = redact_url(str(error))[:200]
            raise unavailable(f"Nothing was changed: the store refuses it ({said}).", "STORE_REFUSES", 5.0) from None
        except (RedisError, OSError, TimeoutError) as error:
            raise unavailable(
                f"The change may or may not have been made: the store went away ({type(error).__name__}); look at the"
                " routes again.",
                "STORE_AWAY",
                2.0,
            ) from None

    # Following

    async def _run(self) -> None:
        backoff = Backoff(0.1, 5.0)
        while True:
            client = connect(self._url, timeout=self._op_timeout, connections=4, name="laya-routes")
            try:
                await self._follow(client, backoff)
            except Exception as error:
                self._lost(error)
            finally:
                self._synced.clear()
                self._client = None
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(0.5):
                        await client.aclose()
            await asyncio.sleep(backoff.next())

    async def _follow(self, client: Redis, backoff: Backoff) -> None:
        loop = asyncio.get_running_loop()
        self._empty_since = -1.0
        await self._settle(client)
        self._client = client
        self._since = loop.time()
        self._found()
        backoff.reset()
        due = loop.time() + self._reconcile
        while True:
            entries = await self._read(client)
            if entries:
                await self._take(client, entries)
            # Something may be wrong of which the log cannot tell: it is gone, or another one.
            if not entries or loop.time() > due:
                await self._settle(client)
                due = loop.time() + self._reconcile * random.uniform(0.7, 1.3)

    async def _read(self, client: Redis) -> list[tuple[bytes, dict[bytes, bytes]]]:
        after = entry_id(self._manager.book.number)
        async with asyncio.timeout(BLOCK + self._op_timeout):
            found: Any = await client.xread({self._keys.log: after}, count=BATCH, block=int(BLOCK * 1000))
        if not found:
            return []
        return [entry for _, entries in found for entry in entries]

    async def _take(self, client: Redis, entries: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> None:
        """Take what the log says, or all of the table where that does not follow."""
        book = self._manager.book
        changes: list[Change] = []
        why = ""
        for entry, fields in entries:
            number = number_of(entry)
            if b"change" in fields and 0 < number <= book.number:
                continue  # written from here, and taken when it was
            if b"change" not in fields or number != book.number + len(changes) + 1:
                why = "gap" if book.lineage else "start"
                break
            try:
                changes.append(self._seal.read_change(book.lineage, fields[b"change"]))
            except RouteError:
                self.rejected += 1
                why = "unreadable"
                break
        try:
            self._manager.take_all(changes)
        except RouteError:
            why = why or "fork"
        if why:
            await self._load(client, why)

    async def _settle(self, client: Redis) -> None:
        """Compare the store's head with ours, and mend what differs. Raises for a store that cannot be used."""
        book = self._manager.book
        head = await self._head(client)
        if self._manager.book is not book:
            return  # a change of ours was written meanwhile
        if head is None:
            await self._fill(client, book)
            return
        self._empty_since = -1.0
        if (head.lineage, head.number, head.digest) == (book.lineage, book.number, book.digest):
            return
        if head.lineage != book.lineage:
            await self._load(client, "lineage" if book.lineage else "start")
        elif head.number < book.number and not self._forked(head):
            await self._reseed(client, book)
        else:
            await self._load(client, "trimmed" if head.number > book.number else "fork")

    def _forked(self, head: Head) -> bool:
        """The store's version is not one that ours came from."""
        known = {change.number: change.digest for change in self._manager.history}
        return known.get(head.number, head.digest) != head.digest

    async def _fill(self, client: Redis, book: Book) -> None:
        """The store has no table: write ours, or after a while begin one."""
        if book.lineage:
            await asyncio.sleep(random.uniform(0.0, 0.2))
            await self._reseed(client, book)
            return
        now = asyncio.get_running_loop().time()
        self._manager.served_none = True
        if self._empty_since < 0:
            self._empty_since = now
        rules = self._seed()
        if rules and now - self._empty_since >= FIRST:
            await self._begin(client, rules)

    async def _begin(self, client: Redis, rules: Mapping[str, Rule]) -> None:
        """Begin a lineage. Raises LayaError ABORTED when somebody else just did."""
        book = Book.begun(rules)
        answer = await self._seeded(client, book, 0)
        if answer[0] == "moved":
            await self._load(client, "start")
            raise moved(self._manager.book.number)
        if answer[0] != "ok":
            raise StoreTrouble(_odd(answer))
        self._manager.reset(book)
        event(log, logging.INFO, "routes_begun", lineage=book.lineage, routes=len(rules))

    async def _reseed(self, client: Redis, book: Book) -> None:
        if book.partial:
            raise StoreTrouble("it has lost them, and this router could not read all there were: another must help")
        answer = await self._seeded(client, book, int(SETTLE * 1000))
        if answer[0] == "ok":
            self.reseeds += 1
            event(log, logging.WARNING, "store_rewritten", lineage=book.lineage, version=book.number)
        elif answer[0] == "moved":
            await self._load(client, "lineage" if answer[1] != book.lineage else "fork")
        else:
            raise StoreTrouble(_odd(answer))

    async def _seeded(self, client: Redis, book: Book, settle: int) -> list[str]:
        args: list[Any] = [FORMAT, book.lineage, book.number, book.digest, settle]
        args += await in_turns(self._seal.table(book.rules))
        async with asyncio.timeout(self._op_timeout * 4):
            return _texts(await client.eval(scripts.SEED, 3, *self._keys, *args))

    async def _load(self, client: Redis, why: str) -> None:
        """Read the whole table."""
        async with asyncio.timeout(self._op_timeout * 4):
            answer: Any = await client.eval(scripts.LOAD, 3, *self._keys, HISTORY)
        if answer[0] != b"ok":
            raise StoreTrouble(_odd(_texts(answer)))
        head = read_head(answer[1])
        if head is None:
            return
        flat = answer[2]
        stored = dict(zip(flat[::2], flat[1::2], strict=True))
        with self._manager.growth.of(len(stored)):
            book, odd = await in_turns(read_table(self._seal, head, stored))
        self.reloads[why] += 1
        self.rejected += len(odd)
        for text in odd[:8]:
            event(log, logging.WARNING, "route_rejected", detail=text)
        self._manager.reset(book, self._past(head, answer[3]))
        if why in _TROUBLE:
            event(log, logging.WARNING, "routes_reloaded", why=why, lineage=head.lineage, version=head.number)

    def _past(self, head: Head, entries: Sequence[Any]) -> list[Change]:
        """The changes that led to a version, as far back as the log has them without a gap."""
        out: list[Change] = []
        for entry, flat in entries:  # newest first
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            if number_of(entry) != head.number - len(out) or b"change" not in fields:
                break
            try:
                out.append(self._seal.read_change(head.lineage, fields[b"change"]))
            except RouteError:
                break
        return out[::-1]

    async def _head(self, client: Redis) -> Head | None:
        async with asyncio.timeout(self._op_timeout):
            values: Any = await client.hmget(self._keys.head, FIELDS)
        return read_head(values)

    # State

    def _found(self) -> None:
        self._synced.set()
        if not self.up:
            self.up = True
            self.detail = ""
            event(log, logging.INFO, "routes_store_up", store=redact_url(self._url), version=self._manager.book.number)

    def _lost(self, error: BaseException) -> None:
        said = redact_url(str(error))[:300].rstrip(".") or type(error).__name__
        detail = f"routes cannot be read from store {redact_url(self._url)}: {said}"
        if self.up or self.detail.endswith("has not been read yet"):
            event(log, logging.WARNING, "routes_store_down", detail=detail, effect="the known routes stay")
        self.up = False
        self.detail = detail


def _texts(answer: Sequence[Any]) -> list[str]:
    return [part.decode("utf-8", "replace") if isinstance(part, bytes) else str(part) for part in answer]


def _odd(answer: Sequence[str]) -> str:
    """Why the store cannot be used, by a script's answer."""
    if answer[0] == "wrongtype":
        return f"the store's key {answer[1]} holds a {answer[2]} of somebody else's; remove it or use another cluster"
    if answer[0] == "format":
        return f"the routes in the store are of format {answer[1]} and this router writes {FORMAT}"
    return f"the store answered {answer[0][:80]!r}"
