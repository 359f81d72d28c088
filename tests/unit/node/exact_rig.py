"""Nodes without sockets and routers without streams, for proofs that reports are exact; and an observer's notes."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from inference_node.admission import Admission, AdmissionSettings, Admitted, Need, Waiter
from inference_node.engines.base import EngineInfo, EngineStats
from inference_node.memory import Ledger
from inference_node.report import Reporter, Watch
from inference_node.state import NodeState, Serving
from router_node.dispatch import Dispatcher, DispatchSettings, NodeSpec, Reservation
from shared.config.schema import Config
from shared.errors import LayaError
from shared.pb.laya.v1.node_pb2 import WatchResponse

BLOCK, BLOCKS = 16, 60
CAPACITY = BLOCK * BLOCKS
NODES, WORKERS = ("a", "b"), (0, 1)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeEngine:
    name = "fake"

    def stats(self) -> EngineStats:
        return EngineStats(prompt_tokens=8000, prefill_seconds=1.0)


def result(work: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine that need not wait returns."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


class Node:
    """A node without its sockets: admission, reports, and the requests it has."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self.clock = clock
        self.start()

    def start(self) -> None:
        self.state = NodeState(Config(), self.name)
        info = EngineInfo("fake", "m", "", 4096, "", BLOCK, BLOCKS, 8, 128)
        limits = AdmissionSettings(4, 2.0, 256, 8, long_prompt_tokens=128, max_queued_tokens=10_000)
        self.admission = Admission(Ledger(BLOCKS, BLOCK), info, limits, self.clock)
        self.state.start_serving(Serving(FakeEngine(), info, self.admission))  # type: ignore[arg-type]
        self.reporter = Reporter(self.state, self.clock)
        self.requests: dict[str, Admitted | Waiter] = {}
        self.tokens: dict[str, int] = {}
        self.refused: list[str] = []

    def accept(self, name: str, need: Need) -> LayaError | None:
        """As the door does it: in the ledger or the queue first, then counted."""

        def settle(outcome: Admitted | LayaError) -> None:
            if isinstance(outcome, Admitted):
                self.requests[name] = outcome
            else:
                self.leave(name)
                self.refused.append(name)

        try:
            got = self.admission.submit(need, 0, None, settle)
        except LayaError as e:
            return e
        self.requests.setdefault(name, got)
        self.tokens[name] = got.blocks * BLOCK
        self.reporter.count(name)
        return None

    def leave(self, name: str) -> None:
        """The request is over, whoever ended it."""
        got = self.requests.pop(name, None)
        if got is not None:
            del self.tokens[name]
            self.reporter.end(name)
            if isinstance(got, Admitted):
                got.release()
            else:
                got.cancel()

    @property
    def used(self) -> int:
        return min(CAPACITY, sum(self.tokens.values()))


class Sent:
    """A report on the wire, and what the node really had when it was made."""

    def __init__(self, node: Node, message: WatchResponse, watcher: str) -> None:
        self.raw = message.SerializeToString()
        self.used = node.used
        self.alive = {name.encode() for name in node.requests if name.startswith(f"{watcher}-")}
        self.told = {name.encode() for name in message.counted_dispatches}
        assert CAPACITY - message.headroom_tokens == self.used, "the numbers are the ledger's and the queue's"
        assert message.running + message.waiting == len(node.requests)
        assert self.told <= self.alive
        assert not message.full or self.told == self.alive


class View:
    """What one worker has of one node: the watch, the wire, and the observer's notes about both."""

    def __init__(self) -> None:
        self.watch: Watch | None = None
        self.reporter: Reporter | None = None
        self.wire: list[Sent] = []
        self.believed: Sent | None = None
        self.missing: set[bytes] = set()
        """Told of by reports that were lost or overtaken, and by none that was believed since."""
        self.inexact = False
        """The router's own verdict says that it must watch anew."""

    def hang_up(self) -> None:
        if self.watch is not None and self.reporter is not None:
            self.reporter.close(self.watch)
        for sent in self.wire:
            self.missing |= sent.told
        self.wire.clear()


class Worker:
    """A router's dispatch, the streams it has open, and what it was told."""

    def __init__(self, number: int, boot: int, clock: Clock) -> None:
        self.id = f"w{number}.{boot}"
        self.dispatcher = Dispatcher(self.id, DispatchSettings(), clock)
        self.open: dict[bytes, tuple[Reservation, str]] = {}  # with the boot of its node
        self.under_way: list[tuple[bytes, Need]] = []
        self.told: set[bytes] = set()
        self.views = {name: View() for name in NODES}
        for name in NODES:
            spec = NodeSpec("m", kv_capacity_tokens=CAPACITY, kv_block_tokens=BLOCK, max_seq_len=4096)
            self.dispatcher.add_node(name, f"{name}:1", spec)
            self.dispatcher.set_link(name, True)

    def end(self, name: bytes) -> None:
        self.open.pop(name)[0].end()
        self.under_way = [entry for entry in self.under_way if entry[0] != name]
