"""Streams that outlive their nodes: a load of long streams, nodes that break under them, and what readers saw.

Every stream's text is known to the token, so one that is lost, repeated or swapped is seen. Which of them were moved,
and how often, the routers' logs tell.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import grpc.aio
import httpx

from inference_node.engines import sim_text
from shared.pb.laya.v1 import inference_pb2 as pb
from shared.pb.laya.v1 import inference_pb2_grpc
from tests.faults.http_call import Broken, post

KINDS: Final = ("generate", "sse", "chat", "chat-sse", "generate", "h2-sse", "chat", "chat-h2-sse")
LIMIT: Final = 60.0  # seconds after which a stream has hung
WRONGS: Final = ("refused", "lost", "repeated", "changed", "usage")
_TEXT, _CHAT = "/v1/completions", "/v1/chat/completions"
_PATHS: Final = {"sse": _TEXT, "chat-sse": _CHAT, "h2-sse": _TEXT, "chat-h2-sse": _CHAT}


class Differs(Exception):
    """The reader saw something else than an undisturbed run shows; ``kind`` is one of ``WRONGS``."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind = kind


class Stream:
    """One stream as its reader sees it. ``node`` is where it began, ``seen`` the tokens or events so far."""

    def __init__(self, rng: random.Random, number: int, least: int, most: int) -> None:
        self.kind = KINDS[number % len(KINDS)]
        self.name = f"moved-{number}-{rng.randrange(1 << 30):x}"
        self.text = " ".join(rng.choice(sim_text.WORDS).strip() for _ in range(rng.randrange(4, 40)))
        self.seed = rng.randrange(1 << 31)
        self.tokens = rng.randrange(least, most)
        self.stop = ["zzz nowhere"] if rng.random() < 0.3 else []
        self.node = ""
        self.seen = 0
        self.breaks = 0  # of any node, while it ran
        self.stall = 0.0  # the longest silence after something was seen
        self.moves = 0  # as the router's log says
        self.told = -1  # as its trailers say; only gRPC has them
        self.ended = False
        self.problem = ""
        self._step = "reading"
        self.wrong = ""  # one of ``WRONGS``, where there is a problem
        self.last = 0.0  # when something was seen last, by the loop's clock
        prompt = sim_text.encode(self.text)
        if self.kind.startswith("chat"):
            prompt = [sim_text.USER, *prompt, sim_text.END, sim_text.ASSISTANT]
        self._prompt = len(prompt)
        self._ids = list(islice(sim_text.expected_tokens(prompt, self.seed, 0, True), self.tokens))
        self._text = sim_text.decode(self._ids)

    @property
    def running(self) -> bool:
        """Whether its reader has seen something and waits for more."""
        return bool(self.seen) and not self.ended

    async def run(self, address: str, channel: grpc.aio.Channel, web: httpx.AsyncClient) -> None:
        """Read it to its end; ``problem`` says what was wrong with it. ``web`` speaks HTTP/2 alone."""
        try:
            async with asyncio.timeout(LIMIT):
                if self.kind not in _PATHS:
                    await self._grpc(channel)
                elif "h2" in self.kind:
                    await self._http2_again(address, web)
                else:
                    await self._http1(address)
        except grpc.aio.AioRpcError as error:
            self._failed("refused", f"ended with {error.code().name}: {error.details()}")
        except Differs as error:
            self._failed(error.kind, str(error))
        except (Broken, httpx.HTTPError) as error:
            self._failed("lost", f"broke off: {error!r}")
        except TimeoutError:
            self._failed(
                "lost", f"hung {self._step} after {self.seen} of {self.tokens}, begun on {self.node or 'no node'}"
            )
        self.ended = True

    def _failed(self, wrong: str, what: str) -> None:
        self.wrong, self.problem = wrong, f"{self.kind}: {what}"

    def tick(self) -> None:
        """The reader sees something."""
        now = asyncio.get_running_loop().time()
        if self.last:
            self.stall = max(self.stall, now - self.last)
        self.last = now

    async def _grpc(self, channel: grpc.aio.Channel) -> None:
        stub: Any = inference_pb2_grpc.InferenceStub(channel)  # type: ignore[no-untyped-call]
        sampling = pb.SamplingParams(max_tokens=self.tokens, seed=self.seed, ignore_eos=True, stop=self.stop)
        metadata = (("x-request-id", self.name),)
        if self.kind == "chat":
            turn = pb.ChatMessage(role="user", content=self.text)
            call = stub.Chat(pb.ChatRequest(messages=[turn], sampling=sampling), metadata=metadata)
        else:
            call = stub.Generate(pb.GenerateRequest(text=self.text, sampling=sampling), metadata=metadata)
        ids: list[int] = []
        text, last = "", None
        try:
            async for message in call:
                if not ids:
                    self.node = str(dict(await call.initial_metadata())["laya-node"])
                ids += message.token_ids
                text += message.content if self.kind == "chat" else message.text
                self.seen = len(ids)
                self.tick()
                last = message
            self._step = "before its trailers"
            trailers = dict(await call.trailing_metadata())
        finally:
            call.cancel()
        self.told = str(trailers.get("laya-migrated", "")).count("from=")
        _same("tokens", ids, self._ids)
        _same("text", text, self._text)
        assert last is not None
        _equal("finish reason", last.finish_reason, pb.FINISH_REASON_LENGTH)
        used = (last.usage.prompt_tokens, last.usage.completion_tokens)
        _equal("usage", used, (self._prompt, self.tokens), "usage")

    def _body(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": "sim", "max_tokens": self.tokens, "seed": self.seed, "ignore_eos": True, "stream": True,
            "stop": self.stop, "stream_options": {"include_usage": True},
        }  # fmt: skip
        if _PATHS[self.kind] == _TEXT:
            return {**body, "prompt": self.text}
        return {**body, "messages": [{"role": "user", "content": self.text}]}

    async def _http1(self, address: str) -> None:
        name = {"x-request-id": self.name}
        async with aclosing(post(address, _PATHS[self.kind], self._body(), name)) as answers:
            async for answer in answers:
                if answer.status != 200:
                    raise Differs("refused", f"status {answer.status}: {(await answer.whole())[:200]!r}")
                self.node = answer.headers.get("laya-node", "")
                self._check_events(await self._events(answer.body()))

    async def _http2_again(self, address: str, web: httpx.AsyncClient) -> None:
        """This client answers no PING while it reads nothing, so a connection that was idle may be gone."""
        try:
            await self._http2(address, web)
        except httpx.TransportError:
            if self.node:
                raise
            await self._http2(address, web)

    async def _http2(self, address: str, web: httpx.AsyncClient) -> None:
        url, name = f"http://{address}{_PATHS[self.kind]}", {"x-request-id": self.name}
        async with web.stream("POST", url, json=self._body(), headers=name) as answer:
            if answer.status_code != 200:
                raise Differs("refused", f"status {answer.status_code}: {(await answer.aread())[:200]!r}")
            _equal("protocol", answer.http_version, "HTTP/2")
            self.node = answer.headers.get("laya-node", "")
            self._check_events(await self._events(answer.aiter_raw()))

    async def _events(self, body: AsyncIterator[bytes]) -> list[bytes]:
        events: list[bytes] = []
        held = b""
        async for data in body:
            *whole, held = (held + data).split(b"\n\n")
            events += whole
            self.seen = len(events)
            self.tick()
        if held:
            raise Differs("changed", f"half an event at the end: {held[:80]!r}")
        return events

    def _check_events(self, events: list[bytes]) -> None:
        done = events[-1] == b"data: [DONE]"
        said = [json.loads(event.removeprefix(b"data: ")) for event in (events[:-1] if done else events)]
        if errors := [event["error"] for event in said if "error" in event]:
            raise Differs("refused", f"an error event: {errors[0]}")
        _equal("end", done, True, "lost")
        _equal("ids and times", len({(event["id"], event["created"]) for event in said}), 1)
        choices = [choice for event in said for choice in event["choices"]]
        chat = _PATHS[self.kind] == _CHAT
        _same("text", "".join(c["delta"].get("content", "") if chat else c["text"] for c in choices), self._text)
        _equal("ends", [c["finish_reason"] for c in choices if c["finish_reason"]], ["length"])
        if chat:
            _equal("roles", sum("role" in c["delta"] for c in choices), 1)
        usage = [event["usage"] for event in said if event.get("usage")]
        used = [(u["prompt_tokens"], u["completion_tokens"]) for u in usage]
        _equal("usage", used, [(self._prompt, self.tokens)], "usage")


