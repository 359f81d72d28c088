"""One request's way through the node: counted, admitted, timed, and let out again whatever happens.

``async with door.visit(...) as visit`` is the only way to the engine, for the typed service, the tunnel and the node's
HTTP alike. Leaving the block gives the hold back, ends the dispatch in the reports and writes the metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

from inference_node.admission import Admitted, Need
from inference_node.call import Call
from inference_node.metrics import NodeMetrics, ServiceMetrics
from inference_node.report import Reporter
from inference_node.resumes import Attempt
from inference_node.state import NodeState, Serving
from inference_node.tracing import Trace, Tracing
from shared.errors import LayaError, unavailable

EVERY = 17  # one request in so many has its messages timed


class Door:
    """Makes visits; one per node."""

    __slots__ = ("_metrics", "_turn", "clock", "reporter", "state", "tracing", "visits")

    def __init__(
        self,
        state: NodeState,
        reporter: Reporter,
        metrics: NodeMetrics,
        clock: Callable[[], float],
        tracing: Tracing | None = None,
    ) -> None:
        """``clock`` is in seconds and fine enough to time a request (an event loop's own may tick in milliseconds)."""
        self.tracing = tracing
        self._turn = 0
        self.state = state
        self.reporter = reporter
        self.clock = clock
        self._metrics = metrics
        self.visits: dict[Visit, asyncio.Task[object] | None] = {}

    def cut_off(self, migratable: bool = False) -> int:
        """End every visit that is still going on, waiting ones too, or those that can go on elsewhere; how many."""
        chosen = [(visit, task) for visit, task in self.visits.items() if visit.migratable or not migratable]
        for visit, task in chosen:
            error = unavailable("This node is draining: the stream was ended here.", "DRAINING")
            if (visit.stop is None or not visit.stop(error)) and task is not None:
                task.cancel()
        return len(chosen)

    def sampled(self) -> bool:
        """Whether the request that comes now is one of the few whose messages are timed."""
        self._turn = (self._turn + 1) % EVERY
        return self._turn == 0

    def resuming(self, resuming: bool) -> AbstractContextManager[Attempt | None]:
        """Around all that is done for a request that another node may have begun; None where none did."""
        return self._metrics.resumes.attempt(resuming)

    def visit(self, service: str, call: Call, need: Need, priority: int, arrived: float) -> Visit:
        """A request that wants in; ``arrived`` is when it came, by the door's clock. Raises NOT_READY."""
        return Visit(self, self._metrics, self._metrics.services[service], call, need, priority, arrived)


class Visit:
    """One admitted request, as a context manager. Entering raises LayaError when it is refused.

    ``migratable``: its stream can go on elsewhere. ``stop``, where it is set, ends its call and its task with an error
    at once, or says False.
    """

    __slots__ = (
        "_admitted",
        "_cached",
        "_call",
        "_counted",
        "_door",
        "_metrics",
        "_need",
        "_priority",
        "_service",
        "_serving",
        "_started",
        "admitted_at",
        "arrived",
        "first_at",
        "migratable",
        "serialising",
        "stop",
        "timed",
        "trace",
    )

    def __init__(
        self,
        door: Door,
        metrics: NodeMetrics,
        service: ServiceMetrics,
        call: Call,
        need: Need,
        priority: int,
        arrived: float,
    ) -> None:
        self._door = door
        self._metrics = metrics
        self._service = service
        self._serving: Serving = door.state.serving
        self._call = call
        self._need = need
        self._priority = priority
        self._admitted: Admitted | None = None
        self._counted = False
        self._started = self._cached = 0
        self.arrived = arrived
        self.admitted_at = 0.0
        self.first_at = 0.0
        self.migratable = False
        self.stop: Callable[[LayaError], bool] | None = None
        self.serialising = 0.0  # seconds, where it is ``timed``
        self.trace: Trace | None = None
        if door.tracing is not None:
            self.trace = door.tracing.begin(call, arrived, door.clock())
        self.timed = door.sampled() or call.timed or self.trace is not None

    async def __aenter__(self) -> Visit:
        call = self._call
        self._door.visits[self] = asyncio.current_task()
        try:
            self._admitted = await self._serving.admission.admit(
                self._need, call.deadline, self._priority, self._count if call.dispatch else None
            )
        except LayaError as e:
            self._leave()
            self._tell(e)
            self._service.refused.inc()
            self._metrics.refusals.labels(e.reason).inc()
            raise
        except BaseException as e:
            self._leave()
            self._tell(e)
            self._service.cancelled.inc()
            raise
        self.admitted_at = self._door.clock()
        self._service.queue.observe(self.admitted_at - self.arrived)
        self._metrics.prompt_tokens.inc(self._need.prefill_tokens)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._admitted is not None:
            self._admitted.release()
        self._leave()
        self._tell(error)
        service = self._service
        service.total.observe(self._door.clock() - self.arrived)
        if error is None:
            service.served.inc()
            if self.timed and self.serialising:
                service.serialise.observe(self.serialising)
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            service.cancelled.inc()
        else:
            service.failed.inc()

    def first_token(self) -> None:
        """The request has its first token; later calls change nothing."""
        if self.first_at == 0.0:
            self.first_at = self._door.clock()
            self._service.ttft.observe(self.first_at - self.arrived)
            if self._admitted is not None:
                self._admitted.prefill_done()

    def prompt_started(self, cached_tokens: int) -> None:
        """A prompt of the request has its first token, and so many of its own were cached. Once for each prompt."""
        self.first_token()
        self._started += 1
        self._cached += cached_tokens
        if self._counted and self._started == len(self._need.prompts):
            self._door.reporter.used(self._call.dispatch, self._need.prefill_tokens, self._cached)

    def pin(self) -> None:
        """Its stream can not go on elsewhere any more."""
        self.migratable = False

    def now(self) -> float:
        """The door's clock."""
        return self._door.clock()

    def generated(self, tokens: int) -> None:
        """So many new tokens in all."""
        self._metrics.completion_tokens.inc(tokens)

    def _tell(self, error: BaseException | None) -> None:
        """The visit is over: its spans, where it is traced."""
        if self.trace is not None:
            self.trace.used(self._need.prefill_tokens, self._cached)
            self.trace.ended(self.admitted_at, self.first_at, self.serialising, self._door.clock(), error)

    def _count(self) -> None:
        self._counted = True
        self._door.reporter.count(self._call.dispatch)

    def _leave(self) -> None:
        self._door.visits.pop(self, None)
        if self._counted:
            self._counted = False
            self._door.reporter.end(self._call.dispatch)
