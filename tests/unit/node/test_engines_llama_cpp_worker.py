"""The decoding thread, with a model of letters: delivery, cancellation, a cache too full, and its death."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np
import pytest

from inference_node.engines import llama_cpp_worker
from inference_node.engines.base import GenerateCall, Prompt, Sampling
from inference_node.engines.llama_cpp_native import NO_ROOM, NativeError
from inference_node.engines.llama_cpp_sampler import Defaults
from inference_node.engines.llama_cpp_scheduler import Limits, Scheduler
from inference_node.engines.llama_cpp_sequence import LlamaRequest
from inference_node.engines.llama_cpp_worker import News, Worker
from tests.support.ports import until
from tests.unit.node.test_engines_llama_cpp_sequence import Letters


class Cache:
    """A context whose next letter is the one after the last; ``fails`` decides what each decode does."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.fails: Callable[[], int] = lambda: 0
        self.forgotten: list[int] = []
        self.steps: list[int] = []
        self._rows: list[int] = []

    def begin(self) -> None:
        self._rows = []

    def add(self, sequence: int, start: int, tokens: Sequence[int], want: bool) -> int:
        self._rows.append(tokens[-1])
        return len(self._rows) - 1

    def decode(self) -> int:
        assert self.gate.wait(10)
        self.steps.append(len(self._rows))
        return self.fails()

    def logits(self, row: int) -> Any:
        out = np.zeros(256, np.float32)
        out[self._rows[row] + 1] = 1
        return out

    def forget(self, slot: int) -> None:
        self.forgotten.append(slot)

    def share(self, source: int, target: int, tokens: int) -> None:
        pass


class Greedy:
    """Stands in for the samplers."""

    def __init__(self, *_: Any) -> None:
        pass

    def choose(self, raw: Any, *_: Any) -> int:
        return int(np.argmax(raw))

    def close(self) -> None:
        pass


class Rig:
    """A worker and what it has told."""

    def __init__(self) -> None:
        self.cache = Cache()
        model: Any = Letters()
        scheduler = Scheduler(Limits(step_tokens=8, sequences=4, cells=64))
        self.worker = Worker(model, self.cache, scheduler, Defaults(), (), 64)  # type: ignore[arg-type]
        self.text: dict[LlamaRequest, str] = {}
        self.ends: dict[LlamaRequest, str] = {}
        self.errors: dict[LlamaRequest, Exception] = {}
        self.finished = 0
        self.worker.start(self._hear)

    def _hear(self, news: News) -> None:
        for request, delta in news.deltas:
            self.text[request] = self.text.get(request, "") + delta.text
            if delta.finish_reason:
                self.ends[request] = delta.finish_reason
        self.errors |= dict(news.failures)
        self.finished += len(news.finished)

    def ask(self, letter: str, max_tokens: int = 3) -> LlamaRequest:
        call = GenerateCall("r", Prompt([ord(letter)]), Sampling(max_tokens=max_tokens, ignore_eos=True))
        request = LlamaRequest(call, "", Letters(), 64)
        self.worker.submit(request)
        return request


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(llama_cpp_worker, "Chooser", Greedy)
    monkeypatch.setattr(llama_cpp_worker, "Candidates", lambda _model: None)
    found = Rig()
    yield found
    found.cache.gate.set()
    assert await asyncio.to_thread(found.worker.join, 10)


async def test_what_is_asked_for_is_delivered_on_the_loop(rig: Rig) -> None:
    request = rig.ask("a")
    await until(lambda: request in rig.ends, "it ends", timeout=5)
    assert (rig.text[request], rig.ends[request], rig.finished) == ("bcd", "length", 1)
    stats = rig.worker.stats
    assert (stats.prompt_tokens, stats.generation_tokens) == (1, 3)


async def test_those_that_come_together_are_computed_together(rig: Rig) -> None:
    rig.cache.gate.clear()
    requests = [rig.ask(letter, 5) for letter in "aAk"]
    rig.cache.gate.set()
    await until(lambda: len(rig.ends) == 3, "all end", timeout=5)
    assert [rig.text[r] for r in requests] == ["bcdef", "BCDEF", "lmnop"]
    assert 3 in rig.cache.steps and len(rig.cache.steps) <= 7


async def test_a_cancelled_request_is_gone_after_the_step_it_is_in(rig: Rig) -> None:
    def stay_in_the_second_step() -> int:
        rig.cache.gate.clear()
        return 0

    rig.cache.fails = stay_in_the_second_step
    request = rig.ask("a", 60)
    await until(lambda: request in rig.text, "it has begun", timeout=5)
    rig.worker.abort(request)
    rig.cache.fails = lambda: 0
    rig.cache.gate.set()
    await until(lambda: bool(rig.cache.forgotten), "its cells are free", timeout=5)
    assert len(rig.cache.steps) == 2
    assert not rig.worker.scheduler.running and rig.worker.scheduler.used == 0
    rig.worker.abort(request)
    after = rig.ask("x")
    await until(lambda: after in rig.ends, "others are served", timeout=5)
    assert request not in rig.ends


async def test_a_cache_that_is_too_full_puts_one_back(rig: Rig) -> None:
    rig.cache.fails = lambda: NO_ROOM if rig.cache.steps.count(2) == 1 and rig.cache.steps[-1] == 2 else 0
    rig.cache.gate.clear()
    requests = [rig.ask("a"), rig.ask("k")]
    rig.cache.gate.set()
    await until(lambda: len(rig.ends) == 2, "both end", timeout=5)
    assert [rig.text[r] for r in requests] == ["bcd", "lmn"]
    assert rig.worker.scheduler.preemptions == 1


async def test_a_request_that_finds_no_room_alone_fails_and_others_go_on(rig: Rig) -> None:
    rig.cache.fails = lambda: NO_ROOM
    request = rig.ask("a")
    await until(lambda: request in rig.errors, "it fails", timeout=5)
    assert "no room" in str(rig.errors[request])
    rig.cache.fails = lambda: 0
    after = rig.ask("x")
    await until(lambda: after in rig.ends, "others are served", timeout=5)
    assert rig.worker.alive


@pytest.mark.parametrize("error", [NativeError("code -3"), ZeroDivisionError()])
async def test_a_failure_that_nothing_helps_fails_everything_and_says_why(rig: Rig, error: Exception) -> None:
    def fail() -> int:
        raise error

    rig.cache.fails = fail
    request = rig.ask("a")
    await until(lambda: request in rig.errors, "it fails", timeout=5)
    assert getattr(rig.errors[request], "fatal", False)
    await until(lambda: not rig.worker.alive, "the thread has ended", timeout=5)
    assert rig.worker.died
