"""Keeps a serving node inside its machine: admission with the engine's real sizes, its ramp, and the guard's watch.

The machine is read in a thread of its own, because a driver in trouble may not answer for seconds; the decision and
what follows from it happen on the event loop. Readings that stop coming close nothing and hold nothing closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable

from inference_node.admission import Admission, AdmissionSettings
from inference_node.engines.base import Engine, EngineInfo
from inference_node.lengths import Overcommit
from inference_node.memory import Ledger
from inference_node.memory.guard import Guard, GuardSettings, Readings
from inference_node.memory.watch import DiskFiles, Watch
from inference_node.memory.watch_gpu import GpuWatch
from shared.config.schema import InferenceConfig
from shared.logging import event

OWNER = "guard"
BLIND = 10.0  # seconds without a reading until the last one counts no more
ROOM_ABOVE = 0.96  # share of a GPU's memory that counts as meant to be used, at least
SHORTEST_RETRY = 1.0
JOIN = 1.0  # seconds that a closing node waits for a reading in progress


def open_admission(
    config: InferenceConfig,
    engine: Engine,
    info: EngineInfo,
    prefill_rate: Callable[[], float],
    clock: Callable[[], float],
    log: logging.Logger,
    cached_share: Callable[[], float] | None = None,
) -> Admission:
    """Ledger and admission for an engine that is up. ``clock`` is the loop's.

    ``prefill_rate`` and ``cached_share`` are measured, as ``Waits.measure`` takes them.
    """
    ledger = Ledger(info.kv_blocks, info.kv_block_tokens, info.lookahead_tokens, info.max_seq_len, info.kv_groups)
    settings = AdmissionSettings.of(config, info)
    overcommit = None
    if config.overcommit:
        overcommit = Overcommit(
            config.overcommit_quantile, settings.long_prompt_tokens, info.kv_blocks, engine.stats, clock
        )
        engine.follow(overcommit.finished)
        detail = "KV is promised by learned output lengths (inference.overcommit): the engine may preempt requests"
        event(log, logging.WARNING, "overcommit", detail=detail, quantile=config.overcommit_quantile)
    admission = Admission(ledger, info, settings, clock, overcommit)
    admission.waits.measure(prefill_rate, cached_share)
    return admission


def guard_settings(config: InferenceConfig) -> GuardSettings:
    """The guard's limits, with what 0 stands for filled in."""
    guard = config.guard
    # Half of what neither the engine nor anybody else was meant to take.
    gpu_memory = guard.soft_gpu_memory_fraction or (1.0 + max(config.gpu_memory_utilization, ROOM_ABOVE)) / 2.0
    return GuardSettings(
        memory=guard.soft_memory_fraction,
        stall=guard.soft_memory_stall,
        rss=guard.soft_rss_bytes,
        gpu_memory=gpu_memory,
        gpu_celsius=guard.soft_gpu_celsius,
        gpu_power=guard.soft_gpu_power_fraction,
        hysteresis=guard.hysteresis,
        resume_seconds=guard.resume_seconds,
    )


def machine_watch(info: EngineInfo) -> Callable[[], Readings]:
    """What reads this machine for an engine."""
    gpus = GpuWatch().read if info.engine != "sim" else tuple
    return Watch(DiskFiles(), os.getpid(), gpus).read


class Keeper:
    """One per serving node; ``start`` it in a running loop and ``close`` it."""

    def __init__(
        self,
        admission: Admission,
        config: InferenceConfig,
        read: Callable[[], Readings],
        log: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
        blind: float = BLIND,
    ) -> None:
        """``read`` blocks for milliseconds, at times for seconds; it is called in a thread."""
        self.guard = Guard(guard_settings(config))
        self.readings = Readings()
        """The last ones; empty before the first and when they have stopped coming."""
        self.sheds = 0
        """How often load was shed."""
        self._admission = admission
        self._enabled = config.guard.enabled
        self._interval = config.guard.interval
        self._read = read
        self._log = log
        self._clock = clock
        self._blind = max(blind, 5.0 * self._interval)
        self._fresh = asyncio.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin the ramp and the watch."""
        loop = asyncio.get_running_loop()
        if not self._admission.ramp.done:
            self._tasks.append(loop.create_task(self._admission.warm_up(), name="ramp"))
        if self._enabled:
            self._tasks.append(loop.create_task(self._mind(), name="guard"))
            # A daemon: a reading that never returns must not keep the process.
            self._thread = threading.Thread(target=self._watch, args=(loop,), name="laya-guard", daemon=True)
            self._thread.start()

    async def close(self) -> None:
        """Stop both."""
        self._stop.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join, JOIN)

    def look(self, readings: Readings) -> None:
        """Decide on readings, and open or close admission."""
        guard = self.guard
        self.readings = readings
        if not guard.look(readings, self._clock()):
            return
        if guard.shedding:
            self.sheds += 1
            retry = max(guard.settings.resume_seconds, SHORTEST_RETRY)
            self._admission.close(OWNER, guard.reason, sheds=True, retry=retry)
            event(self._log, logging.WARNING, "shedding", why=guard.reason)
        else:
            self._admission.reopen(OWNER)
            event(self._log, logging.INFO, "shedding_over")

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """The thread: read, hand over, wait."""
        told = False
        while not self._stop.is_set():
            try:
                readings = self._read()
            except Exception as e:  # a source that fails in an unknown way is a source that says nothing
                readings = Readings()
                if not told:
                    told = True
                    event(self._log, logging.WARNING, "guard_reads_nothing", exc_info=e)
            try:
                loop.call_soon_threadsafe(self._heard, readings)
            except RuntimeError:
                return  # the loop is closed
            self._stop.wait(self._interval)

    def _heard(self, readings: Readings) -> None:
        if not self._stop.is_set():
            self._fresh.set()
            self.look(readings)

    async def _mind(self) -> None:
        """Notice that readings have stopped coming."""
        told = False
        while True:
            self._fresh.clear()
            try:
                async with asyncio.timeout(self._blind):
                    await self._fresh.wait()
            except TimeoutError:
                self.look(Readings())
                if not told:
                    event(self._log, logging.WARNING, "guard_is_blind", seconds=self._blind)
                    told = True
            else:
                told = False
