"""Streams that clients open: answered in full, even when the client still sends."""

from __future__ import annotations

import pytest

from shared.net.api import CANCEL, NO_ERROR, REFUSED_STREAM, Headers, ServerStream
from shared.net.fields import CheckedHeaders
from tests.support.h2_rig import (
    REQUEST,
    RESPONSE,
    TRAILERS,
    server_settings,
)
from tests.support.served import Served

pytestmark = pytest.mark.usefixtures("engine_name")


def test_a_unary_call():
    rig = Served()
    heard = rig.open(body=b"ask")
    assert heard.headers == REQUEST
    assert isinstance(heard.headers, CheckedHeaders)
    assert (bytes(heard.data), heard.ended) == (b"ask", True)
    assert heard.stream.peer == "127.0.0.1:4242"
    heard.stream.respond(RESPONSE)
    heard.stream.send(b"answer")
    heard.stream.trailers(TRAILERS)
    rig.link.pump()
    seen = rig.raw.streams[1]
    assert (seen.headers, bytes(seen.data), seen.trailers, seen.closed) == (RESPONSE, b"answer", TRAILERS, 0)
    assert heard.closed == [0]
    assert heard.stream.closed
    assert rig.conn.streams == 0
    assert rig.counters.streams_accepted == 1


def test_a_request_without_a_body_ends_with_its_headers():
    assert Served().open().ended


def test_request_trailers_half_close():
    rig = Served()
    stream_id = rig.raw.connection.send_request(REQUEST)
    rig.raw.connection.send_data(stream_id, b"x")
    rig.raw.connection.send_trailers(stream_id, [(b"x-t", b"1")])
    rig.link.pump()
    assert rig.heard[0].trailers == [(b"x-t", b"1")]
    assert rig.heard[0].data == b"x"


def test_an_answer_of_headers_alone():
    rig = Served()
    heard = rig.open()
    heard.stream.respond([*RESPONSE, *TRAILERS], end=True)
    rig.link.pump()
    seen = rig.raw.streams[1]
    assert seen.ended
    assert seen.headers == [*RESPONSE, *TRAILERS]
    assert heard.closed == [0]


def test_an_acceptor_may_answer_on_the_spot_and_own_nothing():
    def accept(stream: ServerStream, headers: Headers, end: bool) -> None:
        stream.respond(RESPONSE)
        stream.send(b"now", end=True)

    rig = Served(owner=accept)
    rig.raw.request()
    rig.link.pump()
    assert rig.raw.streams[1].data == b"now"
    assert rig.conn.streams == 0


def test_what_is_sent_after_the_end_is_dropped():
    rig = Served()
    heard = rig.open()
    heard.stream.respond(RESPONSE)
    heard.stream.respond(RESPONSE)
    heard.stream.trailers(TRAILERS)
    heard.stream.trailers(TRAILERS)
    heard.stream.send(b"late")
    heard.stream.reset(CANCEL)
    rig.link.pump()
    assert heard.closed == [0]
    assert rig.raw.streams[1].data == b""
    assert rig.raw.streams[1].trailers == TRAILERS


def test_header_fields_are_cleaned_on_their_way_out():
    rig = Served()
    heard = rig.open()
    heard.stream.respond([(b":status", b"200"), (b"X-Evil", b"a\r\nset-cookie: 1"), (b"Connection", b"close")])
    heard.stream.trailers([(b"grpc-status", b"5"), (b"grpc-message", b" boom ")])
    rig.link.pump()
    assert rig.raw.streams[1].headers == [(b":status", b"200"), (b"x-evil", b"a  set-cookie: 1")]
    assert rig.raw.streams[1].trailers == [(b"grpc-status", b"5"), (b"grpc-message", b"boom")]
    assert rig.raw.streams[1].closed == 0


def test_a_reset_reaches_the_client_with_its_code():
    rig = Served()
    heard = rig.open(body=b"x", end=False)
    heard.stream.respond(RESPONSE)
    heard.stream.reset(REFUSED_STREAM)
    rig.link.pump()
    assert rig.raw.streams[1].reset == REFUSED_STREAM
    assert heard.closed == [REFUSED_STREAM]


# Answers that are complete before their requests.


def test_an_early_answer_is_delivered_and_then_ends_the_request():
    rig = Served()
    heard = rig.open(body=b"x" * 10, end=False)
    heard.stream.respond(RESPONSE)
    heard.stream.send(b"enough")
    heard.stream.trailers(TRAILERS)
    rig.link.pump()
    seen = rig.raw.streams[1]
    assert (bytes(seen.data), seen.trailers, seen.reset) == (b"enough", TRAILERS, NO_ERROR)
    assert heard.closed == [0]
    assert rig.conn.streams == 0


