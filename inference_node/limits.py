"""The bounds that admission keeps, and the ramp after a start."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from inference_node.engines.base import EngineInfo
from shared.config.schema import InferenceConfig

PREFILL_STEPS = 2  # default cap of prefill tokens, in engine steps: one running, one ready to follow
RAMP_START = 0.25  # share of the room that is given at once
RAMP_STEPS = 20


def long_prefill_threshold(long_prompt_tokens: int, step_tokens: int) -> int:
    """Tokens of one prompt that an engine should take per step while others wait, to match the long lane.

    Half a step, so that the other half is left to short prompts; less where shorter prompts count as long already
    (``long_prompt_tokens``, 0 for automatic).
    """
    half = max(step_tokens // 2, 1)
    return min(half, long_prompt_tokens) if long_prompt_tokens else half


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """Bounds of one node. Times are seconds; tokens are prompt tokens."""

    max_queued: int
    """Requests waiting, both lanes together."""
    max_queue_seconds: float
    """The longest wait."""
    max_prefill_tokens: int
    """Tokens in prefill; half of it once a long prompt is among them."""
    max_sequences: int
    """Sequences in the engine."""
    long_prompt_tokens: int = sys.maxsize
    """A request with more goes to the long lane."""
    max_queued_tokens: int = 0
    """Tokens waiting in each lane; 0 takes ``queue_prefill_seconds`` at its share of the measured rate."""
    queue_prefill_seconds: float = 2.0
    ageing: float = 2.0
    """So long a wait is worth one level of priority."""
    ramp_seconds: float = 0.0
    """From a share of the room to all of it, beginning when the admission is made."""

    @staticmethod
    def of(config: InferenceConfig, info: EngineInfo) -> AdmissionSettings:
        """From the node's configuration, with the engine's own figures where it says 0."""
        return AdmissionSettings(
            max_queued=config.max_queued,
            max_queue_seconds=config.max_queue_seconds,
            max_prefill_tokens=config.max_prefill_tokens or PREFILL_STEPS * info.max_prefill_tokens,
            max_sequences=info.max_num_seqs,
            long_prompt_tokens=config.long_prompt_tokens or info.max_prefill_tokens,
            max_queued_tokens=config.max_queued_tokens,
            queue_prefill_seconds=config.queue_prefill_seconds,
            ageing=config.priority_ageing_seconds,
            ramp_seconds=config.ramp_seconds,
        )

    @property
    def long_share(self) -> int:
        """Tokens of long prompts in prefill. One alone may have more, and then it is the only one."""
        return self.max_prefill_tokens // 2


class Ramp:
    """How much of the room a node gives so long after its start: a share that grows in steps from a quarter to all.

    A fresh engine has cold caches and a clock that no report has shown yet; a burst at READY would fill it to the brim.
    """

    __slots__ = ("_began", "_seconds", "done")

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds = seconds
        self._began = now
        self.done = seconds <= 0

    def share(self, now: float) -> float:
        """Share of the room, over 0 and at most 1."""
        if self.done:
            return 1.0
        step = int((now - self._began) / self._seconds * RAMP_STEPS)
        if step >= RAMP_STEPS:
            self.done = True
            return 1.0
        return RAMP_START + (1.0 - RAMP_START) * max(step, 0) / RAMP_STEPS

    def of(self, total: int, now: float) -> int:
        """That share of a number, at least 1."""
        return total if self.done else max(1, int(total * self.share(now)))

    def next_step(self, now: float) -> float | None:
        """When the share grows next, on the same clock; None once it is whole."""
        if self.share(now) >= 1.0:
            return None
        length = self._seconds / RAMP_STEPS
        step = max(int((now - self._began) / length), 0) + 1
        at = self._began + step * length
        return at if at > now else at + length
