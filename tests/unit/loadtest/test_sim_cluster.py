"""The simulated cluster is the real code around an engine that only keeps time."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import inference_node.admission
import inference_node.memory
import inference_node.report
import loadtest.sim.cluster
import loadtest.sim.jobs
import loadtest.sim.routers
import router_node.dispatch
import shared.prefix
from loadtest.sim.cluster import Shape, SimNode
from loadtest.sim.events import Events
from loadtest.sim.policies import LAYA
from loadtest.sim.record import Figures
from loadtest.sim.routers import LayaRouter
from loadtest.sim.run import GaveUp, Setting, World, run
from loadtest.sim.traces import Ask, make

COUNT = 300
SMALL = Shape(kv_tokens=16_384)


def world(policy: str = LAYA, kind: str = "azure", load: float = 0.6, count: int = COUNT, **setting: Any) -> World:
    """A run that is over."""
    setting.setdefault("nodes", 4)
    trace = make(kind, Ask(count, setting["nodes"], load, longest=8192), 1)
    events = Events(1.0)
    out = World(events, trace, Setting(**setting), policy, 1)
    assert events.run(60.0)
    return out


def figures(out: World) -> Figures:
    return out.record.figures(out.nodes, out.events.done, 0.0)


def laya(out: World) -> list[LayaRouter]:
    routers = [router for router in out.routers.values() if isinstance(router, LayaRouter)]
    assert routers
    return routers


def assert_nothing_is_left(out: World) -> None:
    for router in laya(out):
        assert router.dispatcher.reserved_tokens == 0 and router.dispatcher.queued == 0
        assert not any(router.flying.values())
    for node in out.nodes:
        assert node.admission.ledger.held_blocks == 0 and node.admission.running == 0
        assert all(not node.reporter.live(watcher) for watcher in out.routers)


def test_nothing_is_a_copy() -> None:
    assert vars(loadtest.sim.routers)["Dispatcher"] is router_node.dispatch.Dispatcher
    assert issubclass(loadtest.sim.cluster.SimReporter, inference_node.report.Reporter)
    assert vars(loadtest.sim.jobs)["hash_blocks"] is shared.prefix.hash_blocks
    node = SimNode(Events(), "n", Shape(), 512)
    assert type(node.admission) is inference_node.admission.Admission
    assert type(node.admission.ledger) is inference_node.memory.Ledger
    assert node.admission.ledger.capacity_tokens == 524_288


def test_every_request_passes_the_real_dispatcher_admission_and_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"submit": 0, "hold": 0, "message": 0}

    def spy(owner: type, name: str) -> None:
        real = getattr(owner, name)

        def counted(*args: Any, **keywords: Any) -> Any:
            calls[name] += 1
            return real(*args, **keywords)

        monkeypatch.setattr(owner, name, counted)

    spy(inference_node.admission.Admission, "submit")
    spy(inference_node.memory.Ledger, "hold")
    spy(inference_node.report.Reporter, "message")
    out = world()
    assert calls["submit"] == calls["hold"] == COUNT == figures(out).served
    assert calls["message"] > COUNT / 4
    (router,) = laya(out)
    pool = router.dispatcher.resolve("sim")[0]
    assert pool.learned.bytes_per_token == pytest.approx(loadtest.sim.jobs.BYTES_PER_TOKEN, rel=0.05)
    assert all(node.prefill_rate > 0 for node in router.dispatcher.nodes())
    assert_nothing_is_left(out)


def test_what_the_ledger_says_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference_node.memory.Ledger, "fits", lambda *_: False)
    out = world(count=20)
    assert figures(out).served == 0 and figures(out).rejects == 20


@pytest.mark.parametrize("policy", [LAYA, "cache-aware"])
def test_the_same_arguments_give_the_same_figures(policy: str) -> None:
    def once() -> Figures:
        trace = make("sharegpt", Ask(COUNT, 4, 0.6), 3)
        return dataclasses.replace(run(trace, Setting(nodes=4, routers=2), policy, 3), wall_seconds=0.0)

    assert once() == once()


def test_lost_reports_leave_no_reservation_behind() -> None:
    out = world(routers=3, report_loss=0.3, report_delay=0.05)
    assert figures(out).served == COUNT
    assert_nothing_is_left(out)


@pytest.mark.parametrize("policy", [LAYA, "power-of-two"])
def test_a_node_that_dies_costs_only_what_it_had_begun(policy: str) -> None:
    out = world(policy, dying=2, dead_seconds=3.0)
    got = figures(out)
    assert got.served + got.lost + got.rejects == COUNT
    assert 0 < got.lost < COUNT / 10 and got.rejects <= COUNT / 10
    assert all(node.alive for node in out.nodes)
    if policy == LAYA:
        assert_nothing_is_left(out)
        assert all(node.state == "ready" for node in laya(out)[0].dispatcher.nodes())


def test_a_slow_node_gets_less() -> None:
    def worst(policy: str) -> float:
        return figures(world(policy, slow=1, slow_factor=0.2, load=0.4)).ttft_p99

    assert worst(LAYA) < worst("round-robin")


def test_no_node_promises_more_than_it_has_and_nothing_is_preempted() -> None:
    out = world(shape=SMALL, load=1.5, routers=2)
    got = figures(out)
    assert got.kv_peak <= 1.0 and got.preemptions == 0
    assert got.queued > 0 and got.served + got.rejects == COUNT


def test_plain_nodes_take_everything_and_preempt() -> None:
    got = figures(world("round-robin", shape=dataclasses.replace(SMALL, plain=True), load=1.5, kind="heavy"))
    assert got.preemptions > 0 and got.served == COUNT


def test_a_run_that_takes_too_long_is_given_up() -> None:
    with pytest.raises(GaveUp, match=r"laya on azure: only \d+ of 100000 requests"):
        run(make("azure", Ask(100_000, 4, 0.6), 1), Setting(nodes=4, max_wall=0.2), LAYA, 1)
