"""One node: connections dialled ahead, what it says it is, and its stream of reports.

A link finds out whether a node works; it decides nothing. It tells its owner what it learns, in this order for each
time the node can be reached: ``link_described`` (who it is; the owner may refuse it), ``link_report`` for each report,
``link_watch_ended`` when the stream of reports ends, ``link_down`` when the node cannot be reached any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from grpc_health.v1 import health_pb2

from router_node.discovery.backoff import Backoff
from router_node.discovery.states import State
from shared import headers
from shared.errors import Code, LayaError
from shared.logging import event, get
from shared.net.grpc_client import stream, unary
from shared.net.pool import Pool
from shared.pb.laya.v1 import node_pb2
from shared.version import PROTOCOL

log = get("discovery.link")

CALL_TIMEOUT: Final = 3.0  # Describe, and the first report of a watch, in seconds
SILENCE: Final = 5.0  # a node reports each second; after this the watch is opened anew
RECHECK: Final = 10.0  # seconds until a node that was refused is asked again

_DESCRIBE = b"/laya.v1.Node/Describe"
_WATCH = b"/laya.v1.Node/Watch"
_DRAIN = b"/laya.v1.Node/Drain"
_HEALTH = b"/grpc.health.v1.Health/Watch"
READINESS: Final = "laya.v1.Inference"  # the health service that says whether requests are taken

PoolMaker = Callable[[str, Callable[[bool], None]], Pool]


class LinkOwner(Protocol):
    """Who decides about nodes. All calls come from the event loop and must not block."""

    def link_described(self, link: Link, what: node_pb2.DescribeResponse) -> str:
        """The node said what it is: "" to go on, else one sentence why it must not be used."""
        ...

    def link_report(self, link: Link, report: node_pb2.WatchResponse) -> bool:
        """A report, in order. False when one before it was lost: the watch must be opened anew to be exact again."""
        ...

    def link_watch_ended(self, link: Link) -> None:
        """No more reports from this watch; the next one begins with the full live set."""
        ...

    def link_down(self, link: Link) -> None:
        """The node cannot be reached; nothing may be sent to it until it is described again."""
        ...

    def link_health(self, link: Link, serving: bool) -> None:
        """What the node's health service says, whenever it changes; nothing for a node that has none."""
        ...

    def link_changed(self, link: Link) -> None:
        """``state`` or ``detail`` changed."""
        ...


