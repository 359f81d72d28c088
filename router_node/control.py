"""What a supervisor and its workers say to each other, over a socket pair that only they hold.

A message is four bytes of length and JSON. The supervisor tells a worker how to start and which nodes there are; the
worker says that it serves, and once a second what it has counted, which also shows that it is alive.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from router_node.admin.metrics import Snapshot
from router_node.discovery.base import Candidate, Publish, Source, SourceHealth
from router_node.routes.book import Book, Change
from router_node.routes.rules import Rule
from router_node.sessions.pins import Pin
from shared.config import Config

MAX_MESSAGE: Final = 32 << 20  # bytes
COUNT_EVERY: Final = 1.0  # seconds between two snapshots
_MAX_BEHIND: Final = 64 << 20  # bytes that may wait for a reader that does not read


class View(msgspec.Struct, tag="view", frozen=True):
    """A source's whole view; it replaces the one before."""

    source: str
    nodes: tuple[Candidate, ...]


class Table(msgspec.Struct, tag="table", frozen=True):
    """A version of the rules, whole."""

    lineage: str
    number: int
    digest: str
    rules: list[Rule]

    @classmethod
    def of(cls, book: Book) -> Table:
        """The message of a version."""
        return cls(book.lineage, book.number, book.digest, list(book.rules.values()))

    def book(self) -> Book:
        """The version of a message."""
        return Book(self.lineage, self.number, self.digest, {rule.name: rule for rule in self.rules})


class Changes(msgspec.Struct, tag="changes", frozen=True):
    """The changes that follow the version told last."""

    changes: list[Change]


class Pins(msgspec.Struct, tag="pins", frozen=True):
    """Sessions that are elsewhere than the ring has them; said by either side."""

    pins: list[Pin]


class Start(msgspec.Struct, tag="start", frozen=True):
    """First message to a worker. ``bridge`` is where health and reflection are answered.

    ``sources`` name the sources that there are, ``views`` what they have said so far.
    """

    config: Config
    worker: int
    port: int
    bridge: str
    sources: list[str]
    views: list[View]
    table: Table | None = None


class Serving(msgspec.Struct, tag="serving", frozen=True):
    """The worker's port is open; with no address: it takes nothing new and will end."""

    address: str


class Counted(msgspec.Struct, tag="counted", frozen=True):
    """What the worker has counted since it started."""

    snapshot: Snapshot


ToWorker = Start | View | Table | Changes | Pins
ToSupervisor = Serving | Counted | Pins

T = TypeVar("T")


class ChannelClosed(Exception):
    """The other side is gone, or does not read."""


class Channel:
    """One end of the pair. ``kind`` is the union of the messages that this end receives."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: object) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder: msgspec.json.Decoder[object] = msgspec.json.Decoder(kind)

    @classmethod
    async def open(cls, sock: socket.socket, kind: object) -> Channel:
        """Take over a connected socket."""
        sock.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=sock)
        return cls(reader, writer, kind)

    def send(self, message: msgspec.Struct) -> None:
        """Queue a message. Raises ChannelClosed when the other side is gone or far behind."""
        if self._writer.is_closing() or self._writer.transport.get_write_buffer_size() > _MAX_BEHIND:
            raise ChannelClosed("the other process does not read")
        raw = msgspec.json.encode(message)
        self._writer.write(len(raw).to_bytes(4, "big") + raw)

    async def receive(self) -> object:
        """The next message. Raises ChannelClosed at the end, and for anything that is no message."""
        try:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            if size > MAX_MESSAGE:
                raise ChannelClosed(f"a message of {size} bytes")
            return self._decoder.decode(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ChannelClosed("the other process is gone") from error
        except msgspec.DecodeError as error:
            raise ChannelClosed(f"not a message: {error}") from error

    async def close(self) -> None:
        """Close this end; the other one sees it at once."""
        self._writer.close()
        try:
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            pass


class RelayedSource(Source):
    """In a worker: a source that the supervisor reads."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._up = False
        self._publish: Publish | None = None

    async def start(self, publish: Publish) -> None:
        self._publish = publish

    async def close(self) -> None:
        self._publish = None

    def health(self) -> SourceHealth:
        return SourceHealth(self._up, "" if self._up else "the supervisor has not read it yet")

    def take(self, view: View) -> None:
        """Publish what the supervisor said."""
        self._up = True
        if self._publish is not None:
            self._publish(view.nodes)


class TeeSource(Source):
    """In a supervisor: a source whose views are also told to the workers by ``tell``."""

    def __init__(self, source: Source) -> None:
        self.name = source.name
        self.last: tuple[Candidate, ...] | None = None
        self.tell: Publish | None = None
        self._source = source

    async def start(self, publish: Publish) -> None:
        def both(view: tuple[Candidate, ...]) -> None:
            self.last = view
            publish(view)
            if self.tell is not None:
                self.tell(view)

        await self._source.start(both)

    async def close(self) -> None:
        await self._source.close()

    def health(self) -> SourceHealth:
        return self._source.health()

    def rejections(self) -> Mapping[str, int]:
        return self._source.rejections()

    def look_now(self) -> None:
        self._source.look_now()
