"""A steady mixed load whose every answer is checked: gRPC and OpenAI, streamed and whole, over all routers.

The simulator's text is a known function of prompt and seed, so a token that is lost, repeated or swapped is seen; a
stream that breaks off must have been right up to there. A client does what a good client does: it knows every router,
and tries again what it is told can be tried again.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing
from itertools import islice
from typing import Any, Final

import grpc.aio

from inference_node.engines import sim_text
from shared.errors import LayaError
from shared.net.grpc_wire import error_from_trailers
from shared.pb.laya.v1 import inference_pb2 as pb
from shared.pb.laya.v1 import inference_pb2_grpc
from tests.faults.http_call import Broken, Kept, post
from tests.faults.tally import Cut, Failed, Tally, Wrong

TRIES: Final = 8
LIMIT: Final = 8.0  # seconds that one try may take by its own deadline
HUNG: Final = LIMIT + 4.0  # and after which it has hung
KINDS: Final = ("complete", "generate", "http", "sse")
_RETRY_SAFE: Final = frozenset(("NO_NODE", "QUEUE_FULL", "QUEUE_TIMEOUT", "DRAINING", "NOT_READY", "OVERLOADED"))
_LOCAL: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 1500),
    ("grpc.keepalive_timeout_ms", 1000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_retries", 0),
)


class Again(Exception):
    """This try failed in a way that another may mend; ``after`` is in seconds."""

    def __init__(self, why: str, after: float = 0.05) -> None:
        super().__init__(why)
        self.after = after


class Ask:
    """One request, and what its answer must be. After piece ``leaves`` of a stream the client goes (0: never)."""

    model = "sim"

    def __init__(self, rng: random.Random) -> None:
        self.kind = rng.choice(KINDS)
        self.kept = rng.random() < 0.5  # over HTTP/1.1: on a connection that has served others
        self.leaves = rng.randrange(1, 5) if rng.random() < 0.05 else 0
        self.seed = rng.randrange(1 << 31)
        self.text = "fault " + " ".join(rng.choice(sim_text.WORDS).strip() for _ in range(rng.randrange(4, 60)))
        self.tokens = rng.randrange(4, 60)
        self._expect()

    def _expect(self) -> None:
        ids = list(islice(sim_text.expected_tokens(sim_text.encode(self.text), self.seed, 0, True), self.tokens))
        self._ids = ids
        self._text = sim_text.decode(ids)

    def check_ids(self, got: Sequence[int], whole: bool) -> None:
        """Raises Wrong unless these are the tokens that are due; without ``whole`` their beginning will do."""
        _same(got, self._ids, whole)

    def check_text(self, got: str, whole: bool) -> None:
        """The same of the text."""
        _same(got, self._text, whole)

    def message(self) -> pb.GenerateRequest:
        """The request in protobuf."""
        out = pb.GenerateRequest(model=self.model, text=self.text)
        out.sampling.max_tokens = self.tokens
        out.sampling.seed = self.seed
        out.sampling.ignore_eos = True
        return out

    def body(self, stream: bool) -> dict[str, Any]:
        """The request in OpenAI's form."""
        return {
            "model": self.model,
            "prompt": self.text,
            "max_tokens": self.tokens,
            "seed": self.seed,
            "ignore_eos": True,
            "stream": stream,
        }


