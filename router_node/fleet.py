"""The workers of a supervisor: started, told, counted, restarted and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from router_node.admin.metrics import Snapshot, total
from router_node.control import (
    Changes,
    Channel,
    ChannelClosed,
    Counted,
    Pins,
    Serving,
    Start,
    Table,
    TeeSource,
    ToSupervisor,
    ToWorker,
    View,
)
from router_node.discovery.backoff import Backoff
from router_node.discovery.base import Snapshot as Candidates
from router_node.exits import BAD_CONFIG, FAILED, OK, UNAVAILABLE
from router_node.node_side import NodeSide
from router_node.ports import Ports
from router_node.routes.book import Book, Change
from router_node.routes.manager import RouteManager
from router_node.sessions.pins import Pin
from router_node.signals import unless
from shared import logging as logs
from shared.config import Config
from shared.net.bind import ListenError

log = logs.get("router.supervisor")

SILENCE = 30.0  # seconds without a word after which a worker is taken for hung
START_LIMIT = 60.0  # seconds for a worker to serve
STABLE = 30.0  # seconds of life after which a worker's next end counts as its first
EXIT_LIMIT = 10.0  # seconds beyond the drain timeout for a worker to be gone

_PINS_AT_ONCE = 10_000
_FINAL = (BAD_CONFIG, UNAVAILABLE)  # a worker that ends so before it ever served would do so again


class Worker:
    """One slot: the process in it now, and what that process last said."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.address = ""  # empty until it serves, and again once it takes nothing new
        self.leaving = False  # by itself, or because somebody else told it to
        self.counted: Snapshot | None = None
        self.channel: Channel | None = None
        self.process: asyncio.subprocess.Process | None = None
        self.task: asyncio.Task[None] | None = None
        self.restarts = 0

    def signal(self, number: int) -> None:
        """Send a signal to the process, if there is one."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)


class Fleet:
    """``ports`` are the sockets of the public port, ``bridge`` is where health and reflection are answered."""

    def __init__(
        self,
        config: Config,
        nodes: NodeSide,
        sources: Sequence[TeeSource],
        routes: RouteManager,
        *,
        ports: Ports,
        bridge: str,
    ) -> None:
        self.draining = self._replaced = False
        self._cut = False  # a worker that was told to finish has not finished every request
        self.on_change: Callable[[], None] = lambda: None
        self._pins: dict[int, Pin] = {}  # for workers that are yet to come
        self.on_pin: Callable[[Pin], None] = lambda _: None
        self._config = config
        self._nodes = nodes
        self._sources = sources
        self._routes = routes
        self._ports = ports
        self._bridge = bridge
        self._workers = [Worker(number) for number in range(config.router.workers)]
        self._departed = Snapshot()  # what workers that have ended had counted
        self._news = asyncio.Event()
        self._failed: int | None = None

    @property
    def address(self) -> str:
        """host:port of the public port."""
        return next((worker.address for worker in self._workers if worker.address), "")

    async def start(self) -> None:
        """Start every worker."""
        for source in self._sources:
            source.tell = self._teller(source.name)
        self._routes.listeners.append(self._tell_routes)
        for worker in self._workers:
            worker.task = asyncio.create_task(self._keep(worker), name=f"worker-{worker.number}")

    async def serving(self, stop: asyncio.Future[Any]) -> int | None:
        """Wait until all workers serve, or ``stop``. An exit code when they cannot."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_LIMIT):
                while not all(worker.address for worker in self._workers):
                    self._news.clear()
                    news = asyncio.ensure_future(self._news.wait())
                    await asyncio.wait((news, stop), return_when=asyncio.FIRST_COMPLETED)
                    news.cancel()
                    if stop.done():
                        return None
                    if self._failed is not None:
                        return self._failed
                return None
        logs.event(log, logging.ERROR, "workers_late", seconds=START_LIMIT)
        return FAILED

    async def drain(self, hurry: asyncio.Event, grace: float = 0.0, *, replaced: bool = False) -> bool:
        """Have every worker finish and end, within the drain timeout or until ``hurry``; true when all finished.

        A ``grace`` over 0 is in place of that time-out where it is shorter: the workers keep to their own. They are
        told when a successor has ``replaced`` them.
        """
        self.draining, self._replaced = True, replaced
        self._ports.close()  # before the workers let go of them: nobody shall wait where nobody accepts
        limit = self._config.server.drain_timeout
        for worker in self._workers:
            if not worker.leaving:
                worker.signal(signal.SIGUSR2 if replaced and worker.address else signal.SIGTERM)
        finished = await unless(hurry, asyncio.ensure_future(self._gone(min(grace or limit, limit) + EXIT_LIMIT)))
        if not finished:
            for worker in self._workers:
                worker.signal(signal.SIGTERM)  # the second one: no more waiting
        return finished and not self._cut

    async def close(self) -> None:
        """End what is left of the workers."""
        self.draining = True
        for worker in self._workers:
            worker.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await self._gone(2.0)
        for worker in self._workers:
            worker.signal(signal.SIGKILL)
            if worker.task is not None:
                worker.task.cancel()
        await asyncio.gather(*(w.task for w in self._workers if w.task is not None), return_exceptions=True)

    async def _gone(self, limit: float) -> None:
        tasks = [worker.task for worker in self._workers if worker.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=limit)

    # What operators see

    def not_ready(self) -> str:
        """Why no request can be taken now, or ""."""
        if self.draining and not self._replaced:
            return "the router is draining"
        if not any(worker.address for worker in self._workers):
            return "no worker serves yet"
        return self._nodes.not_ready()

    def workers_total(self) -> Snapshot:
        """What all workers have counted, those that have ended too."""
        return total([self._departed, *(w.counted for w in self._workers if w.counted is not None)])

    def snapshot(self) -> Snapshot:
        """The workers' counts, with the supervisor's own word on nodes and sources."""
        own = Snapshot()
        self._nodes.add_to(own)
        workers = self.workers_total()
        all_nodes = total([own, workers])
        workers.nodes = all_nodes.nodes
        workers.sources = own.sources
        workers.rejected = own.rejected
        workers.ready = not self.not_ready()
        workers.events["worker_restart"] = sum(worker.restarts for worker in self._workers)
        return workers

    # One worker

    def _teller(self, source: str) -> Callable[[Candidates], None]:
        def tell(view: Candidates) -> None:
            for worker in self._workers:
                if worker.channel is not None:
                    self._send(worker, View(source, view))

        return tell

    def _tell_routes(self, book: Book, changes: Sequence[Change] | None) -> None:
        message = Table.of(book) if changes is None else Changes(list(changes))
        for worker in self._workers:
            if worker.channel is not None:
                self._send(worker, message)

    def take_pins(self, pins: Sequence[Pin], by: Worker | None = None) -> None:
        """Tell every worker, but the one that said so, where these sessions are."""
        for pin in pins:
            if self._pins.pop(pin.key, None) is None and len(self._pins) >= self._config.router.cache_size:
                del self._pins[next(iter(self._pins))]
            self._pins[pin.key] = pin
        for worker in self._workers:
            if worker is not by and worker.address and worker.channel is not None:
                self._send(worker, Pins(list(pins)))

    def _send(self, worker: Worker, message: ToWorker) -> None:
        try:
            if worker.channel is not None:
                worker.channel.send(message)
        except ChannelClosed:
            worker.signal(signal.SIGKILL)  # it does not read; its keeper starts another one

    def _over(self) -> bool:
        return self.draining

    async def _keep(self, worker: Worker) -> None:
        backoff = Backoff(0.2, 15.0)
        served = False
        while not self._over():
            began = time.monotonic()
            code = await self._live(worker)
            served = served or bool(worker.address)
            self._departed = total([self._departed, _without_gauges(worker.counted)])
            worker.address, worker.counted, worker.channel, worker.process = "", None, None, None
            worker.leaving = False
            self._changed()
            if self._over():
                self._cut = self._cut or code != OK
                return
            if not served and code in _FINAL:
                self._failed = code
                self._news.set()
                return
            if time.monotonic() - began > STABLE:
                backoff.reset()
            wait = backoff.next()
            worker.restarts += 1
            logs.event(log, logging.ERROR, "worker_ended", worker=worker.number, code=code, restart_in=wait)
            await asyncio.sleep(wait)

    async def _live(self, worker: Worker) -> int:
        """One life of a worker; its exit code, negative for a signal."""
        try:
            listening = await self._ports.of(worker.number)
        except ListenError as error:
            logs.event(log, logging.ERROR, "port_lost", why=str(error))
            return UNAVAILABLE
        ours, theirs = socket.socketpair()
        with theirs:
            passed = [theirs.fileno(), *(sock.fileno() for sock in listening)]
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "router_node.worker", *map(str, passed)),
                    pass_fds=passed,
                    stdin=asyncio.subprocess.DEVNULL,
                )
            except OSError:
                ours.close()
                raise
        worker.process = process
        if self._over():
            worker.signal(signal.SIGTERM)  # the drain began while the process was made, and could not tell it
        channel = await Channel.open(ours, ToSupervisor)
        try:
            worker.channel = channel
            names = [source.name for source in self._sources]
            views = [View(source.name, source.last) for source in self._sources if source.last is not None]
            table = Table.of(self._routes.book)
            self._send(
                worker,
                Start(self._config, worker.number, listening[0].getsockname()[1], self._bridge, names, views, table),
            )
            await self._hear(worker, channel)
        finally:
            await channel.close()
            await self._reap(worker, process)
            self._ports.lost(worker.number)
        return process.returncode if process.returncode is not None else FAILED

    async def _hear(self, worker: Worker, channel: Channel) -> None:
        """Take in what a worker says, until it ends or falls silent."""
        limit = START_LIMIT
        with contextlib.suppress(ChannelClosed):
            while True:
                try:
                    async with asyncio.timeout(limit):
                        message = await channel.receive()
                except TimeoutError:
                    logs.event(log, logging.ERROR, "worker_silent", worker=worker.number, seconds=limit)
                    worker.signal(signal.SIGKILL)
                    return
                if isinstance(message, Serving):
                    limit = SILENCE
                    worker.address = message.address
                    self._changed()
                    if not message.address:
                        worker.leaving = True
                        self._ports.lost(worker.number)
                        continue
                    pins = list(self._pins.values())
                    for start in range(0, len(pins), _PINS_AT_ONCE):
                        self._send(worker, Pins(pins[start : start + _PINS_AT_ONCE]))
                elif isinstance(message, Counted):
                    worker.counted = message.snapshot
                elif isinstance(message, Pins):
                    self.take_pins(message.pins, worker)
                    for pin in message.pins:
                        self.on_pin(pin)

    async def _reap(self, worker: Worker, process: asyncio.subprocess.Process) -> None:
        """Wait for the process to be gone; the end of its channel told it to finish, if nothing else did."""
        try:
            async with asyncio.timeout(self._config.server.drain_timeout + EXIT_LIMIT):
                await process.wait()
        except TimeoutError:
            pass
        finally:
            if process.returncode is None:
                worker.signal(signal.SIGKILL)
                await process.wait()

    def _changed(self) -> None:
        self._news.set()
        self.on_change()


def _without_gauges(last: Snapshot | None) -> Snapshot:
    """What stays of a worker that has ended: its counters."""
    if last is None:
        return Snapshot()
    return msgspec.structs.replace(
        last, in_flight=0, queue_depth=0, reservations=0, nodes=[], sources={}, ready=False, loop_lag=0.0, tasks=0
    )
