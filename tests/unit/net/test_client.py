"""Streams that we open: never more than the peer allows, told apart when they fail, gone with their connection."""

from __future__ import annotations

from typing import Any, cast

import pytest
from ngh2 import Role

from shared.net.api import CANCEL, INTERNAL_ERROR, NO_ERROR, REFUSED_STREAM
from shared.net.client import ClientOwner, H2ClientProtocol
from shared.net.fields import CheckedHeaders
from shared.net.flusher import Flusher
from shared.net.settings import NetSettings
from tests.support.garbage import no_collector
from tests.support.h2_rig import (
    REQUEST,
    RESPONSE,
    TRAILERS,
    Asked,
    Link,
    ManualLoop,
    Raw,
    Wire,
    net_settings,
    server_settings,
)

pytestmark = pytest.mark.usefixtures("engine_name")


class Owner(ClientOwner):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_ready(self, conn: H2ClientProtocol) -> None:
        self.told.append("ready")

    def on_leaving(self, conn: H2ClientProtocol) -> None:
        self.told.append("leaving")

    def on_gone(self, conn: H2ClientProtocol) -> None:
        self.told.append("gone")


class Dialled:
    """A client connection and a raw server."""

    def __init__(
        self, server: dict[int, int] | None = None, raw: dict[str, Any] | None = None, pump: bool = True, **changes: Any
    ) -> None:
        self.loop = ManualLoop()
        self.flusher = Flusher(cast(Any, self.loop))
        self.counters = self.flusher.counters
        self.owner = Owner()
        self.conn = H2ClientProtocol(self.owner, net_settings(**changes), self.flusher)
        self.link = Link(self.loop, self.conn, Raw(Role.SERVER, server, **(raw or {})))
        self.raw = self.link.raw
        if pump:
            self.link.pump()

    def open(self, end: bool = False, takes: bool = True) -> Asked:
        asked = Asked(takes)
        asked.stream = self.conn.open(REQUEST, asked, end)
        assert asked.stream is not None
        return asked

    def try_open(self) -> bool:
        return self.conn.open(REQUEST, Asked(), True) is not None

    def answer(self, stream_id: int, body: bytes = b"answer") -> None:
        self.raw.connection.send_response(stream_id, RESPONSE)
        self.raw.connection.send_data(stream_id, body)
        self.raw.connection.send_trailers(stream_id, TRAILERS)


def test_a_unary_call():
    rig = Dialled()
    asked = rig.open()
    assert asked.stream is not None
    asked.stream.send(b"ask", end=True)
    rig.link.pump()
    assert rig.raw.streams[1].headers == REQUEST
    assert (bytes(rig.raw.streams[1].data), rig.raw.streams[1].ended) == (b"ask", True)
    assert asked.sent == 3
    rig.answer(1)
    rig.link.pump()
    assert (asked.headers, bytes(asked.data), asked.trailers) == (RESPONSE, b"answer", TRAILERS)
    assert isinstance(asked.headers, CheckedHeaders)
    assert asked.closed == [(0, False)]
    assert asked.stream.closed
    assert rig.conn.streams == 0


def test_request_trailers_half_close():
    rig = Dialled()
    asked = rig.open()
    assert asked.stream is not None
    asked.stream.trailers([(b"X-T", b" 1 ")])
    rig.link.pump()
    assert rig.raw.streams[1].trailers == [(b"x-t", b"1")]


def test_outbound_fields_are_cleaned():
    rig = Dialled()
    rig.conn.open([*REQUEST, (b"X-A", b"1\r\nx-b: 2"), (b"te", b"gzip")], Asked(), True)
    rig.link.pump()
    assert rig.raw.streams[1].headers == [*REQUEST, (b"x-a", b"1  x-b: 2")]


def test_a_connection_is_ready_when_the_peers_settings_are_here():
    rig = Dialled(pump=False)
    assert rig.owner.told == []
    assert not rig.try_open()
    rig.link.pump()
    assert rig.owner.told == ["ready"]
    assert rig.try_open()


def test_no_more_streams_than_the_peer_allows():
    rig = Dialled(server_settings(max_concurrent_streams=3))
    assert rig.conn.limit == 3
    owners = [rig.open(end=True) for _ in range(3)]
    assert not rig.try_open()
    rig.link.pump()
    rig.answer(1)
    rig.link.pump()
    assert owners[0].closed == [(0, False)]
    assert rig.try_open()
    assert not rig.try_open()


def test_a_limit_that_the_peer_lowers_holds_from_then_on():
    rig = Dialled(server_settings(max_concurrent_streams=10))
    rig.open(end=True)
    rig.raw.connection.update_settings(server_settings(max_concurrent_streams=1))
    rig.link.pump()
    assert rig.conn.limit == 1
    assert not rig.try_open()
    assert rig.owner.told == ["ready"]


def test_without_a_limit_of_the_peers_our_own_holds():
    rig = Dialled(max_streams=5)
    assert [rig.try_open() for _ in range(6)] == [True] * 5 + [False]