def _equal(what: str, got: object, wanted: object, kind: str = "changed") -> None:
    if got != wanted:
        raise Differs(kind, f"{what}: {str(got)[:120]} instead of {str(wanted)[:120]}")


def _same(what: str, got: Sequence[object], wanted: Sequence[object]) -> None:
    """The same, of what may be lost or repeated."""
    _equal(what, got, wanted, "lost" if len(got) < len(wanted) else "repeated" if len(got) > len(wanted) else "changed")


@dataclass
class Result:
    """What became of the streams of one kind of break; stalls in seconds."""

    name: str
    streams: int = 0
    moved: int = 0
    twice: int = 0
    rounds: int = 0
    seconds: float = 0.0
    stalls: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    wrongs: Counter[str] = field(default_factory=Counter)

    def add(self, stream: Stream) -> None:
        """A stream has ended."""
        self.streams += 1
        if stream.problem:
            self.wrongs[stream.wrong] += 1
            self.problems.append(f"{stream.name}, moved {stream.moves} times: {stream.problem}")
        elif stream.told not in (-1, stream.moves):
            self.wrongs["changed"] += 1
            self.problems.append(f"{stream.name}, moved {stream.moves} times, was told of {stream.told}")
        if stream.moves:
            self.moved += 1
            self.twice += stream.moves > 1
            self.stalls.append(stream.stall)

    def stall(self, share: float) -> float:
        """A quantile of the stalls."""
        ordered = sorted(self.stalls)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


class Readers:
    """So many streams at a time, over all routers, until stopped."""

    def __init__(self, routers: Sequence[str], count: int, rng: random.Random, least: int, most: int) -> None:
        self._routers = routers
        self._count = count
        self._rng = rng
        self._sizes = least, most
        self._number = 0
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._channels: list[grpc.aio.Channel] = []
        self._webs: list[httpx.AsyncClient] = []
        self.now: set[Stream] = set()
        self.done: list[Stream] = []

    def start(self) -> None:
        """Begin to read."""
        self._channels = [grpc.aio.insecure_channel(address) for address in self._routers]
        # A connection carries 100 streams.
        self._webs = [httpx.AsyncClient(http1=False, http2=True, timeout=LIMIT) for _ in self._routers]
        self._tasks = [asyncio.create_task(self._read(i), name=f"reader-{i}") for i in range(self._count)]

    async def stop(self) -> None:
        """Read those that run to their ends."""
        self._stopping = True
        await asyncio.gather(*self._tasks)
        for channel in self._channels:
            await channel.close(None)
        for web in self._webs:
            await web.aclose()

    async def _read(self, i: int) -> None:
        at = i % len(self._routers)
        while not self._stopping:
            self._number += 1
            stream = Stream(self._rng, self._number, *self._sizes)
            self.now.add(stream)
            await stream.run(self._routers[at], self._channels[at], self._webs[at])
            self.now.discard(stream)
            self.done.append(stream)