class Link:
    """Owns the pool of one address and the task that talks to its node.

    ``state`` and ``detail`` are what an operator sees. ``what`` is the node's own description, ``report`` its last
    report, ``reported_at`` the loop-independent time (``time.monotonic``) of that report.
    """

    def __init__(self, address: str, owner: LinkOwner, make_pool: PoolMaker, watcher_id: str, token: str) -> None:
        self.address = address
        self.state: State = "dark"
        self.detail = "not connected yet"
        self.what: node_pb2.DescribeResponse | None = None
        self.report: node_pb2.WatchResponse | None = None
        self.reported_at = 0.0
        self.pool = make_pool(address, self._on_state)
        self._owner = owner
        self._watcher_id = watcher_id
        self._metadata = [(headers.CLUSTER_TOKEN, token.encode())] if token else []
        self._connected = asyncio.Event()
        self._losses = 0  # times that the node could not be reached
        self._again = asyncio.Event()  # set when a node that was refused should be asked again
        self._task: asyncio.Task[None] | None = None

    @property
    def node_id(self) -> str:
        """The node's id, once it has said so; empty before."""
        return self.what.node_id if self.what is not None else ""

    @property
    def trouble(self) -> str:
        """Why it is not ready, in one sentence, or "". A dark node's last failed dial says more than its loss."""
        return self.pool.last_error if self.state == "dark" and self.pool.last_error else self.detail

    @property
    def connected(self) -> bool:
        """Whether a connection is up."""
        return self._connected.is_set()

    @property
    def report_age(self) -> float:
        """Seconds since the last report; negative when there was none."""
        return time.monotonic() - self.reported_at if self.report is not None else -1.0

    def start(self) -> None:
        """Begin to dial; needs a running loop."""
        self.pool.start()
        self._task = asyncio.create_task(self._run(), name=f"link-{self.address}")

    def recheck(self) -> None:
        """Ask a node that was refused again: what is known of it has changed."""
        self._again.set()

    async def close(self, grace: float = 0.0) -> None:
        """Let requests in flight finish for up to ``grace`` seconds, then close everything."""
        # The watch is a stream in flight like any other; it must not be what the pool waits for.
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.pool.close(grace)

    async def drain(self, grace_seconds: float, undo: bool, migrate: bool = False) -> node_pb2.DrainResponse:
        """Ask the node to drain, or to take requests again; ``migrate``: to give streams up that can go on elsewhere.

        Raises LayaError.
        """
        request = node_pb2.DrainRequest(grace_seconds=grace_seconds, undo=undo, migrate=migrate)
        return await unary(self.pool, _DRAIN, request, node_pb2.DrainResponse, self._metadata, CALL_TIMEOUT)

    # The pool's word on connections

    def _on_state(self, up: bool) -> None:
        if up:
            self._connected.set()
            self._again.set()
            return
        self._connected.clear()
        self._losses += 1
        self._down("the connection was lost")

    def _down(self, why: str) -> None:
        self.report = None
        self._owner.link_down(self)
        self._show("dark", why)

    # The task

    async def _run(self) -> None:
        backoff = Backoff(0.1, 5.0)
        while True:
            await self._connected.wait()
            try:
                await self._talk(backoff)
            except LayaError as error:
                self._failed(error)
            except TimeoutError:
                pass  # a silent watch: describing the node again shows whether it is alive
            except Exception as error:  # ours, not the node's; the link must outlive it
                event(log, logging.ERROR, "link_failed", exc_info=error, address=self.address)
            await asyncio.sleep(backoff.next())

    async def _talk(self, backoff: Backoff) -> None:
        """Describe, then reports until they end; raises LayaError or TimeoutError."""
        request = node_pb2.DescribeRequest()
        what = await unary(self.pool, _DESCRIBE, request, node_pb2.DescribeResponse, self._metadata, CALL_TIMEOUT)
        why = _check(what) or self._owner.link_described(self, what)
        if why:
            await self._refused(why)
            return
        self.what = what
        if self.report is None:
            self._show("starting", "connected, no report yet")
        health = asyncio.create_task(self._follow_health(), name=f"health-{self.address}")
        try:
            await self._watch(backoff)
        finally:
            health.cancel()
            await asyncio.gather(health, return_exceptions=True)
            self._owner.link_watch_ended(self)

    async def _follow_health(self) -> None:
        """Pass on what the node's health service says. Its silence says nothing: a busy node may be slow to answer."""
        request = health_pb2.HealthCheckRequest(service=READINESS)
        backoff = Backoff(0.5, 10.0)
        while True:
            answers = stream(self.pool, _HEALTH, request, health_pb2.HealthCheckResponse, self._metadata, None)
            try:
                async with contextlib.aclosing(answers):
                    async for answer in answers:
                        self._owner.link_health(self, answer.status != health_pb2.HealthCheckResponse.NOT_SERVING)
                        backoff.reset()
            except LayaError as error:
                if error.code in (Code.UNIMPLEMENTED, Code.UNAUTHENTICATED, Code.PERMISSION_DENIED):
                    break
            await asyncio.sleep(backoff.next())
        self._owner.link_health(self, True)

    async def _watch(self, backoff: Backoff) -> None:
        request = node_pb2.WatchRequest(watcher_id=self._watcher_id)
        losses = self._losses
        reports = stream(self.pool, _WATCH, request, node_pb2.WatchResponse, self._metadata, None)
        async with contextlib.aclosing(reports):
            wait = CALL_TIMEOUT
            while True:
                async with asyncio.timeout(wait):
                    report = await anext(reports, None)
                if report is None or losses != self._losses:
                    return  # a watch may outlive, on a connection that is leaving, what it told of: begin anew
                if not self._heard(report):
                    return
                if wait == SILENCE:
                    backoff.reset()  # a second report: this watch works
                wait = SILENCE

    def _heard(self, report: node_pb2.WatchResponse) -> bool:
        self.report = report
        self.reported_at = time.monotonic()
        exact = self._owner.link_report(self, report)
        if report.draining:
            self._show("draining", report.closed_reason or "the node takes no new request")
        elif not report.ready:
            self._show("starting", report.closed_reason or "the node is warming up")
        elif report.closed_reason:
            self._show("closed", report.closed_reason)
        else:
            self._show("ready", "")
        return exact

    async def _refused(self, why: str) -> None:
        """Stay away from a node that is not what it should be, and look again after a while or a reconnect."""
        self.report = None
        self._owner.link_down(self)
        self._show("mismatch", why)
        self._again.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RECHECK):
                await self._again.wait()

    def _failed(self, error: LayaError) -> None:
        if not self.connected:
            return  # already dark, and the pool dials
        if error.code in (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED):
            self.report = None
            self._owner.link_down(self)
            self._show("mismatch", f"the node refuses this router: {error.message}")
        elif error.code is Code.DEADLINE_EXCEEDED:
            # A node that sends tokens, or answers PINGs, is busy; whether it lives is for its connection to find.
            if self.pool.silence >= CALL_TIMEOUT:
                self._down("connected, but the node does not answer")
        elif self.what is None:
            self._show("dark", f"the node cannot be asked what it is: {error.message}")

    def _show(self, state: State, detail: str) -> None:
        if (state, detail) != (self.state, self.detail):
            self.state = state
            self.detail = detail
            self._owner.link_changed(self)


def _check(what: node_pb2.DescribeResponse) -> str:
    """Why the node cannot be used whoever owns it, or ""."""
    if what.protocol != PROTOCOL:
        return (
            f"the node speaks protocol {what.protocol} and this router {PROTOCOL}; "
            f"run the same version of Laya on both (the node has {what.version or 'an unknown one'})"
        )
    if not what.node_id or not what.model.name:
        return "the node does not say its id and model; is this a Laya node?"
    return ""
