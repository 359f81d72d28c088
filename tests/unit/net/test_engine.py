"""What every engine behind the seam does, between two of a kind and between two kinds."""

from __future__ import annotations

from typing import Literal

import pytest
from ngh2 import Configuration, Connection, Role

from shared.net.api import CANCEL, NO_ERROR, REFUSED_STREAM
from shared.net.engine import make_engine
from shared.net.h2_engine import H2Engine
from shared.net.ngh2_engine import Ngh2Engine
from shared.net.settings import NetSettings
from tests.support.engine_pair import ALL, Log, Pair
from tests.support.h2_rig import REQUEST, RESPONSE, TRAILERS

Names = tuple[str, str]


@pytest.fixture(params=[("ngh2", "ngh2"), ("h2", "h2"), ("ngh2", "h2"), ("h2", "ngh2")], ids="-".join)
def names(request: pytest.FixtureRequest) -> Names:
    """Engines of client and server."""
    pair: Names = request.param
    return pair


@pytest.fixture(params=["ngh2", "h2"])
def engine_name(request: pytest.FixtureRequest) -> str:
    """One engine."""
    return str(request.param)


def test_engines_are_made_by_name():
    assert isinstance(make_engine("client", NetSettings()), Ngh2Engine)
    assert isinstance(make_engine("client", NetSettings(engine="h2")), H2Engine)
    with pytest.raises(ValueError, match="'quic'"):
        make_engine("server", NetSettings(engine="quic"))


@pytest.mark.parametrize("role", ["client", "server"])
def test_the_first_bytes_announce_the_windows(engine_name: str, role: Literal["client", "server"]):
    settings = NetSettings(engine=engine_name)
    engine = make_engine(role, settings)
    out = engine.hello
    assert settings.stream_window.to_bytes(4, "big") in out
    assert (settings.connection_window - 65535).to_bytes(4, "big") in out
    assert engine.local_window() == settings.connection_window


def test_a_call_is_told_in_order_on_both_sides(names: Names):
    pair = Pair(*names)
    stream = pair.client.request(REQUEST)
    pair.client.send(stream, b"ask", end_stream=True)
    pair.pump()
    assert pair.s.pop() == [("request", stream, False), ("data", stream, 3, True)]
    pair.server.respond(stream, RESPONSE)
    pair.server.send(stream, b"answer")
    pair.server.trailers(stream, TRAILERS)
    pair.pump()
    assert pair.c.pop() == [
        ("response", stream, False),
        ("data", stream, 6, False),
        ("trailers", stream),
        ("closed", stream, 0, False),
    ]
    assert pair.s.pop() == [("closed", stream, 0, False)]


def test_an_owner_that_raises_does_not_keep_the_others_from_their_events(names: Names):
    pair = Pair(*names)
    for _ in range(2):
        pair.client.request(REQUEST, end_stream=True)
    pair.s.fail_on = "request"
    pair.pump()
    assert pair.s.pop() == [("request", 1, True), ("fault", 1, "an owner's bug"), ("request", 3, True)]


def test_dispatch_says_whether_there_was_anything(names: Names):
    pair = Pair(*names)
    assert not pair.server.dispatch(pair.s)
    pair.client.request(REQUEST)
    pair.server.receive(pair.client.take(ALL))
    assert pair.server.dispatch(pair.s)
    assert not pair.server.dispatch(pair.s)


def test_pings_are_answered_and_counted(names: Names):
    pair = Pair(*names)
    pair.client.ping(b"12345678")
    pair.pump()
    assert pair.s.pop() == [("ping",)]
    assert pair.c.pop() == [("pong", b"12345678")]


def test_the_peers_stream_limit_is_known(names: Names):
    pair = Pair(*names, max_streams=5, stream_slack=2)
    assert pair.client.peer_max_streams() == 5
    assert pair.server.peer_max_streams() > 1 << 31


