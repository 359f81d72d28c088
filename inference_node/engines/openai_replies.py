"""The JSON that an OpenAI application of our own answers with: whole objects and stream events."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from inference_node.engines.base import Delta, EngineError, GenerateCall, Logprob, Position

if TYPE_CHECKING:
    from inference_node.engines.openai_bodies import LocalEngine

_encode = msgspec.json.Encoder().encode
Write = Callable[[bytes], Awaitable[None]]


class Choice:
    """What has been generated of one choice; ``offset`` is its length in characters."""

    __slots__ = ("finish", "offset", "positions", "started", "texts", "tokens")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.positions: list[Position] = []
        self.tokens = 0
        self.offset = 0
        self.finish: str | None = None
        self.started = False


class Shape(ABC):
    """How an endpoint writes choices; the two implementations are chat and completions."""

    object_name = ""
    chunk_name = ""

    def __init__(self, response_id: str, model: str, created: int, fingerprint: str) -> None:
        self.head: dict[str, Any] = {
            "id": response_id,
            "created": created,
            "model": model,
            "system_fingerprint": fingerprint,
        }

    def event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        """One server-sent event."""
        chunk = {**self.head, "object": self.chunk_name, "choices": choices}
        if usage is not None:
            chunk["usage"] = usage
        return b"data: " + _encode(chunk) + b"\n\n"

    def whole(self, choices: list[dict[str, Any]], usage: dict[str, Any]) -> bytes:
        """The whole answer."""
        return _encode({**self.head, "object": self.object_name, "choices": choices, "usage": usage})

    @abstractmethod
    def part(self, index: int, text: str, positions: Sequence[Position], choice: Choice) -> dict[str, Any]:
        """A choice of a stream event."""

    @abstractmethod
    def full(self, index: int, choice: Choice) -> dict[str, Any]:
        """A choice of a whole answer."""


class ChatShape(Shape):
    """/v1/chat/completions."""

    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def part(self, index: int, text: str, positions: Sequence[Position], choice: Choice) -> dict[str, Any]:
        """Delta with the role on the first event of a choice."""
        delta = {"content": text} if choice.started else {"role": "assistant", "content": text}
        return {
            "index": index,
            "delta": delta,
            "logprobs": _chat_logprobs(positions) if positions else None,
            "finish_reason": choice.finish,
        }

    def full(self, index: int, choice: Choice) -> dict[str, Any]:
        """A whole message."""
        return {
            "index": index,
            "message": {"role": "assistant", "content": "".join(choice.texts)},
            "logprobs": _chat_logprobs(choice.positions) if choice.positions else None,
            "finish_reason": choice.finish,
        }


class CompletionShape(Shape):
    """/v1/completions."""

    object_name = "text_completion"
    chunk_name = "text_completion"

    def part(self, index: int, text: str, positions: Sequence[Position], choice: Choice) -> dict[str, Any]:
        """New text."""
        logprobs = _completion_logprobs(positions, choice.offset) if positions else None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": choice.finish}

    def full(self, index: int, choice: Choice) -> dict[str, Any]:
        """A whole text."""
        logprobs = _completion_logprobs(choice.positions, 0) if choice.positions else None
        return {"index": index, "text": "".join(choice.texts), "logprobs": logprobs, "finish_reason": choice.finish}


async def answer(engine: LocalEngine, calls: list[GenerateCall], shape: Shape) -> bytes:
    """Run all calls and build the whole answer."""
    choices = [Choice() for call in calls for _ in range(call.sampling.n)]
    async with _merged(engine, calls) as deltas:
        cached: dict[int, int] = {}
        async for number, index, delta in deltas:
            choice = choices[index]
            choice.texts.append(delta.text)
            choice.positions += delta.logprobs
            choice.tokens += len(delta.token_ids)
            choice.finish = delta.finish_reason or None
            cached.setdefault(number, delta.cached_tokens)
    return shape.whole([shape.full(i, choice) for i, choice in enumerate(choices)], _usage(calls, choices, cached))


async def stream(
    engine: LocalEngine, calls: list[GenerateCall], shape: Shape, include_usage: bool, write: Write
) -> None:
    """Run all calls and write an event for each step."""
    choices = [Choice() for call in calls for _ in range(call.sampling.n)]
    cached: dict[int, int] = {}
    async with _merged(engine, calls) as deltas:
        async for number, index, delta in deltas:
            choice = choices[index]
            choice.tokens += len(delta.token_ids)
            choice.finish = delta.finish_reason or None
            cached.setdefault(number, delta.cached_tokens)
            await write(shape.event([shape.part(index, delta.text, delta.logprobs, choice)]))
            choice.started = True
            choice.offset += len(delta.text)
    if include_usage:
        await write(shape.event([], _usage(calls, choices, cached)))
    await write(b"data: [DONE]\n\n")


_Item = tuple[int, int, Delta]


class _merged:
    """Deltas of several calls as one stream of (call, choice, delta); all calls end with the block."""

    def __init__(self, engine: LocalEngine, calls: list[GenerateCall]) -> None:
        self._engine = engine
        self._calls = calls
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> AsyncGenerator[_Item, None]:
        merged = self._single(self._calls[0]) if len(self._calls) == 1 else self._several()
        return await self._stack.enter_async_context(aclosing(merged))

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def _single(self, call: GenerateCall) -> AsyncGenerator[_Item, None]:
        async with aclosing(self._engine.generate(call)) as deltas:
            async for delta in deltas:
                yield 0, delta.index, delta

    async def _several(self) -> AsyncGenerator[_Item, None]:
        # Bounded, so a slow reader slows the pumps; what they do not fetch merges in the engine.
        queue: asyncio.Queue[_Item | BaseException | None] = asyncio.Queue(len(self._calls))

        async def pump(number: int, base: int, call: GenerateCall) -> None:
            try:
                async with aclosing(self._engine.generate(call)) as deltas:
                    async for delta in deltas:
                        await queue.put((number, base + delta.index, delta))
            except Exception as e:
                await queue.put(e)
            else:
                await queue.put(None)

        n = self._calls[0].sampling.n
        tasks = [asyncio.create_task(pump(i, i * n, call)) for i, call in enumerate(self._calls)]
        try:
            left = len(tasks)
            while left:
                item = await queue.get()
                if isinstance(item, BaseException):
                    raise EngineError(str(item)) from item
                if item is None:
                    left -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _usage(calls: list[GenerateCall], choices: list[Choice], cached: dict[int, int]) -> dict[str, Any]:
    prompt = sum(len(call.prompt.token_ids) for call in calls)
    completion = sum(choice.tokens for choice in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(cached.values())},
    }


def _token(entry: Logprob) -> dict[str, Any]:
    return {"token": entry.token, "logprob": entry.logprob, "bytes": list(entry.token.encode("utf-8", "replace"))}


def _chat_logprobs(positions: Sequence[Position]) -> dict[str, Any]:
    content = []
    for position in positions:
        wanted = len(position.top)
        best = _likeliest(position)[:wanted]
        content.append({**_token(position.chosen), "top_logprobs": [_token(entry) for entry in best]})
    return {"content": content}


def _completion_logprobs(positions: Sequence[Position], offset: int) -> dict[str, Any]:
    offsets = []
    for position in positions:
        offsets.append(offset)
        offset += len(position.chosen.token)
    return {
        "tokens": [position.chosen.token for position in positions],
        "token_logprobs": [position.chosen.logprob for position in positions],
        "top_logprobs": [
            {entry.token: entry.logprob for entry in _likeliest(position)[: len(position.top)]}
            for position in positions
        ],
        "text_offset": offsets,
    }


def _likeliest(position: Position) -> list[Logprob]:
    """The tokens of a position, best first: the chosen one need not be the likeliest."""
    return sorted((position.chosen, *position.top), key=lambda entry: entry.rank)
