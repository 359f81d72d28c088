"""An account gives its place back once, counts once, and says what happened."""

from __future__ import annotations

import pytest

from router_node.dispatch import Reservation
from router_node.relay.account import Account
from router_node.relay.faults import node_lost
from router_node.relay.fields import Fields
from shared.errors import Code, LayaError
from tests.support.relay_rig import MODEL, Rig


def fields() -> Fields:
    out = Fields()
    out.model = MODEL
    out.prompt_tokens = 10
    out.max_new_tokens = 10
    return out


def account(rig: Rig) -> Account:
    return Account(rig.core, "grpc", "Generate", "127.0.0.1:4", rig.core.clock())


def no_grant(reservation: Reservation) -> None:
    raise AssertionError("no grant was expected")


def no_refusal(error: LayaError) -> None:
    raise AssertionError("no refusal was expected")


async def test_a_place_is_held_until_it_is_released_and_the_end_counts_once():
    rig = Rig()
    one = account(rig)
    assert rig.core.live == 1
    reservation = one.submit(fields(), no_grant, no_refusal)
    assert reservation is not None and one.node_id == reservation.node.id
    assert rig.dispatcher.reserved_tokens > 0
    one.sent(one.started)
    one.end()
    one.end()
    rig.assert_idle()
    assert rig.metrics.snapshot().requests == [("Generate", 0, 1)]
    (line,) = rig.log.entries
    assert (line["model"], line["node_id"], line["attempts"]) == (MODEL, reservation.node.id, 1)
    assert one.seconds >= one.routed >= 0


async def test_the_end_of_a_request_that_waits_takes_it_out_of_the_line():
    rig = Rig(headroom=0)
    one = account(rig)
    assert one.submit(fields(), no_grant, no_refusal) is None
    assert rig.dispatcher.queued == 1
    one.end()
    rig.assert_idle()
    rig.report("n0", 100_000)


async def test_other_nodes_are_tried_each_once_and_not_without_end():
    rig = Rig(4, max_attempts=3)
    one = account(rig)
    first = one.submit(fields(), no_grant, no_refusal)
    second, third, fourth = one.another(), one.another(), one.another()
    assert first is not None and second is not None and third is not None and fourth is None
    assert len({first.node.id, second.node.id, third.node.id}) == 3
    assert one.attempts == 3
    one.end()
    rig.assert_idle()


async def test_a_failure_is_told_by_its_code_or_its_http_status():
    rig = Rig()
    error = LayaError(Code.RESOURCE_EXHAUSTED, "QUEUE_FULL", "Full.")
    one, two = account(rig), account(rig)
    one.failed(error)
    two.failed(error, http=True)
    assert (one.code, two.code, one.reason) == (8, 429, "QUEUE_FULL")
    one.end()
    two.end()


@pytest.mark.parametrize("safe", [True, False])
def test_a_lost_node_s_error_says_whether_to_try_again(safe):
    error = node_lost("n1", "was lost", safe)
    assert error.metadata == {"node": "n1", "retry_safe": "true" if safe else "false"}
    assert ("try again" in error.message) == safe
    assert (error.retry_after is not None) == safe
