"""What the users of one locust process share, and how they play a scenario or an arrival. Runs on greenlets."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from pathlib import Path

import gevent
import msgspec

from loadtest.traces.items import Loaded, Rules
from loadtest.traces.read import read
from loadtest.users.arrivals import Feed, Gate
from loadtest.users.call import Call, Outcome
from loadtest.users.carrier import Carrier
from loadtest.users.options import Options
from loadtest.users.record import Recorder, Stats
from loadtest.users.scenarios import Mix, Scenario
from loadtest.users.target import Served, Target

Ask = Callable[[Call], Outcome]
Play = Callable[[], Scenario]


class Load:
    """One test in one process. ``part`` of ``parts`` processes that share the load between them."""

    def __init__(
        self,
        options: Options,
        at: Target,
        served: Served,
        stats: Stats,
        fire: Callable[..., None],
        part: int = 0,
        parts: int = 1,
        over: Callable[[], None] = lambda: None,
    ) -> None:
        """``over`` is called once, when a trace has been sent and answered.

        Raises BadMix, BadTrace or OSError: one sentence.
        """
        self.options, self.target, self.served = options, at, served
        self.recorder = Recorder(stats, fire, options.slo)
        self.gate = Gate(options.most_in_flight)
        self.mix = Mix(options.scenarios, options.priorities, list(options.keys))
        self.notes: list[str] = []
        self.feed: Feed[Play] | None = None
        if options.trace:
            loaded = trace_of(options, served)
            self.notes = loaded.notes.told()
            self.feed = Feed([(item.at, item.play) for item in loaded.items], part, parts)
        self._part = part
        self._users = itertools.count()
        self._carriers = [Carrier(at.url, served.model, options.ca_file) for _ in range(options.grpc_processes)]
        self._over = over
        self._was_over = False
        self.begun = time.perf_counter()

    def number(self) -> int:
        """A number for a user, of this process alone."""
        return next(self._users)

    def rng(self, number: int) -> random.Random:
        """The dice of a user: the same in every run with the same seed, and its own in every process."""
        return random.Random(f"{self.options.seed}/{self._part}/{number}")

    def grpc(self, number: int) -> Ask:
        """What makes a user's gRPC calls."""
        return self._carriers[number % len(self._carriers)].ask

    def play(self, kind: str, ask: Ask, scenario: Scenario, late: float = 0.0) -> None:
        """A scenario from its first call to its last. A greenlet that is killed leaves what it was at uncounted."""
        timeout = self.options.timeout
        over = False
        try:
            call = next(scenario)
            while True:
                if call.pause:
                    gevent.sleep(call.pause)
                over = False
                out = ask(msgspec.structs.replace(call, timeout=timeout))
                over = True
                self.recorder.call(kind, call, out, late)
                late = 0.0
                call = scenario.send(out)
        except StopIteration:
            over = True
        finally:
            if not over:
                self.recorder.unfinished()

    def arrive(self, kind: str, ask: Ask, scenario: Scenario, late: float) -> None:
        """An arrival that has its place: played to its end, and the place given back."""
        try:
            self.play(kind, ask, scenario, late)
        finally:
            self.gate.leave()

    def idle(self) -> None:
        """A user finds no more of the trace; with nothing in flight either, it is over."""
        if not self._was_over and not self.gate.in_flight and self.feed is not None and not self.feed.held:
            self._was_over = True
            self._over()

    def close(self) -> None:
        """End the processes for gRPC calls."""
        for carrier in self._carriers:
            carrier.close()


def trace_of(options: Options, served: Served) -> Loaded:
    """The trace that the options name. Raises BadTrace or OSError."""
    rules = Rules(
        speed=options.speed,
        context=served.context,
        longest_output=options.sizes.max_tokens or 1 << 20,
        rate=options.rate,
        think=options.think,
        timeout=options.timeout,
        seed=options.seed,
    )
    return read(Path(options.trace), rules)