def test_a_stream_opened_and_reset_in_one_batch_never_reaches_the_peer():
    rig = Dialled()
    before = len(rig.link.wire.out)
    asked = rig.open(end=True)
    assert asked.stream is not None
    asked.stream.reset(CANCEL)
    rig.loop.run()
    assert asked.closed == [(CANCEL, False)]
    rig.link.pump()
    assert rig.raw.streams == {}
    assert before == 0
    assert rig.conn.streams == 0


def test_a_reset_reaches_the_peer_and_the_owner_is_told_once():
    rig = Dialled()
    asked = rig.open()
    rig.link.pump()
    assert asked.stream is not None
    asked.stream.reset(CANCEL)
    asked.stream.reset(CANCEL)
    rig.link.pump()
    assert rig.raw.streams[1].reset == CANCEL
    assert asked.closed == [(CANCEL, False)]
    asked.stream.send(b"late")
    asked.stream.reset(CANCEL)
    rig.link.pump()
    assert asked.closed == [(CANCEL, False)]


def test_an_answer_that_crosses_our_reset_is_swallowed():
    rig = Dialled()
    asked = rig.open(end=True)
    rig.link.pump()
    rig.answer(1, b"x" * 60_000)
    assert asked.stream is not None
    asked.stream.reset(CANCEL)
    rig.link.push()
    rig.link.pump()
    assert asked.data == b""
    assert asked.closed == [(CANCEL, False)]
    assert rig.conn.window_left() == NetSettings().connection_window - 60_000  # consumed, to be announced at half
    assert not rig.conn.dead


def test_a_reset_by_the_peer_is_told_with_its_code():
    rig = Dialled()
    asked = rig.open(end=True)
    rig.link.pump()
    rig.raw.connection.reset_stream(1, INTERNAL_ERROR)
    rig.link.pump()
    assert asked.closed == [(INTERNAL_ERROR, False)]


def test_a_refused_stream_was_not_processed():
    rig = Dialled()
    asked = rig.open(end=True)
    rig.link.pump()
    rig.raw.connection.reset_stream(1, REFUSED_STREAM)
    rig.link.pump()
    assert asked.closed == [(REFUSED_STREAM, True)]


def test_a_request_that_cannot_be_sent_is_not_worth_another_try():
    rig = Dialled()
    asked = Asked()
    rig.conn.open([*REQUEST, (b"x", b"v" * 700_000)], asked, True)
    rig.link.pump()
    assert asked.closed == [(REFUSED_STREAM, False)]
    assert not rig.conn.dead


def test_a_no_error_reset_before_the_answer_counts_as_a_cancel():
    rig = Dialled()
    asked = rig.open()
    rig.link.pump()
    rig.raw.connection.reset_stream(1, NO_ERROR)
    rig.link.pump()
    assert asked.closed == [(CANCEL, False)]


def test_an_early_answer_with_a_no_error_reset_is_complete():
    rig = Dialled()
    asked = rig.open()
    rig.link.pump()
    rig.answer(1)
    out = rig.raw.take()
    rig.raw.connection.reset_stream(1, NO_ERROR)
    rig.conn.data_received(out + rig.raw.take())
    rig.loop.run()
    assert asked.trailers == TRAILERS
    assert asked.closed == [(0, False)]


def test_response_bytes_are_acknowledged_as_they_are_taken():
    rig = Dialled()
    asked = rig.open(end=True, takes=False)
    rig.link.pump()
    rig.answer(1, b"x" * 150_000)
    rig.link.pump()
    assert len(asked.data) == 65_536
    assert asked.stream is not None
    asked.stream.consumed(65_536)
    rig.link.pump()
    assert len(asked.data) == 131_072


# GOAWAY and the end.


def test_a_goaway_stops_new_streams_and_leaves_the_old_ones():
    rig = Dialled()
    first, second = rig.open(end=True), rig.open(end=True)
    rig.link.pump()
    rig.raw.connection.send_goaway(0, last_stream_id=1)
    rig.link.pump()
    assert second.closed == [(REFUSED_STREAM, True)]
    assert first.closed == []
    assert rig.owner.told == ["ready", "leaving"]
    assert not rig.try_open()
    rig.answer(1)
    rig.link.pump()
    assert first.closed == [(0, False)]
    assert rig.owner.told == ["ready", "leaving", "gone"]
    assert rig.counters.goaways_received == 1


def test_a_goaway_that_crosses_a_request_gives_it_back():
    rig = Dialled()
    first = rig.open(end=True)
    rig.link.pump()
    rig.raw.connection.send_goaway(0)
    goaway = rig.raw.take()
    crossing, unsent = rig.open(end=True), Asked()
    rig.loop.run()
    unsent.stream = rig.conn.open(REQUEST, unsent, True)
    rig.conn.data_received(goaway)
    rig.loop.run()
    assert crossing.closed == [(REFUSED_STREAM, True)]
    assert unsent.closed == [(REFUSED_STREAM, True)]
    assert first.closed == []


def test_an_idle_connection_ends_with_the_peers_goaway():
    rig = Dialled()
    rig.raw.connection.send_shutdown_notice()
    rig.link.pump()
    assert rig.owner.told == ["ready", "leaving", "gone"]
    assert not rig.link.wire.aborted


