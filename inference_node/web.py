"""HTTP as the node's OpenAI side sees it: a request, and where its answer goes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from inference_node.engines.base import Past
from inference_node.journal import Handed, answer
from inference_node.resume import Resumed, Suppressor, inexact
from shared import headers as names
from shared.errors import LayaError, unavailable
from shared.net.api import Headers
from shared.net.grpc_server import ServerCall
from shared.pb.laya.v1.openai_pb2 import HttpHeader, HttpResponse, HttpResponseHead

MAX_CHUNK: Final = 1 << 20  # bytes of one message; a larger body part goes out in several
OK: Final = 200
# A tool call's id is drawn anew by each node. Within JSON's strings a quote has a backslash, so no text looks like it.
_TOOL_CALL: Final = b'"tool_calls":[{'


@dataclass(frozen=True, slots=True)
class WebRequest:
    """An HTTP request: ``target`` is path and query, header names are lower case.

    ``resumed``: another node has begun to answer it.
    """

    method: str
    target: str
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes
    resumed: Resumed | None = None


class WebReply(ABC):
    """Where an answer goes. ``head`` comes once, then ``body`` any number of times; both may wait for the reader."""

    __slots__ = ()

    handed: Handed | None = None
    """Who is to know what the application takes; only where the answer carries token ids."""

    @property
    @abstractmethod
    def begun(self) -> bool:
        """Whether anything has been sent."""

    @abstractmethod
    async def head(self, status: int, headers: Headers) -> None:
        """Status and headers, hop-by-hop ones left out."""

    @abstractmethod
    async def body(self, data: bytes, last: bool) -> None:
        """Bytes exactly as the application wrote them; may be empty on the last call."""

    def grant(self, why: str, pinned: Callable[[], None]) -> bool:
        """Whether the answer can go on elsewhere: ``why`` it cannot, if so; ``pinned`` is called when that changes."""
        return False

    def tell_resumed(self, went_on: Callable[[], None]) -> bool:
        """Have ``went_on`` called when all that the client has came again, and what is new is next; False for never."""
        return False

    def stop(self, error: LayaError) -> bool:
        """End the answer and the task that makes it, now; False where that cannot be said here."""
        return False


class TunnelReply(WebReply):
    """An answer as messages of a gRPC call, with token ids beside it where it can go on elsewhere.

    What the client has of it already is left out; until all of that has come, nothing is sent.
    """

    __slots__ = ("_begun", "_call", "_head", "_on_pinned", "_past", "_pinned", "_suppressor", "_went_on", "handed")

    def __init__(self, call: ServerCall, resumed: Resumed | None) -> None:
        self._call = call
        self._begun = False
        self._head: HttpResponse | None = None
        self._past: Past | None = resumed.past if resumed is not None else None
        self._suppressor = Suppressor(resumed) if resumed is not None else None
        self._on_pinned: Callable[[], None] | None = None
        self._pinned = False
        self.handed: Handed | None = None
        self._went_on: Callable[[], None] | None = None

    @property
    def begun(self) -> bool:
        return self._begun

    def grant(self, why: str, pinned: Callable[[], None]) -> bool:
        self._call.initial_metadata.append((names.JOURNAL, answer(why)))
        if not why:
            self.handed = Handed()
            self._on_pinned = pinned
        return not why

    def tell_resumed(self, went_on: Callable[[], None]) -> bool:
        self._went_on = went_on
        return True

    def stop(self, error: LayaError) -> bool:
        self._call.stop(error)
        return True

    async def head(self, status: int, headers: Headers) -> None:
        fields = [HttpHeader(name=n.decode("latin-1"), value=v.decode("latin-1")) for n, v in headers]
        message = HttpResponse(head=HttpResponseHead(status=status, headers=fields))
        if self._suppressor is None:
            await self._send(message)
        elif status != OK:
            raise inexact(f"the application answers {status} here")
        else:
            self._head = message

    async def body(self, data: bytes, last: bool) -> None:
        handed = self.handed
        if handed is not None and handed.dead:
            raise engine_dead()
        if self._suppressor is not None:
            data = self._new(self._suppressor, data, last)
            if not self._suppressor.passed:
                return
            head, self._head = self._head, None
            if head is not None:
                if self._went_on is not None:
                    self._went_on()
                await self._send(head)
        if handed is not None:
            await self._journal(handed, data)
        elif len(data) <= MAX_CHUNK:
            if data:
                await self._call.send(HttpResponse(body=data))
        else:
            for at in range(0, len(data), MAX_CHUNK):
                await self._call.send(HttpResponse(body=data[at : at + MAX_CHUNK]))

    def _new(self, suppressor: Suppressor, data: bytes, last: bool) -> bytes:
        if self._past is not None and self._past.inexact:
            raise inexact(self._past.inexact)  # the application may have said it in words of its own
        data = suppressor.feed(data)
        if last:
            suppressor.end()
        return data

    async def _journal(self, handed: Handed, data: bytes) -> None:
        """Send with the token ids that belong to it: each part in a message of its own, the last with the bytes."""
        parts = handed.take()
        for tokens, finish in parts[:-1]:
            await self._send(HttpResponse(token_ids=tokens, finish_reason=finish))
        message = HttpResponse(body=data[:MAX_CHUNK]) if data else HttpResponse()
        if parts:
            message.token_ids.extend(parts[-1][0])
            message.finish_reason = parts[-1][1]
        if not self._pinned and (handed.pinned or _TOOL_CALL in data):
            self._pin(message, handed.pinned or "a tool call has begun")
        if data or parts:
            await self._send(message)
        for at in range(MAX_CHUNK, len(data), MAX_CHUNK):
            await self._send(HttpResponse(body=data[at : at + MAX_CHUNK]))

    def _pin(self, message: HttpResponse, why: str) -> None:
        message.pinned = why
        self._pinned = True
        if self._on_pinned is not None:
            self._on_pinned()

    async def _send(self, message: HttpResponse) -> None:
        self._begun = True
        await self._call.send(message)


def engine_dead() -> LayaError:
    """UNAVAILABLE for a stream that can go on elsewhere, because this node's engine is dead."""
    return unavailable("The engine of this node has died.", "ENGINE_DEAD")
