"""Metadata beside a body."""

from __future__ import annotations

import pytest

from inference_node.call import Call
from shared.errors import LayaError


def test_router_metadata_is_read():
    call = Call(
        {b"laya-dispatch": b"w1-a", b"laya-salt": b"s", b"laya-rewrite": b"m", b"laya-priority": b"-3"}, "r1", 5.0
    )
    assert (call.dispatch, call.salt, call.rewrite, call.priority) == ("w1-a", "s", "m", -3)
    assert (call.request_id, call.deadline) == ("r1", 5.0)


def test_the_routers_priority_goes_over_the_bodys():
    assert Call({b"laya-priority": b"2"}, "r").priority_over(-9) == 2
    assert Call({}, "r").priority_over(-9) == -9
    assert Call({b"laya-clamps": b'{"priority":{"min":0}}'}, "r").priority_over(-9) == 0


def test_the_tenants_salt_stands_before_the_callers():
    tenant = Call({b"laya-salt": b"t"}, "r")
    assert (tenant.salt_over("own"), tenant.salt_over("")) == ("t:own", "t")
    assert Call({}, "r").salt_over("own") == "own"


@pytest.mark.parametrize(
    "metadata",
    [
        {b"laya-priority": b"high"},
        {b"laya-priority": b"99999999999"},
        {b"laya-priority": b"9" * 1000},
        {b"laya-dispatch": b"x" * 161},
        {b"laya-clamps": b"{"},
    ],
)
def test_metadata_that_makes_no_sense_is_refused_by_name(metadata):
    with pytest.raises(LayaError, match=next(iter(metadata)).decode()):
        Call(metadata, "r")