def test_unacknowledged_bytes_keep_the_window_shut(names: Names):
    pair = Pair(*names)
    stream = pair.client.request(REQUEST)
    pair.client.send(stream, b"x" * 200_000)
    pair.pump()
    assert pair.s.data[stream] == 65_535 + 1
    assert pair.client.peer_window(stream) == 0
    assert pair.client.queued(stream) == pair.client.queued() == 200_000 - 65_536
    pair.server.acknowledge(40_000, stream)
    pair.pump()
    assert pair.s.data[stream] == 65_536 + 40_000


def test_more_cannot_be_acknowledged_than_came(names: Names):
    pair = Pair(*names)
    stream = pair.client.request(REQUEST)
    pair.client.send(stream, b"x" * 10)
    pair.pump()
    with pytest.raises(pair.server.errors):
        pair.server.acknowledge(11, stream)
    pair.server.acknowledge(10, stream)


def test_bytes_of_a_closed_stream_are_acknowledged_for_the_connection(names: Names):
    pair = Pair(*names)
    stream = pair.client.request(REQUEST)
    pair.client.send(stream, b"x" * 60_000)
    pair.pump()
    before = pair.server.local_window()
    pair.client.reset(stream, CANCEL)
    pair.pump()
    assert pair.s.pop()[-1] == ("closed", stream, CANCEL, False)
    pair.server.acknowledge(60_000, stream)
    assert before == NetSettings().connection_window - 60_000
    with pytest.raises(pair.server.errors):
        pair.server.acknowledge(1, stream)


def test_whole_frames_of_a_stream_that_ends_come_back_to_the_window(names: Names):
    pair = Pair(*names)
    stream = pair.client.request(REQUEST)
    pair.pump()
    pair.server.reset(stream, CANCEL)
    pair.client.send(stream, b"x" * 10_000)
    out = pair.client.take(ALL)
    pair.server.take(ALL)
    pair.server.receive(out)
    pair.server.dispatch(pair.s)
    held = pair.s.data.get(stream, 0)
    if held:
        pair.server.acknowledge(held, stream)
    lost = NetSettings().connection_window - pair.server.local_window()
    assert lost == 10_000, "counted as consumed, to be given back with the next window update"
    pair.server.take(ALL)


def test_a_server_tolerates_a_few_more_streams_than_it_tells(names: Names):
    pair = Pair(*names, max_streams=5, stream_slack=4)
    assert (5).to_bytes(4, "big") in pair.server.hello
    raw = Connection(Role.CLIENT, Configuration(peer_max_concurrent_streams=1 << 20))
    raw.initiate_connection()
    server = make_engine("server", NetSettings(engine=names[1], max_streams=5, stream_slack=4))
    log = Log()
    for _ in range(9):
        raw.send_request(REQUEST, end_stream=True)
    server.receive(raw.data_to_send())
    server.dispatch(log)
    assert len([event for event in log.events if event[0] == "request"]) == 9
    server.take(ALL)
    raw.receive_data(server.hello)
    assert raw.remote_settings[3] == 5


def test_a_header_block_too_large_to_send_is_a_local_refusal(names: Names):
    pair = Pair(*names)
    stream = pair.client.request([*REQUEST, (b"x", b"v" * 700_000)], end_stream=True)
    pair.pump()
    assert pair.c.pop() == [("closed", stream, REFUSED_STREAM, True)]
    assert pair.s.pop() == []


def test_streams_refused_by_a_goaway_are_told_apart(names: Names):
    pair = Pair(*names)
    first = pair.client.request(REQUEST, end_stream=True)
    pair.pump()
    pair.server.goaway(NO_ERROR)
    second = pair.client.request(REQUEST, end_stream=True)
    assert pair.client.take(ALL)
    unsent = pair.client.request(REQUEST, end_stream=True)
    pair.client.receive(pair.server.take(ALL))
    pair.client.dispatch(pair.c)
    assert ("goaway", first, NO_ERROR) in pair.c.events
    assert ("closed", second, REFUSED_STREAM, False) in pair.c.pop()
    assert pair.client.take(ALL) == b""
    pair.client.dispatch(pair.c)
    assert pair.c.pop() == [("closed", unsent, REFUSED_STREAM, True)]
    with pytest.raises(pair.client.errors):
        pair.client.request(REQUEST)
    pair.server.respond(first, RESPONSE, end_stream=True)
    pair.pump()
    assert pair.c.pop()[-1] == ("end", NO_ERROR)