class Load:
    """Clients in closed loops. ``tally`` is the stretch that results are counted for; the owner replaces it.

    With ``tries`` of 1 a client does not help itself: what fails once has failed. ``ask`` makes a request.
    """

    def __init__(
        self,
        routers: Sequence[str],
        clients: int,
        seed: int,
        pause: float = 0.15,
        tries: int = TRIES,
        ask: Callable[[random.Random], Ask] = Ask,
    ) -> None:
        self.tally = Tally("before")
        self._routers = list(routers)
        self._pause = pause
        self._tries = tries
        self._ask = ask
        self._seed = seed
        self._clients = clients
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._kept = Kept()
        self._active: set[Ask] = set()
        self._one_ended = asyncio.Event()

    def start(self) -> None:
        """Begin; needs a running loop."""
        for router in self._routers:
            self._channels[router] = grpc.aio.insecure_channel(router, options=_OPTIONS)
        for i in range(self._clients):
            self._tasks.append(asyncio.create_task(self._client(random.Random(self._seed + i)), name=f"client-{i}"))

    async def passed(self) -> None:
        """Return once every request that runs now has ended, or has had the time to."""
        now = set(self._active)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HUNG):
                while now & self._active:
                    self._one_ended.clear()
                    await self._one_ended.wait()

    async def stop(self) -> None:
        """Let every client end its request."""
        self._stopping.set()
        await asyncio.gather(*self._tasks)
        await asyncio.gather(*(channel.close(None) for channel in self._channels.values()))
        self._kept.close()

    async def _client(self, rng: random.Random) -> None:
        while not self._stopping.is_set():
            await self._request(self._ask(rng), rng)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause * (0.5 + rng.random())):
                    await self._stopping.wait()

    async def _request(self, ask: Ask, rng: random.Random) -> None:
        clock = Clock()
        routers = rng.sample(self._routers, len(self._routers))
        self._active.add(ask)
        retries = 0
        failure: Exception | None = None
        again: list[str] = []
        try:
            for at in range(self._tries):
                retries = at
                try:
                    async with asyncio.timeout(HUNG):
                        await self._once(ask, routers[at % len(routers)], clock)
                    break
                except Again as why:
                    again.append(str(why))
                    await asyncio.sleep(min(why.after * (1 + at), 1.0))
            else:
                failure = Failed(f"gave up: {again[-1]}")
        except (Failed, Cut, Wrong, TimeoutError) as why:
            failure = why
        clock.tick()
        self._active.discard(ask)
        self._one_ended.set()
        left = bool(ask.leaves) and ask.kind in ("generate", "sse")
        self.tally.ended(ask.kind, failure, retries, clock.longest, again, left)

    async def _once(self, ask: Ask, router: str, clock: Clock) -> None:
        if ask.kind in ("complete", "generate"):
            stub: Any = inference_pb2_grpc.InferenceStub(self._channels[router])  # type: ignore[no-untyped-call]
            await (_complete(ask, stub) if ask.kind == "complete" else _generate(ask, stub, clock))
        else:
            await _http(ask, router, clock, self._kept if ask.kept else None)