def test_an_early_answer_of_headers_alone_needs_no_window():
    rig = Served(client=server_settings(initial_window_size=0))
    heard = rig.open(body=b"x" * 10, end=False)
    heard.stream.respond([*RESPONSE, *TRAILERS], end=True)
    rig.link.pump()
    assert rig.raw.streams[1].ended
    assert rig.raw.streams[1].reset == NO_ERROR
    assert heard.closed == [0]


@pytest.mark.parametrize("size", [1000, 1001, 2500])
def test_an_early_answer_waits_for_the_clients_window(engine_name: str, size: int):
    rig = Served(client=server_settings(initial_window_size=1000), raw={"reads": False})
    heard = rig.open(body=b"x", end=False)
    heard.stream.respond(RESPONSE)
    heard.stream.send(b"y" * size)
    heard.stream.reset(CANCEL)  # not ended yet: this would abort
    rig.link.pump()
    assert rig.raw.streams[1].reset == CANCEL

    heard = rig.open(body=b"x", end=False)
    heard.stream.respond(RESPONSE)
    heard.stream.send(b"y" * size)
    rig.link.pump()
    heard.stream.trailers(TRAILERS)
    heard.stream.reset(CANCEL)
    rig.link.pump()
    waiting = rig.raw.streams[3]
    # Trailers need no window, and one engine lets them out as soon as the body has left.
    assert waiting.trailers == (TRAILERS if (engine_name, size) == ("h2", 1000) else None)
    assert waiting.reset is None
    for _ in range(4):
        rig.raw.read(3)
        rig.link.pump()
    seen = rig.raw.streams[3]
    assert (len(seen.data), seen.trailers, seen.reset) == (size, TRAILERS, NO_ERROR)
    assert heard.closed == [0]


def test_an_early_answer_waits_for_the_connections_window():
    rig = Served(client=server_settings(initial_window_size=1 << 20), raw={"reads": False, "window": None})
    heard = rig.open(body=b"x", end=False)
    heard.stream.respond(RESPONSE)
    heard.stream.send(b"y" * 65_535)
    rig.link.pump()
    heard.stream.trailers(TRAILERS)
    rig.link.pump()
    assert [seen.reset for seen in rig.raw.streams.values()] == [None]
    rig.raw.read(1)
    rig.link.pump()
    assert (rig.raw.streams[1].trailers, rig.raw.streams[1].reset) == (TRAILERS, NO_ERROR)


def test_an_early_answer_waits_for_the_transport():
    rig = Served(client=server_settings(initial_window_size=1 << 20))
    heard = rig.open(body=b"x", end=False)
    rig.link.wire.room = 1000
    heard.stream.respond(RESPONSE)
    heard.stream.send(b"y" * 400_000)
    heard.stream.trailers(TRAILERS)
    rig.loop.run()
    assert rig.conn.paused
    rig.link.pump()
    seen = rig.raw.streams[1]
    assert (len(seen.data), seen.trailers, seen.reset) == (400_000, TRAILERS, NO_ERROR)


def test_a_client_that_ends_its_request_in_the_meantime_is_not_reset():
    rig = Served(client=server_settings(initial_window_size=1000), raw={"reads": False})
    heard = rig.open(body=b"x", end=False)
    heard.stream.respond(RESPONSE)
    heard.stream.send(b"y" * 1500)
    heard.stream.trailers(TRAILERS)
    rig.link.pump()
    rig.raw.connection.end_stream(1)
    rig.link.pump()
    rig.raw.read(1)
    rig.link.pump()
    assert (rig.raw.streams[1].trailers, rig.raw.streams[1].reset) == (TRAILERS, None)
    assert heard.closed == [0]


def test_an_early_answer_that_nobody_takes_is_given_up():
    rig = Served(
        client=server_settings(initial_window_size=1000), raw={"reads": False}, stall_timeout=60.0, keepalive_time=5.0
    )
    heard = rig.open(body=b"x", end=False)
    heard.stream.respond(RESPONSE)
    heard.stream.send(b"y" * 1500)
    heard.stream.trailers(TRAILERS)
    for _ in range(110):
        rig.link.pump()
        rig.loop.advance(1.0)
    assert heard.closed == [CANCEL]
    assert rig.conn.streams == 0


def test_data_after_an_early_answer_is_harmless():
    rig = Served()
    heard = rig.open(body=b"x", end=False)
    heard.stream.respond(RESPONSE)
    heard.stream.trailers(TRAILERS)
    rig.raw.connection.send_data(1, b"more" * 100)
    rig.link.pump()
    assert heard.closed == [0]
    assert not rig.conn.dead