def test_a_shutdown_notice_leaves_running_streams_alone(names: Names):
    pair = Pair(*names)
    stream = pair.client.request(REQUEST, end_stream=True)
    pair.pump()
    pair.server.shutdown_notice()
    pair.pump()
    assert pair.c.pop() == [("goaway", (1 << 31) - 1, NO_ERROR)]
    pair.server.respond(stream, RESPONSE, end_stream=True)
    pair.pump()
    assert ("response", stream, True) in pair.c.pop()


def test_a_message_waits_behind_one_frame_of_a_bulk_stream_that_shares(names: Names):
    pair = Pair(*names)
    bulk, small = pair.client.request(REQUEST), pair.client.request(REQUEST)
    pair.pump()
    pair.server.share_fairly(bulk)
    for stream in (bulk, small):
        pair.server.respond(stream, RESPONSE)
    pair.server.send(bulk, b"b" * 65_000)
    first = pair.server.take(20_000)
    pair.server.send(small, b"s" * 10)
    pair.client.receive(first + pair.server.take(ALL))
    pair.client.dispatch(pair.c)
    order = [event[1] for event in pair.c.events if event[0] == "data"]
    assert order.index(small) <= 3  # behind the frame that was cut and one more
    assert order.count(bulk) == 4


def test_share_fairly_is_allowed_on_a_client(names: Names):
    pair = Pair(*names)
    stream = pair.client.request(REQUEST)
    pair.client.share_fairly(stream)


def test_taking_in_parts_gives_the_same_bytes(names: Names):
    whole, parts = Pair(*names), Pair(*names)
    for pair in (whole, parts):
        stream = pair.client.request(REQUEST)
        pair.client.send(stream, b"x" * 50_000, end_stream=True)
    expected = whole.client.take(ALL)
    got = b""
    while True:
        piece = parts.client.take(1000)
        got += piece
        if len(piece) < 1000:
            break
    assert got == expected


def test_garbage_is_an_error_and_nothing_works_after_it(engine_name: str):
    engine = make_engine("server", NetSettings(engine=engine_name))
    with pytest.raises(engine.errors):
        engine.receive(b"GET / HTTP/1.1\r\n\r\n......")
    with pytest.raises(engine.errors):
        engine.take(ALL)
    assert not engine.dispatch(Log())


def test_a_header_list_over_the_hard_limit_ends_the_connection(names: Names):
    pair = Pair(*names, hard_header_bytes=100_000)
    pair.client.request([*REQUEST, *((b"x%d" % i, b"v" * 9000) for i in range(12))], end_stream=True)
    with pytest.raises(pair.server.errors):
        pair.server.receive(pair.client.take(ALL))


def test_calls_about_streams_that_are_over_raise_what_callers_expect(names: Names):
    pair = Pair(*names)
    stream = pair.client.request(REQUEST, end_stream=True)
    pair.pump()
    pair.server.respond(stream, RESPONSE, end_stream=True)
    pair.pump()
    for call in (
        lambda: pair.server.send(stream, b"x"),
        lambda: pair.server.trailers(stream, TRAILERS),
        lambda: pair.server.respond(stream, RESPONSE),
        lambda: pair.server.share_fairly(stream),
        lambda: pair.server.peer_window(stream),
    ):
        with pytest.raises(pair.server.errors):
            call()
    pair.server.reset(stream, CANCEL)  # harmless
    assert pair.server.take(ALL) == b""
