"""Whether a stream may go on, where, and when it is given up: budgets, what nodes say, nodes that come back."""

from __future__ import annotations

from shared.errors import Code, LayaError, invalid, unavailable
from shared.net.api import CANCEL
from tests.support.fake_streams import FakeClientStream
from tests.unit.relay.test_moving_stream import GRANT, Call, rig, said


def begun(call: Call) -> FakeClientStream:
    """The present node has sent something new."""
    node = call.node()
    node.begin(GRANT)
    node.sink.on_response_data(said(len(call.ids())), False)
    return node


def reason_of(call: Call) -> str:
    metadata = call.error().metadata
    assert metadata is not None
    return metadata["not_migrated"]


def outcomes(call: Call) -> dict[str, int]:
    return call.rig.metrics.moves.sample().outcomes


async def test_what_is_asked_for_is_prompt_and_delivered_tokens_and_the_rest_of_the_budget() -> None:
    call = Call(rig())
    node = call.node()
    node.begin(GRANT)
    node.sink.on_response_data(said(*range(10)), False)
    node.lose()
    after = call.node()
    (reservation,) = [r for n in call.rig.dispatcher.nodes() for r in n.uncounted.values()]
    assert reservation.ask.model == "smollm2@"
    assert (reservation.ask.prompt_tokens, reservation.ask.max_new_tokens) == (12 + 10, 64 - 10)
    assert after.headers[b"laya-dispatch"] == reservation.id != node.headers[b"laya-dispatch"]
    call.client.cancel()
    call.over()


async def test_tokens_that_are_computed_again_have_a_budget() -> None:
    call = Call(rig(max_prefill_tokens=26))
    begun(call).lose()
    begun(call).lose()
    assert reason_of(call) == "too many tokens would have to be computed again"
    assert outcomes(call) == {"moved": 1, "tokens": 1}
    call.over()


async def test_a_pool_s_moves_have_a_budget() -> None:
    world = rig(burst=0, share=0.0)
    call = Call(world)
    begun(call).lose()
    assert reason_of(call) == "too many streams of its model are moved already"
    assert outcomes(call) == {"pool_budget": 1}
    call.over()


async def test_a_dead_engine_is_a_death_and_a_drain_is_none() -> None:
    for reason, poisonous in (("ENGINE_DEAD", True), ("DRAINING", False)):
        call = Call(rig(4, attempts=9))
        node = begun(call)
        for _ in range(3):
            node.sink.on_response_trailers(unavailable("Gone.", reason).grpc_trailers())
            node.lose(0)
            if call.client.ended:
                break
            node = await call.next_node()
            node.begin(GRANT)
        assert call.client.ended is poisonous
        if poisonous:
            assert call.error().reason == "POISONOUS"
        else:
            call.client.cancel()
        call.over()


async def test_a_node_that_cannot_read_the_rest_ends_the_search() -> None:
    call = Call(rig())
    begun(call).lose()
    call.node().refuse(invalid("resume is odd.", "resume").grpc_trailers())
    assert reason_of(call) == "the next node does not take the rest (resume is odd)"
    assert call.error().code is Code.UNAVAILABLE
    call.over()


async def test_a_deadline_that_passes_at_the_next_node_is_the_client_s_own() -> None:
    call = Call(rig())
    begun(call).lose()
    node = call.node()
    node.begin(GRANT)
    node.sink.on_response_trailers(LayaError(Code.DEADLINE_EXCEEDED, "DEADLINE", "Too late.").grpc_trailers())
    node.lose(0)
    assert call.error().code is Code.DEADLINE_EXCEEDED
    call.over()


async def test_a_node_without_a_connection_is_passed_over() -> None:
    call = Call(rig(2))
    node = begun(call)
    call.rig.other(call.upstream(node)).full = True
    node.lose()
    call.rig.other(call.upstream(node)).full = False
    assert call.rig.count("node_unreachable") == 1
    call.client.cancel()
    call.over()


async def test_others_that_are_away_are_waited_for() -> None:
    call = Call(rig(2))
    node = begun(call)
    other = next(name for name, up in call.rig.upstreams.items() if up is not call.upstream(node))
    call.rig.dispatcher.set_link(other, False)
    node.lose()
    assert not call.client.ended
    call.rig.dispatcher.set_link(other, True)
    after = await call.next_node()
    after.begin(GRANT)
    after.sink.on_response_data(said(1), False)
    after.finish()
    assert call.ids() == [0, 1]
    call.over()


async def test_others_are_not_waited_for_beyond_the_wait_for_room() -> None:
    world = rig(2)
    call = Call(world)
    node = begun(call)
    other = next(name for name, up in world.upstreams.items() if up is not call.upstream(node))
    world.dispatcher.set_link(other, False)
    world.core.settings = type(world.core.settings)(queue_timeout=-1.0)
    node.lose()
    assert reason_of(call) == "no other node has this model and revision"
    call.over()


async def test_a_lost_node_is_blamed_for_it_and_one_that_refuses_is_not() -> None:
    call = Call(rig())
    node = begun(call)
    lost = next(n for n in call.rig.dispatcher.nodes() if n.upstream is call.upstream(node))
    node.lose(CANCEL)
    assert call.rig.count("node_lost") == 1
    refusing = call.node()
    refuser = next(n for n in call.rig.dispatcher.nodes() if n.upstream is call.upstream(refusing))
    refusing.refuse(unavailable("It differs.", "RESUME_INEXACT").grpc_trailers())
    assert call.rig.count("node_lost") == 1
    assert (lost.health.failed, refuser.health.failed) == (1, 0)
    call.client.cancel()
    call.over()
