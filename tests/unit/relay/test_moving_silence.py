"""A node that is alive and sends nothing in mid-stream is left for another one, as one that is lost."""

from __future__ import annotations

import pytest

from router_node.relay.settings import MigrationSettings
from shared.errors import Code
from shared.net.api import CANCEL
from tests.support.fake_streams import FakeClientStream
from tests.support.ports import until
from tests.support.relay_rig import Rig
from tests.unit.gateway.test_moving_relay import DONE, Ask, chunk, head, part, say
from tests.unit.relay.test_moving_stream import GRANT, Call, resume_of, said


def rig(nodes: int = 3, **settings: object) -> Rig:
    settings = {"between_tokens": 0.1, "retry_backoff": 0.001, **settings}
    return Rig(nodes, migration=MigrationSettings(max_stall=5.0), **settings)  # type: ignore[arg-type]


async def silent(one: Call | Ask, node: FakeClientStream) -> None:
    """The client has taken all there is, and the router has had enough of its node."""
    one.client.drain()
    await until(lambda: node.code == CANCEL, "the node is told to stop", 5)
    node.settle()


async def test_a_stream_whose_node_falls_silent_goes_on_elsewhere() -> None:
    call = Call(rig())
    first = call.node()
    first.begin(GRANT)
    first.sink.on_response_data(said(1, 2), False)
    await silent(call, first)
    second = await call.next_node()
    assert call.upstream(second) is not call.upstream(first)
    assert list(resume_of(second).token_ids) == [1, 2]
    second.begin(GRANT)
    second.sink.on_response_data(said(3, finish=1), False)
    second.finish()
    assert call.ids() == [1, 2, 3]
    assert call.client.status()[b"laya-migrated"].startswith(b"from=n")
    assert (call.rig.count("deadline_between_tokens"), call.rig.count("node_lost")) == (1, 0)
    (blamed,) = [node for node in call.rig.dispatcher.nodes() if node.health.failed]
    assert blamed.upstream is call.upstream(first)
    call.over()


async def test_an_answer_over_http_does_too() -> None:
    ask = Ask(rig())
    first = ask.begun(part(chunk(0), 0))
    await silent(ask, first)
    second = await ask.next_node()
    second.begin(GRANT)
    say(second, head(), part(chunk(1), 1, finish="stop"), part(DONE))
    second.finish()
    assert ask.text == chunk(0) + chunk(1) + DONE
    assert ask.rig.metrics.moves.sample().outcomes == {"moved": 1}
    ask.over()


async def test_alone_it_ends_with_the_limit_s_error_that_says_why_it_stayed() -> None:
    call = Call(rig(1))
    node = call.node()
    node.begin(GRANT)
    node.sink.on_response_data(said(1), False)
    await silent(call, node)
    await until(lambda: call.client.ended, "the call has ended", 5)
    error = call.error()
    assert (error.code, error.reason) == (Code.DEADLINE_EXCEEDED, "DEADLINE")
    assert "sent no further token" in error.message and "after 1 tokens in 1 messages" in error.message
    assert error.metadata is not None
    assert (error.metadata["phase"], error.metadata["delivered_tokens"]) == ("between_tokens", "1")
    assert "no other node" in error.metadata["not_migrated"]
    call.over()


async def test_over_http_it_does_too() -> None:
    ask = Ask(rig(1))
    node = ask.begun(part(chunk(0), 0))
    await silent(ask, node)
    await until(lambda: ask.client.state == "finished", "the answer has ended", 5)
    error = ask.error()
    assert error["code"] == "deadline" and "no other node" in error["message"]
    ask.over()


async def test_one_that_falls_silent_after_the_last_message_is_not_missed() -> None:
    call = Call(rig())
    node = call.node()
    node.begin(GRANT)
    node.sink.on_response_data(said(1, finish=1), False)
    await silent(call, node)
    assert call.client.status()[b"grpc-status"] == b"0"
    assert call.rig.metrics.moves.sample().outcomes == {"complete": 1}
    call.over()


async def test_nor_is_one_over_http() -> None:
    ask = Ask(rig())
    node = ask.begun(part(chunk(0), 0, finish="stop"), part(DONE))
    await silent(ask, node)
    assert (ask.client.state, ask.text) == ("finished", chunk(0) + DONE)
    assert ask.rig.metrics.moves.sample().outcomes == {"complete": 1}
    ask.over()


@pytest.mark.parametrize("http", [False, True])
async def test_while_a_stream_has_no_node_this_limit_does_not_count(http: bool) -> None:
    """The next one may have to compute a long prompt again: ``max_stall`` is what it has."""
    world = rig(2, between_tokens=0.05)
    one: Call | Ask
    if http:
        one = ask = Ask(world)
        ask.begun(part(chunk(0), 0)).lose()
    else:
        one = call = Call(world)
        first = call.node()
        first.begin(GRANT)
        first.sink.on_response_data(said(1), False)
        first.lose()
    second = await one.next_node()
    second.begin(GRANT)
    looks = world.core.loop.time() + 0.3
    await until(lambda: world.core.loop.time() > looks, "several such limits have passed", 5)
    assert second.code < 0 and world.count("deadline_between_tokens") == 0
    if http:
        say(second, head(), part(chunk(1), 1, finish="stop"), part(DONE))
    else:
        second.sink.on_response_data(said(2, finish=1), False)
    second.finish()
    assert world.metrics.moves.sample().outcomes == {"moved": 1}
    one.over()


async def test_the_call_s_own_time_still_ends_it_while_it_has_no_node() -> None:
    call = Call(rig(), (b"grpc-timeout", b"300m"))
    node = call.node()
    node.begin(GRANT)
    node.sink.on_response_data(said(1), False)
    await silent(call, node)
    (await call.next_node()).begin(GRANT)
    await until(lambda: call.client.ended, "the call has ended", 5)
    error = call.error()
    assert error.metadata is not None and error.metadata["phase"] == "total"
    call.over()


async def test_a_stream_without_a_journal_ends_with_the_limit() -> None:
    call = Call(rig())
    node = call.node()
    node.begin()
    node.sink.on_response_data(said(1), False)
    call.client.drain()
    await until(lambda: call.client.ended, "the call has ended", 5)
    assert call.error().reason == "DEADLINE"
    call.over()
