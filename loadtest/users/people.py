"""locust's user classes: what is common to those that speak gRPC and those that speak HTTP."""

from __future__ import annotations

import time
from typing import ClassVar

import gevent
from gevent.pool import Group
from locust import User, task
from locust.exception import StopUser

from loadtest.users.arrivals import Arrivals, arrivals
from loadtest.users.http_calls import HttpCalls
from loadtest.users.load import Ask, Load, Play
from loadtest.users.scenarios import Scenario, asked_by

_IDLE = 1.0
"""Seconds between looks of a user who has nothing to do any more."""


class Person(User):
    """Talks in a closed loop, or makes calls by the clock."""

    abstract = True
    kind = ""
    load: ClassVar[Load | None] = None
    """Of the test that runs; without it no user does anything, so nothing is asked that was not checked."""
    _mine: Load | None = None

    def on_start(self) -> None:
        """Settle who this is, and when its first call is due."""
        load = self._mine = type(self).load
        if load is None:
            return  # and ``go`` ends it
        self._load = load
        number = load.number()
        self._lane = number
        self._rng = load.rng(number)
        self._key = load.mix.key(number)
        self._ask: Ask = self.caller(load, number)
        self._running = Group()
        self._arrivals: Arrivals | None = None
        self._row: tuple[float, Play] | None = None
        self._due = 0.0
        if load.options.arrivals in ("poisson", "constant"):
            self._arrivals = arrivals(load.options.arrivals, load.options.rate, self._rng)
            self._due = time.perf_counter() + self._arrivals.gap()
        elif load.feed is not None:
            self._take()

    def caller(self, load: Load, number: int) -> Ask:
        """What makes this user's calls."""
        raise NotImplementedError

    def on_stop(self) -> None:
        """Give what is running the time that --stop-timeout has for it, then cut it off."""
        if self._mine is None:
            return
        if self._row is not None and self._load.feed is not None:
            self._load.feed.put_back(self._row)
        self._running.join(timeout=float(self.environment.stop_timeout or 0))
        self._running.kill()

    def wait_time(self) -> float:
        """Seconds until the next call: a pause to think, or what is left until it is due."""
        if self._arrivals is None and self._load.feed is None:
            think = self._load.options.think
            return self._rng.expovariate(1 / think) if think else 0.0
        if self._load.feed is not None and self._row is None:
            return _IDLE
        return max(0.0, self._due - time.perf_counter())

    @task
    def go(self) -> None:
        """One scenario from its beginning to its end; or, by the clock, the beginning of one."""
        load = self._mine
        if load is None:
            raise StopUser
        if self._arrivals is None and load.feed is None:
            load.play(self.kind, self._ask, self._draw())
            return
        if self._due > time.perf_counter():
            return  # locust waits until it is due
        if self._arrivals is not None:
            self._begin(self._draw())
            self._due += self._arrivals.gap()
        elif self._row is not None and load.feed is not None:
            self._begin(asked_by(self._row[1](), self._key, self._lane))
            load.feed.begun()
            self._take()
        else:
            load.idle()

    def _draw(self) -> Scenario:
        return self._load.mix.draw(self._rng, self._load.options.sizes, self._key, self._lane)

    def _begin(self, scenario: Scenario) -> None:
        load = self._load
        late = max(0.0, time.perf_counter() - self._due)
        load.recorder.late(late)
        if load.gate.enter():
            self._running.add(gevent.spawn(load.arrive, self.kind, self._ask, scenario, late))
        else:
            load.recorder.dropped(load.gate.cap)

    def _take(self) -> None:
        assert self._load.feed is not None
        self._row = self._load.feed.next()
        if self._row is not None:
            self._due = self._load.begun + self._row[0]


class GrpcPerson(Person):
    """Streams over gRPC, from a process of its own."""

    abstract = True
    kind = "grpc"

    def caller(self, load: Load, number: int) -> Ask:
        """The process for gRPC calls."""
        return load.grpc(number)


class HttpPerson(Person):
    """Streams over the OpenAI API, on connections of its own."""

    abstract = True
    kind = "http"

    def caller(self, load: Load, number: int) -> Ask:
        """Kept-alive connections: one, or in an open loop as many as may be in flight."""
        connections = 1 if load.options.arrivals == "closed" else load.options.most_in_flight
        self._calls = HttpCalls(load.target, load.served.model, connections, load.options.ca_file)
        return self._calls.ask

    def on_stop(self) -> None:
        """Hang up."""
        super().on_stop()
        if self._mine is not None:
            self._calls.close()
