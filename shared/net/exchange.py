"""One plain HTTP request and its answer, as its handler sees them, over HTTP/1.1 and HTTP/2 alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from shared.net.api import Headers


class RequestHead:
    """What the head of a request says beside its content-length.

    Requests whose heads are the same bytes may share one, so nobody changes it; only ``notes`` is the handler's: what
    it has found out about the head, for the next request that has it. ``keep`` and ``modern`` are HTTP/1.1's business:
    the connection may go on after the answer; the client speaks 1.1.
    """

    __slots__ = ("headers", "keep", "method", "modern", "notes", "prefix", "sized", "suffix", "target")

    def __init__(
        self,
        method: bytes,
        target: bytes,
        headers: Headers,
        keep: bool = True,
        modern: bool = True,
        sized: bool = False,
    ) -> None:
        self.method = method
        self.target = target  # path and query
        self.headers = headers
        self.keep = keep
        self.modern = modern
        self.sized = sized  # it has a content-length
        self.prefix = b""  # its bytes, up to the content-length's digits; empty where they are not known
        self.suffix = b""  # and from behind those
        self.notes: object = None


@mypyc_attr(allow_interpreted_subclasses=True)
class HttpExchange(ABC):
    """One HTTP request and its answer, the same over HTTP/1.1 and HTTP/2.

    The connection hands it to the handler once the body is whole (limits are enforced before). The handler answers
    with ``respond``, or with ``start``, ``write`` and ``finish``, at any later time, from any callback or task.
    Header names are lower case; hop-by-hop headers and framing (content-length, transfer-encoding) are the
    connection's own business in both directions, except that a HEAD answer keeps the content-length it is given.
    """

    __slots__ = ("body", "head", "headers", "method", "on_abort", "on_drain", "target")

    head: RequestHead
    method: bytes
    target: bytes  # path and query
    headers: Headers
    body: bytes
    on_abort: Callable[[], None] | None  # the client is gone before the answer was complete; called once
    on_drain: Callable[[int], None] | None  # n bytes given to ``write`` have left for the socket

    @abstractmethod
    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """The whole answer at once."""

    @abstractmethod
    def start(self, status: int, headers: Headers) -> None:
        """Begin an answer of unknown length."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Queue a part of the body; it goes out with this batch, never held back for more."""

    @abstractmethod
    def finish(self) -> None:
        """End the body."""

    @abstractmethod
    def abort(self) -> None:
        """Cut the answer off so that the client sees it is incomplete (close, or reset of the stream)."""

    @property
    @abstractmethod
    def queued(self) -> int:
        """Bytes given to ``write`` that have not left for the socket."""

    @property
    @abstractmethod
    def peer(self) -> str:
        """Address of the client, for logs."""
