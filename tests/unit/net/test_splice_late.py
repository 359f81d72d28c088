"""Two streams joined late: what came before is sent at the join, and may end without one."""

from __future__ import annotations

import pytest

from shared.errors import Code, LayaError
from shared.net.api import (
    CANCEL,
    NO_ERROR,
)
from tests.support.h2_rig import (
    REQUEST,
    RESPONSE,
)
from tests.support.splice_rig import Rig

pytestmark = pytest.mark.usefixtures("engine_name")


def test_what_comes_before_the_join_is_sent_at_the_join():
    rig = Rig(late=True)
    relay = rig.call(b"early", end=False)
    rig.client.connection.send_data(1, b"more", end_stream=True)
    rig.pump()
    assert b"".join(relay.early_data()) == b"earlymore"
    assert rig.node.streams == {}
    assert relay.join(rig, REQUEST)
    rig.pump()
    assert (bytes(rig.node.streams[1].data), rig.node.streams[1].ended) == (b"earlymore", True)
    with pytest.raises(RuntimeError, match="joined"):
        relay.join(rig, REQUEST)


def test_a_late_join_of_a_request_that_goes_on():
    rig = Rig(late=True)
    relay = rig.call(b"early", end=False)
    assert relay.join(rig, REQUEST)
    rig.pump()
    assert not rig.node.streams[1].ended
    rig.client.connection.send_trailers(1, [(b"x-t", b"1")])
    rig.pump()
    assert rig.node.streams[1].trailers == [(b"x-t", b"1")]


def test_a_late_join_sends_trailers_that_came_before():
    rig = Rig(late=True)
    relay = rig.call(b"early", end=False)
    rig.client.connection.send_trailers(1, [(b"x-t", b"1")])
    rig.pump()
    assert relay.join(rig, REQUEST)
    rig.pump()
    assert (bytes(rig.node.streams[1].data), rig.node.streams[1].trailers) == (b"early", [(b"x-t", b"1")])


def test_before_the_join_the_client_may_send_a_window_and_what_is_asked_for():
    rig = Rig(late=True)
    relay = rig.call(b"x" * 300_000, end=True)
    assert relay.bytes_in == 65_536
    relay.ask_more(65_536)
    rig.pump()
    assert relay.bytes_in == 131_072
    assert relay.join(rig, REQUEST)
    rig.pump()
    assert len(rig.node.streams[1].data) == 300_000
    assert rig.node.streams[1].ended


def test_a_client_that_leaves_before_the_join_is_finished_with():
    rig = Rig(late=True)
    relay = rig.call(b"x", end=False)
    rig.client.connection.reset_stream(1, CANCEL)
    rig.pump()
    assert relay.hooks == [("finished", CANCEL)]
    assert not relay.can_replay


def test_an_error_before_the_join_is_trailers_only():
    rig = Rig(late=True)
    relay = rig.call(b"x", end=False)
    error = LayaError(Code.NOT_FOUND, "MODEL_NOT_FOUND", "No such model.")
    relay.fail(error)
    relay.fail(error)
    rig.pump()
    assert dict(rig.seen.headers)[b"grpc-status"] == b"5"
    assert rig.seen.reset == NO_ERROR
    assert relay.hooks == [("finished", 0)]


def test_an_error_of_ours_in_the_middle_cancels_the_node():
    rig = Rig()
    relay = rig.call(b"x")
    rig.node.connection.send_response(1, RESPONSE)
    rig.node.connection.send_data(1, b"part")
    rig.pump()
    relay.fail(LayaError(Code.DEADLINE_EXCEEDED, "DEADLINE", "Too late."))
    rig.pump()
    assert bytes(rig.seen.data) == b"part"
    assert rig.seen.trailers is not None
    assert dict(rig.seen.trailers)[b"grpc-status"] == b"4"
    assert rig.node.streams[1].reset == CANCEL
    assert relay.hooks == ["response", "first_byte", "upstream_closed", ("finished", 0)]
    assert rig.empty()


def test_no_upstream_means_no_join():
    rig = Rig(late=True)
    relay = rig.call(b"x", end=False)
    for up in rig.ups:
        up.retire("")
    assert not relay.join(rig, REQUEST)
    assert relay.can_replay
