"""Calls that reach no node: a client that does not finish what it asks holds nothing for long."""

from __future__ import annotations

import pytest

from router_node.relay.front import MAX_WATCHES
from router_node.relay.local import MAX_QUESTION
from shared.errors import Code
from shared.net.grpc_wire import frame
from tests.support.fake_streams import FakeServerStream
from tests.support.ports import until
from tests.support.relay_calls import error_of, headers
from tests.support.relay_rig import Rig

LIST = b"/laya.v1.Inference/ListModels"
CHECK = b"/grpc.health.v1.Health/Check"


@pytest.mark.parametrize("path", [LIST, CHECK])
async def test_a_request_that_does_not_go_on_is_answered_with_a_deadline(path: bytes):
    rig = Rig(body_timeout=0.05)
    client = FakeServerStream()
    client.sink = rig.front.accept(client, headers(path), False)
    await until(lambda: client.ended, "it is refused")
    assert (error_of(client).code, error_of(client).reason) == (Code.DEADLINE_EXCEEDED, "DEADLINE")
    client.settle()
    if rig.bridge.streams:
        assert rig.bridge.last.code == 8
        rig.bridge.last.settle()
    rig.assert_idle()
    assert len(rig.core.uploads) == 0


async def test_a_list_that_is_asked_for_in_pieces_comes_once_the_request_is_whole():
    rig = Rig(body_timeout=0.05)
    client = FakeServerStream()
    client.sink = rig.front.accept(client, headers(LIST), False)
    assert client.sink is not None
    client.sink.on_data(b"\0", False)
    client.sink.on_data(b"\0\0\0\0", True)
    assert client.status()[b"grpc-status"] == b"0"
    assert len(rig.core.uploads) == 0
    client.settle()
    rig.assert_idle()


async def test_a_request_that_says_nothing_at_great_length_is_refused_once():
    rig = Rig()
    client = FakeServerStream()
    client.sink = rig.front.accept(client, headers(LIST), False)
    assert client.sink is not None
    for _ in range(4):
        client.sink.on_data(b"x" * (MAX_QUESTION // 2), False)
    assert error_of(client).reason == "BODY_TOO_LARGE"
    client.sink.on_data(b"", True)
    client.settle()
    rig.assert_idle()


async def test_what_stands_in_place_of_request_trailers_goes_no_further():
    rig = Rig()
    client = FakeServerStream()
    client.sink = rig.front.accept(client, headers(CHECK), False)
    assert client.sink is not None
    client.sink.on_data(frame(b""), False)
    client.sink.on_trailers([(b"authorization", b"Bearer laya-secret"), (b"laya-cluster-token", b"forged")])
    assert rig.bridge.last.ended and rig.bridge.last.data == [frame(b""), b""]
    rig.bridge.last.answer(b"\x08\x01")
    client.settle()
    rig.assert_idle()


async def test_those_who_watch_leave_room_for_those_who_ask():
    rig = Rig()
    watch = b"/grpc.health.v1.Health/Watch"
    watching = [FakeServerStream().call(rig.front.accept, headers(watch), b"") for _ in range(MAX_WATCHES + 3)]
    refused = [client for client in watching if client.ended]
    assert len(refused) == 3
    assert error_of(refused[0]).code == Code.RESOURCE_EXHAUSTED
    probe = FakeServerStream().call(rig.front.accept, headers(CHECK), b"")
    rig.bridge.last.answer(b"\x08\x01")
    assert probe.status()[b"grpc-status"] == b"0"
    watching[0].cancel()
    rig.bridge.streams[0].settle()
    again = FakeServerStream().call(rig.front.accept, headers(watch), b"")
    assert not again.ended
    for client in (*watching[1:], again, probe):
        client.settle() if client.ended else client.cancel()
    for stream in rig.bridge.streams:
        stream.settle()
    rig.assert_idle()
