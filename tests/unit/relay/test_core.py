"""What front and gateway share: the only model, what a node is told, and reports of defects."""

from __future__ import annotations

import logging

import pytest

from router_node.dispatch import Ask, Reservation
from router_node.middleware.keys import Caller
from router_node.relay.account import Account
from router_node.relay.core import MAX_TENANTS
from shared import headers as names
from shared.errors import LayaError
from tests.support.relay_rig import MODEL, Rig

FIELDS = {b":path": b"/laya.v1.Inference/Generate", b"content-type": b"application/grpc"}


def told(rig: Rig, tenant: str = "", priority: int = 0) -> dict[bytes, bytes]:
    """What a node is told of a request."""
    account = Account(rig.core, "grpc", "Generate", "127.0.0.1:4", 0.0)
    account.request_id = b"req-1"
    account.caller = Caller(tenant, -9, "k")
    reservation = rig.dispatcher.submit(Ask(MODEL, prompt_tokens=1, priority=priority), lambda _: None, lambda _: None)
    assert isinstance(reservation, Reservation)
    account.reservation = reservation
    out = rig.core.node_headers(FIELDS, account, reservation, [(b"grpc-timeout", b"1S")])
    account.end()
    assert [name for name, _ in out[:4]] == [b":method", b":scheme", b":authority", b":path"]
    return dict(out)


async def test_a_request_that_names_no_model_needs_exactly_one():
    rig = Rig()
    assert rig.core.only_model() == MODEL
    with pytest.raises(LayaError, match="none yet"):
        Rig(0).core.only_model()


async def test_a_node_is_told_the_dispatch_the_priority_and_the_time():
    got = told(Rig(cluster_token=b"cs"), priority=-7)
    assert got[names.DISPATCH].startswith(b"w0-")
    assert got[names.PRIORITY] == b"-7"
    assert got[names.CLUSTER_TOKEN] == b"cs"
    assert got[names.REQUEST_ID] == b"req-1"
    assert got[b"grpc-timeout"] == b"1S"
    assert got[b"te"] == b"trailers"
    assert names.TENANT not in got and names.SALT not in got


async def test_tenants_have_salts_of_their_own_that_every_router_of_the_cluster_makes_alike():
    one, two, other = Rig(cluster_token=b"a"), Rig(cluster_token=b"a"), Rig(cluster_token=b"b")
    salt = told(one, "acme")[names.SALT]
    assert salt == told(two, "acme")[names.SALT]
    assert salt != told(one, "other")[names.SALT]
    assert salt != told(other, "acme")[names.SALT]


async def test_what_is_kept_of_tenants_is_bounded():
    rig = Rig()
    for i in range(MAX_TENANTS + 10):
        rig.core._tenant(f"t{i}")
    assert len(rig.core._tenants) <= MAX_TENANTS


async def test_defects_are_counted_each_and_traced_once_a_second(caplog):
    rig = Rig()
    with caplog.at_level(logging.ERROR, logger="laya.relay"):
        for _ in range(5):
            error = rig.core.defect(ValueError("secret detail"), b"req-1")
    assert "secret" not in error.message
    assert rig.count("defect") == 5
    assert len(caplog.records) == 1
