"""The guard at work in a node: readings close and open admission, routers and clients hear of it, nothing ends."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import replace
from typing import Any

import httpx
import pytest

from inference_node import keeper as keepers
from inference_node.admission import Admitted, Need, Waiter
from inference_node.engines.base import EngineInfo, EngineStats, Finished
from inference_node.keeper import Keeper, guard_settings, machine_watch, open_admission
from inference_node.lengths import LEAST
from inference_node.memory.guard import GpuReading, Readings
from shared import logging as logs
from shared.config.schema import GuardConfig, InferenceConfig
from shared.errors import Code, LayaError
from shared.pb.laya.v1 import inference_pb2, node_pb2
from tests.support.ports import until
from tests.unit.node.harness import SLOW, config, running
from tests.unit.node.test_admission import admission

CALM = Readings(0.5, 8 << 30, 0.0, 1 << 20, (GpuReading(0, 0.5, 50.0, 90.0, 0.9),))
FULL = replace(CALM, memory=0.99)
QUICK = GuardConfig(interval=0.05, resume_seconds=0.05)
log = logs.get("test")


class Machine:
    """Hands over what the test says, and can hang or fail."""

    def __init__(self) -> None:
        self.readings = CALM
        self.error: Exception | None = None
        self.go = threading.Event()
        self.go.set()
        self.reads = 0

    def read(self) -> Readings:
        self.go.wait(30)
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.readings


@pytest.fixture
async def parts():
    machine = Machine()
    adm = admission(asyncio.get_running_loop().time)
    keeper = Keeper(adm, InferenceConfig(guard=QUICK), machine.read, log, blind=0.1)
    keeper.start()
    yield machine, adm, keeper
    machine.go.set()
    await keeper.close()
    assert not any(thread.name == "laya-guard" for thread in threading.enumerate())


async def test_a_limit_closes_admission_and_calm_opens_it(parts):
    machine, adm, keeper = parts
    await until(lambda: keeper.readings == CALM, "it is read")
    assert adm.closed_reason == ""
    machine.readings = FULL
    await until(lambda: adm.closed_reason, "it closes")
    assert adm.closed_reason == "memory is short: 99 % of 8 GiB in use (limit 95 %)" and keeper.sheds == 1
    machine.readings = CALM
    await until(lambda: not adm.closed_reason, "it opens")
    assert keeper.sheds == 1


async def test_a_source_that_fails_closes_nothing_and_opens_what_it_closed(parts):
    machine, adm, keeper = parts
    machine.readings = FULL
    await until(lambda: adm.closed_reason, "it closes")
    machine.error = RuntimeError("driver")
    await until(lambda: not adm.closed_reason, "it opens")
    assert keeper.readings == Readings()


async def test_a_reading_that_never_returns_holds_nothing_closed(parts):
    machine, adm, keeper = parts
    machine.readings = FULL
    await until(lambda: adm.closed_reason, "it closes")
    machine.go.clear()
    await until(lambda: not adm.closed_reason, "it opens")
    assert keeper.readings == Readings()


async def test_a_guard_that_is_switched_off_reads_nothing():
    machine = Machine()
    adm = admission(asyncio.get_running_loop().time)
    keeper = Keeper(adm, InferenceConfig(guard=GuardConfig(enabled=False)), machine.read, log)
    keeper.start()
    await asyncio.sleep(0.02)
    await keeper.close()
    assert machine.reads == 0


def test_limits_come_from_the_configuration_with_room_above_what_is_meant_to_be_used():
    settings = guard_settings(InferenceConfig(guard=GuardConfig(soft_memory_fraction=0.8, soft_rss_bytes=5)))
    assert (settings.memory, settings.rss, settings.gpu_memory) == (0.8, 5, 0.98)
    assert guard_settings(InferenceConfig(gpu_memory_utilization=0.97)).gpu_memory == pytest.approx(0.985)
    own = InferenceConfig(guard=GuardConfig(soft_gpu_memory_fraction=0.7))
    assert guard_settings(own).gpu_memory == 0.7


def test_a_simulated_engine_watches_no_gpu(monkeypatch):
    monkeypatch.setattr(keepers, "GpuWatch", lambda: pytest.fail("asked"))
    info = EngineInfo("sim", "m", "", 1000, "", 16, 100, 8, 256)
    assert machine_watch(info)().gpus == ()


def generate(tokens: int = 3) -> Any:
    sampling = inference_pb2.SamplingParams(max_tokens=tokens, ignore_eos=True)
    return inference_pb2.GenerateRequest(text="hello", sampling=sampling)


async def test_a_node_that_sheds_tells_routers_and_clients_and_lets_run_what_runs(monkeypatch):
    machine = Machine()
    monkeypatch.setattr("inference_node.node.machine_watch", lambda info: machine.read)
    async with running(config(SLOW, guard=QUICK)) as (node, client):
        task = asyncio.create_task(client.collect("generate", generate(30)))
        await until(lambda: node.state.serving.admission.running == 1, "it runs")
        machine.readings = FULL
        async with contextlib.aclosing(client.stream("watch", node_pb2.WatchRequest(watcher_id="w1"))) as reports:
            report = await anext(reports)
            while not report.closed_reason:
                report = await anext(reports)
            assert report.closed_reason.startswith("memory is short: 99 %") and report.ready and not report.draining
            with pytest.raises(LayaError, match="sheds load: memory is short") as e:
                await client.collect("generate", generate())
            assert (e.value.code, e.value.reason) == (Code.RESOURCE_EXHAUSTED, "OVERLOADED")
            assert e.value.retry_after == 1.0
            status, headers, _ = await client.openai("/v1/completions", {"prompt": "x", "max_tokens": 2})
            assert (status, headers["retry-after"]) == (429, "1")
            async with httpx.AsyncClient(base_url=f"http://{node.address}") as http:
                assert (await http.get("/healthz")).status_code == 200
                ready = await http.get("/readyz")
                assert ready.status_code == 503 and "memory is short" in ready.json()["status"]
                page = (await http.get("/metrics")).text
            assert 'laya_node_shedding{cause="memory"} 1.0' in page and "laya_node_sheds_total 1.0" in page
            assert "laya_node_memory_ratio 0.99" in page and "laya_node_admission_open 0.0" in page
            assert 'laya_node_gpu_temperature_celsius{gpu="0"} 50.0' in page
            assert sum(len(a.token_ids) for a in await task) == 30
            machine.readings = CALM
            while report.closed_reason:
                report = await anext(reports)
        assert len(await client.collect("generate", generate())) > 0


async def test_overcommit_is_said_learned_and_shown(caplog):
    conf = config(SLOW.__class__(kv_tokens=4096, decode_base_ms=0.1, prefill_tokens_per_second=1e7), overcommit=True)
    with caplog.at_level("WARNING", "laya.node"):
        async with running(conf) as (node, client):
            assert "overcommit" in caplog.text
            assert (await client.unary("describe", node_pb2.DescribeRequest())).overcommit
            adm = node.state.serving.admission
            sampling = inference_pb2.SamplingParams(max_tokens=900, stop=[" "])
            whole = adm.sizes.hold(Need([6], 900))
            lengths = set()
            for i in range(LEAST):
                answers = await client.collect(
                    "generate", inference_pb2.GenerateRequest(text=f"{i}", sampling=sampling)
                )
                lengths.add(sum(len(answer.token_ids) for answer in answers))
            learned = adm.sizes.hold(Need([6], 900))
            assert whole == 57 and learned == -(-(6 + sorted(lengths)[-1]) // 16) < 10
            async with httpx.AsyncClient(base_url=f"http://{node.address}") as http:
                page = (await http.get("/metrics")).text
            assert "laya_node_overcommit 1.0" in page
            assert f"laya_node_overcommit_known_outputs {LEAST}.0" in page


async def test_without_the_option_nothing_is_learned():
    async with running() as (node, client):
        assert node.state.serving.admission.sizes.overcommit is None
        assert not (await client.unary("describe", node_pb2.DescribeRequest())).overcommit


def test_holds_shrink_to_what_outputs_really_take():
    told: list[Any] = []

    class FakeEngine:
        counters = EngineStats()

        def stats(self) -> EngineStats:
            return self.counters

        def follow(self, finished: Any) -> None:
            told.append(finished)

    info = EngineInfo("fake", "m", "", 4096, "", 16, 64, 50, 512, lookahead_tokens=4)
    conf = InferenceConfig(overcommit=True, ramp_seconds=0)
    engine: Any = FakeEngine()
    adm = open_admission(conf, engine, info, lambda: 0.0, lambda: 0.0, log)

    def ask() -> Any:
        return adm.submit(Need([12], 500), 0, None, lambda outcome: None)

    first = ask()
    assert isinstance(first, Admitted) and first.blocks == 33  # 12 + 500 + 4
    assert isinstance(ask(), Waiter)
    for _ in range(LEAST):
        told[0](Finished(12, 500, 30))
    adm.short.live()[0].cancel()
    more = [ask() for _ in range(10)]
    assert all(isinstance(got, Admitted) and got.blocks == 3 for got in more)  # 12 + 30 + 4
    engine.counters.kv_usage = 1.0
    assert isinstance(ask(), Waiter)
