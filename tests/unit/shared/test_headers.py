"""What a header that is a switch says, to a router and to a node."""

from __future__ import annotations

import pytest

from inference_node.call import Call
from shared import headers as names
from tests.unit.gateway.test_moving_relay import Ask
from tests.unit.relay.test_moving_stream import Call as GrpcCall
from tests.unit.relay.test_moving_stream import rig


@pytest.mark.parametrize(
    ("value", "on"),
    [(b"1", True), (b"true", True), (b" TRUE ", True), (b"yes", True), (b"0", False), (b"False", False), (b"", False)],
)
async def test_router_and_node_read_it_alike(value: bytes, on: bool) -> None:
    assert names.is_set(value) is on
    assert Call({names.NO_MIGRATE: value}, "r").no_migrate is on
    for made in (Ask(rig(), (names.NO_MIGRATE, value)), GrpcCall(rig(), (names.NO_MIGRATE, value))):
        node = made.node()
        assert (names.JOURNAL not in node.headers) is on
        node.lose()
        tried = [stream for upstream in made.rig.upstreams.values() for stream in upstream.streams]
        assert len(tried) == (1 if on else 2)


def test_a_missing_one_is_off() -> None:
    assert not names.is_set(None)
