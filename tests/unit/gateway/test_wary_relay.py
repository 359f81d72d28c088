"""An OpenAI request that nodes die of is refused; one that any node answered is not."""

from __future__ import annotations

import json

import pytest

from shared import headers as names
from shared.errors import LayaError, invalid, unavailable
from tests.unit.gateway.test_moving_relay import BODY, DONE, GRANT, Ask, chunk, head, part, rig, say

STAYS = (names.JOURNAL, b"0; n is over 1")
JSON = ("content-type", "application/json")


def remembered(ask: Ask) -> int:
    """Requests that nodes were lost with."""
    moves = ask.rig.core.migrations
    assert moves is not None
    return len(moves.poisons)


def code(ask: Ask) -> str:
    return str(json.loads(ask.text)["error"]["code"])


@pytest.mark.parametrize("granted", [(STAYS,), (), (GRANT,)], ids=["stays", "silent", "moves"])
async def test_an_answer_clears_a_request_that_a_node_was_lost_with(granted: tuple[tuple[bytes, bytes], ...]) -> None:
    world = rig(4)
    for _ in range(3):
        ask = Ask(world)
        ask.node().lose()
        assert remembered(ask) == 1
        node = await ask.next_node()
        node.begin(*granted)
        say(node, head(), part(chunk(0), 1, finish="stop"), part(DONE))
        node.finish()
        assert ask.text == chunk(0) + DONE
        assert remembered(ask) == 0
        ask.over()
        for upstream in world.upstreams.values():
            upstream.streams.clear()


@pytest.mark.parametrize(("status", "left"), [(200, 0), (400, 0), (500, 1), (503, 1)])
@pytest.mark.parametrize("granted", [STAYS, GRANT], ids=["stays", "moves"])
async def test_a_whole_answer_clears_it_too_but_no_trouble_of_the_node(
    granted: tuple[bytes, bytes], status: int, left: int
) -> None:
    ask = Ask(rig(2))
    ask.node().lose()
    node = await ask.next_node()
    node.begin(granted)
    say(node, head(status, JSON), part(b"{}"))
    node.finish()
    assert (ask.client.status, ask.text) == (status, b"{}")
    assert remembered(ask) == left
    ask.over()


@pytest.mark.parametrize(
    ("error", "left"), [(invalid("no"), 0), (unavailable("Gone.", "ENGINE_DEAD"), 1)], ids=["refused", "dead engine"]
)
async def test_a_refusal_clears_a_request_but_not_what_may_be_another_death(error: LayaError, left: int) -> None:
    ask = Ask(rig(4))
    ask.node().lose()
    (await ask.next_node()).refuse(error.grpc_trailers())
    assert ask.client.state == "responded"
    assert remembered(ask) == left
    ask.over()


async def test_a_request_that_no_node_may_repeat_counts_for_nothing() -> None:
    world = rig(4)
    for _ in range(3):
        ask = Ask(world, (names.NO_MIGRATE, b"1"))
        ask.node().lose()
        assert code(ask) == "node_lost"
        assert remembered(ask) == 0
        ask.over()
        for upstream in world.upstreams.values():
            upstream.streams.clear()


WHOLE = BODY.replace(b',"stream":true', b"")


async def test_a_request_for_a_whole_answer_is_refused_after_two_nodes_too_and_when_it_is_sent_again() -> None:
    world = rig(5)
    ask = Ask(world, body=WHOLE)
    assert names.JOURNAL not in ask.fresh()[0].headers
    ask.node().lose()
    node = await ask.next_node()
    node.begin()
    say(node, head(200, JSON))
    node.lose()
    assert (ask.client.status, code(ask)) == (503, "poisonous")
    assert b"again" not in ask.text
    assert b"retry-after" not in dict(ask.client.reply_headers)
    ask.over()
    again = Ask(world, body=WHOLE)
    assert code(again) == "poisonous"
    again.over()
    assert sum(len(upstream.streams) for upstream in world.upstreams.values()) == 2
    assert world.metrics.moves.sample().poisonous == 2


async def test_a_request_for_a_whole_answer_that_gets_it_is_forgotten() -> None:
    world = rig(4)
    for _ in range(3):
        ask = Ask(world, body=WHOLE)
        ask.node().lose()
        node = await ask.next_node()
        node.begin()
        say(node, head(200, JSON), part(b"{}"))
        node.finish()
        assert ask.text == b"{}"
        assert remembered(ask) == 0
        ask.over()
        for upstream in world.upstreams.values():
            upstream.streams.clear()


async def test_a_stream_that_cannot_move_goes_to_another_node_until_its_first_event() -> None:
    ask = Ask(rig(4))
    node = ask.node()
    node.begin(STAYS)
    say(node, head())
    assert ask.client.state == "fresh"
    node.lose()
    after = await ask.next_node()
    after.begin(STAYS)
    say(after, head(), part(chunk(0)))
    assert dict(ask.client.reply_headers)[names.MIGRATABLE] == b"0; n is over 1"
    assert remembered(ask) == 0
    after.lose()
    assert json.loads(ask.text.split(b"\n\n")[-2].removeprefix(b"data: "))["error"]["code"] == "node_lost"
    ask.over()