class Clock:
    """The longest time between two ticks, in seconds."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self.longest = 0.0

    def tick(self) -> None:
        """Something happened."""
        now = self._loop.time()
        self.longest = max(self.longest, now - self._last)
        self._last = now


def _same(got: Sequence[object], wanted: Sequence[object], whole: bool) -> None:
    """Raises Wrong unless ``got`` is what was wanted, or with ``whole`` off how that begins."""
    if got != wanted[: len(got)] or (whole and len(got) != len(wanted)):
        raise Wrong(f"{'an answer' if whole else 'the part of an answer'} of {len(got)} of {len(wanted)} is not right")


async def _complete(ask: Ask, stub: Any) -> None:
    try:
        answer = await stub.Complete(pb.CompleteRequest(request=ask.message()), timeout=LIMIT)
    except grpc.aio.AioRpcError as error:
        raise _judged(error, 0) from None
    (completion,) = answer.completions
    ask.check_ids(list(completion.token_ids), True)
    ask.check_text(completion.text, True)


async def _generate(ask: Ask, stub: Any, clock: Clock) -> None:
    got: list[int] = []
    text = ""
    pieces = 0
    call = stub.Generate(ask.message(), timeout=LIMIT)
    try:
        async for piece in call:
            clock.tick()
            got += piece.token_ids
            text += piece.text
            pieces += 1
            if pieces == ask.leaves:
                break
    except grpc.aio.AioRpcError as error:
        ask.check_ids(got, False)
        raise _judged(error, len(got)) from None
    finally:
        call.cancel()
    whole = pieces != ask.leaves
    ask.check_ids(got, whole)
    ask.check_text(text, whole)


def _judged(error: grpc.aio.AioRpcError, delivered: int) -> Exception:
    """What a gRPC error means for the request."""
    trailing: Any = error.trailing_metadata() or ()
    typed = dict(trailing).get("grpc-status-details-bin")
    if not isinstance(typed, bytes):  # the library's own: the router could not be reached, or went away
        local = f"{error.code().name} without details"
        if error.code() not in _LOCAL:
            return Wrong(f"an error without details: {error.code().name} {error.details()}")
        return Cut(local) if delivered else Again(local)
    found = _typed(error, typed)
    return _next(found.reason, found.code.name, found.retry_after, found.metadata or {}, delivered)


def _typed(error: grpc.aio.AioRpcError, raw: bytes) -> LayaError:
    trailers = [
        (b"grpc-status", b"%d" % error.code().value[0]),
        (b"grpc-message", b""),
        (b"grpc-status-details-bin", base64.b64encode(raw)),
    ]
    found = error_from_trailers(trailers)
    assert found is not None
    return found


def _next(reason: str, code: str, after: float | None, said: dict[str, str], delivered: int) -> Exception:
    safe = reason in _RETRY_SAFE or said.get("retry_safe") == "true"
    if safe and not delivered:
        return Again(f"{code} {reason}", after or 0.05)
    if not reason or reason in ("INTERNAL", "UNKNOWN"):
        return Wrong(f"an error that says nothing: {code} {reason}")
    return Failed(f"{code} {reason} {said.get('phase', '')}".strip())


async def _http(ask: Ask, router: str, clock: Clock, kept: Kept | None) -> None:
    stream = ask.kind == "sse"
    limit = {"laya-timeout-ms": str(int(LIMIT * 1000))}
    seen = ""
    try:
        async with asyncio.timeout(LIMIT + 2):
            async with aclosing(post(router, "/v1/completions", ask.body(stream), limit, kept)) as answers:
                async for answer in answers:
                    clock.tick()
                    if answer.status != 200:
                        raise _refused(answer.status, answer.headers, await answer.whole())
                    if not stream:
                        said = json.loads(await answer.whole())
                        ask.check_text(said["choices"][0]["text"], True)
                        _same([said["usage"]["completion_tokens"]], [ask.tokens], True)
                        return
                    held, ended, pieces = b"", False, 0
                    async for data in answer.body():
                        clock.tick()
                        *events, held = (held + data).split(b"\n\n")
                        for event in events:
                            if event == b"data: [DONE]":
                                ended = True
                                continue
                            seen = _event(event, seen, ask)
                        pieces += 1
                        if pieces == ask.leaves:
                            return
                    if not ended:
                        raise Wrong("a stream of events ended without its last one")
                    ask.check_text(seen, True)
    except Broken as error:
        raise Cut(str(error)[:40]) if seen else Again(f"http {str(error)[:32]}") from None
    except TimeoutError:
        raise Cut("no byte from the router") if seen else Again("http no answer") from None


def _event(event: bytes, seen: str, ask: Ask) -> str:
    """The text so far. Raises Failed for an error event."""
    said = json.loads(event.removeprefix(b"data: "))
    if "error" in said:
        code = str(said["error"]["code"]).upper()
        raise _next(code, said["error"]["type"], None, {}, len(seen) or 1)
    for choice in said["choices"]:
        seen += choice["text"]
    ask.check_text(seen, False)
    return seen


def _refused(status: int, headers: dict[str, str], body: bytes) -> Exception:
    try:
        code = str(json.loads(body)["error"]["code"]).upper()
    except (ValueError, KeyError, TypeError):
        return Wrong(f"HTTP {status} without an error object: {body[:80]!r}")
    after = float(headers.get("retry-after", "0")) * 0.1
    if code == "NODE_LOST" and status == 503:  # nothing was delivered yet
        return Again(f"HTTP {status} {code}", after)
    return _next(code, f"HTTP {status}", after, {}, 0)