def test_a_retired_connection_closes_with_its_last_stream():
    rig = Dialled()
    asked = rig.open(end=True)
    rig.link.pump()
    rig.conn.retire("surplus")
    rig.conn.retire("surplus")
    rig.loop.run()
    assert rig.owner.told == ["ready", "leaving"]
    assert not rig.link.wire.closing
    assert not rig.try_open()
    rig.answer(1)
    rig.link.pump()
    assert asked.closed == [(0, False)]
    assert rig.owner.told == ["ready", "leaving", "gone"]
    assert rig.counters.reasons == {"surplus": 1}


def test_a_retired_idle_connection_closes_at_once():
    rig = Dialled()
    rig.conn.retire("")
    rig.loop.run()
    assert rig.link.wire.closing
    assert rig.counters.reasons == {}


def test_a_lost_connection_fails_its_streams():
    rig = Dialled()
    owners = [rig.open(end=True) for _ in range(3)]
    rig.link.pump()
    rig.link.wire.lose()
    assert [asked.closed for asked in owners] == [[(CANCEL, False)]] * 3
    assert rig.owner.told == ["ready", "leaving", "gone"]
    assert not rig.try_open()


def test_a_request_that_never_left_was_not_processed():
    rig = Dialled()
    sent = rig.open(end=True)
    rig.link.pump()
    rig.conn.pause_writing()
    unsent = rig.open(end=True)
    rig.loop.run()
    rig.link.wire.lose()
    assert sent.closed == [(CANCEL, False)]
    assert unsent.closed == [(CANCEL, True)]


def test_a_connection_is_replaced_long_before_its_ids_run_out(monkeypatch: Any):
    monkeypatch.setattr("shared.net.client._LAST_ID", 7)
    rig = Dialled()
    for _ in range(4):
        assert rig.try_open()
    assert rig.owner.told == ["ready", "leaving"]
    assert not rig.try_open()
    assert rig.counters.reasons == {"ids_used_up": 1}


def test_a_silent_peer_is_dropped_and_its_streams_told():
    rig = Dialled(keepalive_time=10.0, keepalive_timeout=5.0)
    asked = rig.open(end=True)
    rig.loop.run()
    rig.loop.advance(15.1)
    assert asked.closed == [(CANCEL, False)]
    assert rig.owner.told == ["ready", "leaving", "gone"]


def test_a_cancelled_request_that_the_engine_forgot_is_forgotten_here_too(engine_name: str):
    """The peer lowers its limit while our request waits; ngh2 queues it and never says that it is over."""
    rig = Dialled(server_settings(max_concurrent_streams=5), keepalive_time=5.0, keepalive_timeout=1000.0)
    rig.open(end=True)
    rig.link.pump()
    rig.raw.connection.update_settings(server_settings(max_concurrent_streams=1))
    lower = rig.raw.take()
    rig.conn.engine.receive(lower)  # the engine knows; its event has not been dispatched
    queued = rig.open(end=True)
    rig.loop.run()
    assert queued.stream is not None
    queued.stream.reset(CANCEL)
    rig.loop.run()
    assert queued.closed == [(CANCEL, False)]
    assert rig.conn.streams == {"ngh2": 2, "h2": 1}[engine_name]
    for _ in range(25):
        rig.loop.advance(1.0)
        rig.link.pump()
    assert rig.conn.streams == 1


def test_a_connection_that_is_given_up_while_it_is_dialled_says_nothing_and_is_freed():
    with no_collector(H2ClientProtocol) as left:
        loop = ManualLoop()
        for comes in (False, True):
            conn = H2ClientProtocol(Owner(), net_settings(), Flusher(cast(Any, loop)))
            conn.drop()
            if comes:
                wire = Wire(loop)
                wire.attach(conn)
                assert wire.aborted and not wire.writes
                wire.protocol = None
        del conn
        loop.run()
        assert left() == 0


def test_informational_responses_are_dropped_and_bounded():
    rig = Dialled()
    asked = rig.open(end=True)
    rig.link.pump()
    rig.raw.connection.send_informational_response(1, [(b":status", b"103")])
    rig.answer(1)
    rig.link.pump()
    assert asked.headers == RESPONSE
    asked = rig.open(end=True)
    rig.link.pump()
    for _ in range(1100):
        rig.raw.connection.send_informational_response(3, [(b":status", b"103")])
    rig.link.push()
    rig.loop.run()
    assert rig.counters.reasons == {"oddity_flood": 1}
    assert asked.closed == [(CANCEL, False)]


def test_owners_that_fail_cost_their_stream_only():
    class Bad(Asked):
        def on_response(self, headers: Any, end: bool) -> None:
            raise RuntimeError("bug")

    rig = Dialled()
    bad, good = Bad(), rig.open(end=True)
    bad.stream = rig.conn.open(REQUEST, bad, True)
    rig.link.pump()
    rig.answer(1)
    rig.answer(3)
    rig.link.pump()
    assert good.closed == [(0, False)]
    assert len(bad.closed) == 1
    assert not rig.conn.dead
