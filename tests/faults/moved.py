"""Streams that outlive their nodes: a load of long streams, nodes that break under them, and what readers saw.

Every stream's text is known to the token, so one that is lost, repeated or swapped is seen. Which of them were moved,
and how often, the routers' logs tell.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import grpc.aio

from inference_node.engines import sim_text
from shared.pb.laya.v1 import inference_pb2 as pb
from shared.pb.laya.v1 import inference_pb2_grpc
from tests.faults.http_call import Answer, Broken, post

KINDS: Final = ("generate", "chat", "sse", "chat-sse")
LIMIT: Final = 60.0  # seconds after which a stream has hung
_PATHS: Final = {"sse": "/v1/completions", "chat-sse": "/v1/chat/completions"}


class Differs(Exception):
    """The reader saw something else than an undisturbed run shows."""


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
        self.stall = 0.0  # the longest silence after something was seen
        self.moves = 0  # as the router's log says
        self.told = -1  # as its trailers say; only gRPC has them
        self.ended = False
        self.problem = ""
        self._last = 0.0
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

    async def run(self, address: str, channel: grpc.aio.Channel) -> None:
        """Read it to its end; ``problem`` says what was wrong with it."""
        try:
            async with asyncio.timeout(LIMIT):
                await (self._http(address) if self.kind in _PATHS else self._grpc(channel))
        except grpc.aio.AioRpcError as error:
            self.problem = f"{self.kind} ended with {error.code().name}: {error.details()}"
        except (Differs, Broken) as error:
            self.problem = f"{self.kind}: {error}"
        except TimeoutError:
            self.problem = f"{self.kind} hung after {self.seen} of {self.tokens}"
        self.ended = True

    def tick(self) -> None:
        """The reader sees something."""
        now = asyncio.get_running_loop().time()
        if self._last:
            self.stall = max(self.stall, now - self._last)
        self._last = now

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
            trailers = dict(await call.trailing_metadata())
        finally:
            call.cancel()
        self.told = str(trailers.get("laya-migrated", "")).count("from=")
        _equal("tokens", ids, self._ids)
        _equal("text", text, self._text)
        assert last is not None
        _equal("finish reason", last.finish_reason, pb.FINISH_REASON_LENGTH)
        _equal("usage", (last.usage.prompt_tokens, last.usage.completion_tokens), (self._prompt, self.tokens))

    async def _http(self, address: str) -> None:
        body: dict[str, Any] = {
            "model": "sim", "max_tokens": self.tokens, "seed": self.seed, "ignore_eos": True, "stream": True,
            "stop": self.stop, "stream_options": {"include_usage": True},
        }  # fmt: skip
        if self.kind == "sse":
            body["prompt"] = self.text
        else:
            body["messages"] = [{"role": "user", "content": self.text}]
        async with aclosing(post(address, _PATHS[self.kind], body, {"x-request-id": self.name})) as answers:
            async for answer in answers:
                if answer.status != 200:
                    raise Differs(f"status {answer.status}: {(await answer.whole())[:200]!r}")
                self.node = answer.headers.get("laya-node", "")
                self._check_events(await self._events(answer))

    async def _events(self, answer: Answer) -> list[bytes]:
        events: list[bytes] = []
        held = b""
        async for data in answer.body():
            *whole, held = (held + data).split(b"\n\n")
            events += whole
            self.seen = len(events)
            self.tick()
        if held:
            raise Differs(f"half an event at the end: {held[:80]!r}")
        return events

    def _check_events(self, events: list[bytes]) -> None:
        _equal("last event", events[-1], b"data: [DONE]")
        said = [json.loads(event.removeprefix(b"data: ")) for event in events[:-1]]
        if errors := [event["error"] for event in said if "error" in event]:
            raise Differs(f"an error event: {errors[0]}")
        _equal("ids and times", len({(event["id"], event["created"]) for event in said}), 1)
        choices = [choice for event in said for choice in event["choices"]]
        chat = self.kind == "chat-sse"
        _equal("text", "".join(c["delta"].get("content", "") if chat else c["text"] for c in choices), self._text)
        _equal("ends", [c["finish_reason"] for c in choices if c["finish_reason"]], ["length"])
        if chat:
            _equal("roles", sum("role" in c["delta"] for c in choices), 1)
        usage = [event["usage"] for event in said if event.get("usage")]
        _equal("usage", [(u["prompt_tokens"], u["completion_tokens"]) for u in usage], [(self._prompt, self.tokens)])


def _equal(what: str, got: object, wanted: object) -> None:
    if got != wanted:
        raise Differs(f"{what}: {str(got)[:120]} instead of {str(wanted)[:120]}")


@dataclass
class Result:
    """What became of the streams of one kind of break; stalls in seconds."""

    name: str
    streams: int = 0
    moved: int = 0
    twice: int = 0
    stalls: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, stream: Stream) -> None:
        """A stream has ended."""
        self.streams += 1
        if stream.problem:
            self.problems.append(f"{stream.name}, moved {stream.moves} times: {stream.problem}")
        elif stream.told not in (-1, stream.moves):
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
        self.now: set[Stream] = set()
        self.done: list[Stream] = []

    def start(self) -> None:
        """Begin to read."""
        self._channels = [grpc.aio.insecure_channel(address) for address in self._routers]
        self._tasks = [asyncio.create_task(self._read(i), name=f"reader-{i}") for i in range(self._count)]

    async def stop(self) -> None:
        """Read those that run to their ends."""
        self._stopping = True
        await asyncio.gather(*self._tasks)
        for channel in self._channels:
            await channel.close()

    async def _read(self, i: int) -> None:
        at = i % len(self._routers)
        while not self._stopping:
            self._number += 1
            stream = Stream(self._rng, self._number, *self._sizes)
            self.now.add(stream)
            await stream.run(self._routers[at], self._channels[at])
            self.now.discard(stream)
            self.done.append(stream)
