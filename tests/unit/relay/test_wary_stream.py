"""A gRPC call that nodes die of is refused; one that any node answered is not."""

from __future__ import annotations

import asyncio

import pytest

from shared import headers as names
from shared.errors import LayaError, invalid, unavailable
from tests.support.fake_streams import FakeClientStream
from tests.unit.relay.test_moving_stream import GRANT, Call, rig, said

STAYS = (names.JOURNAL, b"0; n is over 1")


def remembered(call: Call) -> int:
    """Requests that nodes were lost with."""
    moves = call.rig.core.migrations
    assert moves is not None
    return len(moves.poisons)


def answer(node: FakeClientStream, *headers: tuple[bytes, bytes]) -> None:
    node.begin(*headers)
    node.sink.on_response_data(said(1, finish=1), False)
    node.finish()


@pytest.mark.parametrize("granted", [(STAYS,), (), (GRANT,)], ids=["stays", "silent", "moves"])
async def test_an_answer_clears_a_request_that_a_node_was_lost_with(granted: tuple[tuple[bytes, bytes], ...]) -> None:
    world = rig(4)
    for _ in range(3):
        call = Call(world)
        call.node().lose()
        assert remembered(call) == 1
        answer(await call.next_node(), *granted)
        assert call.ids() == [1]
        assert remembered(call) == 0
        call.over()
        for upstream in world.upstreams.values():
            upstream.streams.clear()


async def test_a_journal_that_is_only_begun_clears_nothing() -> None:
    call = Call(rig(4))
    call.node().lose()
    node = await call.next_node()
    node.begin(GRANT)
    node.lose()
    assert call.error().reason == "POISONOUS"
    call.over()


@pytest.mark.parametrize(
    ("error", "left"), [(invalid("no"), 0), (unavailable("Gone.", "ENGINE_DEAD"), 1)], ids=["refused", "dead engine"]
)
async def test_a_refusal_clears_a_request_but_not_what_may_be_another_death(error: LayaError, left: int) -> None:
    call = Call(rig(4))
    call.node().lose()
    (await call.next_node()).refuse(error.grpc_trailers())
    assert call.error().reason == error.reason
    assert remembered(call) == left
    call.over()


async def test_a_request_that_no_node_may_repeat_counts_for_nothing() -> None:
    world = rig(4)
    for _ in range(3):
        call = Call(world, (names.NO_MIGRATE, b"1"))
        call.node().lose()
        assert call.error().reason == "NODE_LOST"
        assert remembered(call) == 0
        call.over()
        for upstream in world.upstreams.values():
            upstream.streams.clear()


async def test_equal_calls_on_nodes_that_die_together_are_one_death() -> None:
    world = rig(4)
    calls = [Call(world) for _ in range(8)]
    busy = [upstream for upstream in world.upstreams.values() if upstream.streams]
    assert len(busy) > 1, "they were spread"
    for upstream in busy[:2]:
        upstream.full = True  # its connection is gone
        for stream in list(upstream.streams):
            if not stream.closed:
                stream.lose()
    deadline = asyncio.get_running_loop().time() + 5
    while not all(call.client.ended for call in calls):
        assert asyncio.get_running_loop().time() < deadline
        for upstream in world.upstreams.values():
            for stream in list(upstream.streams):
                if not stream.closed and upstream not in busy[:2]:
                    answer(stream, GRANT)
        await asyncio.sleep(0)
    for call in calls:
        assert call.client.status()[b"grpc-status"] == b"0"
        call.client.settle()
    calls[0].over()
    assert world.metrics.moves.sample().poisonous == 0


COMPLETE = b"/laya.v1.Inference/Complete"


async def test_a_call_with_one_answer_is_refused_after_two_nodes_too_and_when_it_is_sent_again() -> None:
    world = rig(5)
    call = Call(world, path=COMPLETE)
    call.node().lose()
    world.counted(await call.next_node()).lose()
    assert call.error().reason == "POISONOUS"
    assert "again" not in call.error().message
    assert call.error().metadata == {"retry_safe": "false"}
    call.over()
    again = Call(world, path=COMPLETE)
    assert again.error().reason == "POISONOUS"
    again.over()
    assert sum(len(upstream.streams) for upstream in world.upstreams.values()) == 2 + 1
    assert world.metrics.moves.sample().poisonous == 2


async def test_a_call_with_one_answer_that_gets_it_is_forgotten() -> None:
    world = rig(4)
    for _ in range(3):
        call = Call(world, path=COMPLETE)
        call.node().lose()
        (await call.next_node()).answer(b"done")
        assert call.client.status()[b"grpc-status"] == b"0"
        assert remembered(call) == 0
        call.over()
        for upstream in world.upstreams.values():
            upstream.streams.clear()
