"""Ways of ngh2's that the network layer works around: a release that behaves differently fails here.

What it shares with the other engine is in test_engine.py.
"""

from __future__ import annotations

from shared.net.api import CANCEL, NO_ERROR, PROTOCOL_ERROR
from shared.net.settings import NetSettings
from tests.support.engine_pair import ALL, Pair
from tests.support.h2_rig import REQUEST, RESPONSE, TRAILERS


def test_trap_half_a_frame_of_a_stream_that_ends_is_lost_to_the_window():
    """Why align.py exists: fed in halves, these bytes reach no event and can never be acknowledged."""
    pair = Pair()
    stream = pair.client.request(REQUEST)
    pair.client.send(stream, b"x" * 10_000)
    out = pair.client.take(ALL)
    cut = len(out) - 5000
    pair.server.receive(out[:cut])
    pair.server.reset(stream, CANCEL)
    pair.server.take(ALL)
    pair.server.receive(out[cut:])
    pair.server.dispatch(pair.s)
    assert stream not in pair.s.data
    assert pair.server.local_window() < NetSettings().connection_window


def test_trap_a_value_with_a_space_at_its_end_costs_the_stream():
    """Why outbound values are trimmed (fields.py)."""
    pair = Pair()
    stream = pair.client.request(REQUEST, end_stream=True)
    pair.pump()
    pair.server.respond(stream, RESPONSE)
    pair.server.trailers(stream, [(b"grpc-status", b"5"), (b"grpc-message", b"boom ")])
    pair.pump()
    assert ("closed", stream, PROTOCOL_ERROR, False) in pair.c.pop()


def test_trap_a_reset_before_the_flush_throws_the_answer_away():
    """Why a server stream waits until its answer has left before it ends the request."""
    pair = Pair()
    stream = pair.client.request(REQUEST)
    pair.pump()
    pair.server.respond(stream, RESPONSE)
    pair.server.trailers(stream, TRAILERS)
    pair.server.reset(stream, NO_ERROR)
    pair.pump()
    assert [event[0] for event in pair.c.pop()] == ["closed"]


def test_trap_trailers_behind_an_empty_body_wait_for_a_shut_window():
    """Why queued() == 0 alone does not say that trailers have left."""
    pair = Pair()
    stream = pair.client.request(REQUEST)
    pair.pump()
    pair.server.respond(stream, RESPONSE)
    pair.server.send(stream, b"x" * 65_536)
    pair.pump()
    assert pair.server.queued(stream) == 0
    assert pair.server.peer_window(stream) == 0
    pair.server.trailers(stream, TRAILERS)
    pair.pump()
    assert ("trailers", stream) not in pair.c.pop()
    pair.client.acknowledge(65_536, stream)
    pair.pump()
    assert ("trailers", stream) in pair.c.pop()


def test_trap_a_request_over_the_limit_is_queued_and_forgotten_on_cancel():
    """Why clients count their streams themselves."""
    pair = Pair(max_streams=2)
    for _ in range(2):
        pair.client.request(REQUEST, end_stream=True)
    extra = pair.client.request(REQUEST, end_stream=True)
    pair.pump()
    assert [event[1] for event in pair.s.pop()] == [1, 3]
    pair.client.reset(extra, CANCEL)
    pair.pump()
    assert pair.c.pop() == []
