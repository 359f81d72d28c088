"""What a node's refusal means: for the node, and for the request."""

from __future__ import annotations

import pytest

from router_node.relay.account import no_room, not_begun
from shared.errors import Code, LayaError
from tests.support.fake_streams import FakeServerStream
from tests.support.relay_rig import MODEL, Rig
from tests.unit.relay.test_relay_stream import headers, request


def refusal(code: Code, reason: str) -> LayaError:
    return LayaError(code, reason, "No.")


@pytest.mark.parametrize("reason", ["QUEUE_FULL", "QUEUE_TIMEOUT"])
def test_a_node_without_room_says_so_by_its_reason(reason: str):
    error = refusal(Code.RESOURCE_EXHAUSTED, reason)
    assert no_room(error) and not_begun(error)


@pytest.mark.parametrize("reason", ["BODY_TOO_LARGE", "HEADERS_TOO_LARGE", "RESOURCE_EXHAUSTED", ""])
def test_what_is_wrong_with_a_request_is_wrong_everywhere_and_rests_no_node(reason: str):
    error = refusal(Code.RESOURCE_EXHAUSTED, reason)
    assert not no_room(error) and not not_begun(error)


@pytest.mark.parametrize("reason", ["DRAINING", "NOT_READY", "UPLOADS_FULL"])
def test_a_node_that_cannot_begin_gives_the_request_back_without_a_rest(reason: str):
    assert not_begun(refusal(Code.UNAVAILABLE, reason)) and not no_room(refusal(Code.UNAVAILABLE, reason))


@pytest.mark.parametrize("code", [Code.INVALID_ARGUMENT, Code.INTERNAL])
def test_no_other_code_is_a_refusal_whatever_its_reason(code: Code):
    assert not not_begun(refusal(code, "QUEUE_FULL"))


async def test_one_client_s_oversize_message_neither_rests_a_node_nor_visits_all_of_them():
    rig = Rig()
    client = FakeServerStream().call(rig.front.accept, headers(), request())
    node = rig.used
    node.last.refuse(refusal(Code.RESOURCE_EXHAUSTED, "BODY_TOO_LARGE").grpc_trailers())
    assert client.status()[b"grpc-status"] == b"8"
    assert not rig.other(node).streams
    client.settle()
    rig.assert_idle()
    assert rig.count("node_refused") == 0
    after = FakeServerStream().call(rig.front.accept, headers(), request(model=MODEL))
    assert len(node.streams) + len(rig.other(node).streams) == 2
    after.cancel()
