"""Counts streams that other nodes began: those that went on here, with how many tokens heard again, and why not."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from shared.errors import LayaError

WENT_ON: Final = "resumed"
_NOT_ONE: Final = nullcontext(None)


class Resumes:
    """The counters; one per node. Outcomes are ``resumed``, ``cancelled``, ``failed``, and the reasons of errors."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._outcomes = Counter(
            "laya_node_resumes_total",
            "Streams that another node began: resumed, or why not",
            ("outcome",),
            registry=registry,
        )
        self._tokens = Counter(
            "laya_node_resumed_tokens_total", "Tokens that clients of resumed streams had already", registry=registry
        )

    def attempt(self, resuming: bool) -> AbstractContextManager[Attempt | None]:
        """Around all that is done for a request; None inside where it resumes nothing."""
        return Attempt(self) if resuming else _NOT_ONE

    def count(self, outcome: str, tokens: int = 0) -> None:
        """One stream, and how many tokens its client had, if it went on."""
        self._outcomes.labels(outcome).inc()
        self._tokens.inc(tokens)


class Attempt(AbstractContextManager["Attempt"]):
    """One stream; an error that comes before it has gone on says why it did not."""

    __slots__ = ("_counts", "_open")

    def __init__(self, counts: Resumes) -> None:
        self._counts = counts
        self._open = True

    def went_on(self, tokens: int) -> None:
        """What is new comes next, behind so many tokens; later calls change nothing."""
        if self._open:
            self._open = False
            self._counts.count(WENT_ON, tokens)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not self._open:
            return
        self._open = False
        left = isinstance(error, asyncio.CancelledError | GeneratorExit)
        self._counts.count(error.reason if isinstance(error, LayaError) else "cancelled" if left else "failed")
