"""Requests between a connection's GOAWAY and its successor: held, sent whole, or told that nobody saw them."""

from __future__ import annotations

from typing import Any, cast

import pytest
from ngh2 import Role

from shared.net.api import CANCEL, REFUSED_STREAM, ClientStream
from shared.net.client import ClientOwner, H2ClientProtocol
from shared.net.flusher import Flusher
from shared.net.handover import Handover
from shared.net.settings import NetSettings
from tests.support.h2_rig import REQUEST, RESPONSE, TRAILERS, Asked, Link, ManualLoop, Raw, server_settings


class Owner(ClientOwner):
    def on_ready(self, conn: H2ClientProtocol) -> None:
        pass

    def on_leaving(self, conn: H2ClientProtocol) -> None:
        pass

    def on_gone(self, conn: H2ClientProtocol) -> None:
        pass


class Rig:
    """A handover, and the connection that comes after it."""

    def __init__(self, most: int = 10, streams: int = 100) -> None:
        self.loop = ManualLoop()
        self.late = 0
        self.handover = Handover(cast(Any, self.loop), 3.0, most, self.count_late)
        self.conn = H2ClientProtocol(Owner(), NetSettings(), Flusher(cast(Any, self.loop)))
        self.link = Link(self.loop, self.conn, Raw(Role.SERVER, server_settings(max_concurrent_streams=streams)))
        self.raw = self.link.raw
        self.link.pump()

    def count_late(self) -> None:
        self.late += 1

    def ask(self, end: bool = False) -> tuple[Asked, ClientStream]:
        asked = Asked()
        asked.stream = self.handover.hold(REQUEST, asked, end)
        assert asked.stream is not None
        return asked, asked.stream


def test_a_held_request_is_sent_whole_and_answered():
    rig = Rig()
    asked, stream = rig.ask()
    stream.send(b"first")
    stream.send(b"second", end=True)
    stream.send(b"too late")
    assert (stream.queued, asked.sent) == (11, 0)
    rig.handover.end(rig.conn)
    rig.link.pump()
    assert (bytes(rig.raw.streams[1].data), rig.raw.streams[1].ended) == (b"firstsecond", True)
    assert (asked.sent, stream.queued) == (11, 0)
    rig.raw.connection.send_response(1, RESPONSE)
    rig.raw.connection.send_data(1, b"x" * 100_000)
    rig.raw.connection.send_trailers(1, TRAILERS)
    rig.link.pump()
    assert len(asked.data) == 100_000
    assert asked.closed == [(0, False)]
    assert stream.closed


@pytest.mark.parametrize("body", [b"", b"body"])
def test_trailers_and_a_missing_body_are_kept_too(body: bytes):
    rig = Rig()
    _, bare = rig.ask(end=True)
    _, stream = rig.ask()
    stream.send(body)
    stream.trailers([(b"x-t", b"1")])
    rig.handover.end(rig.conn)
    rig.link.pump()
    assert rig.raw.streams[1].ended and rig.raw.streams[1].data == b""
    assert rig.raw.streams[3].trailers == [(b"x-t", b"1")]
    assert rig.raw.streams[3].data == body
    assert not bare.closed


def test_what_is_sent_after_the_handover_goes_on():
    rig = Rig()
    asked, stream = rig.ask()
    rig.handover.end(rig.conn)
    stream.send(b"more")
    stream.trailers([(b"x-t", b"1")])
    rig.link.pump()
    assert (bytes(rig.raw.streams[1].data), rig.raw.streams[1].trailers) == (b"more", [(b"x-t", b"1")])
    stream.reset(CANCEL)
    rig.link.pump()
    assert asked.closed == [(CANCEL, False)]


def test_a_request_given_up_while_held_never_leaves_and_its_owner_is_told_once():
    rig = Rig()
    asked, stream = rig.ask(end=True)
    stream.reset(CANCEL)
    stream.reset(CANCEL)
    stream.send(b"late")
    stream.consumed(1)
    assert asked.closed == []
    rig.loop.run()
    assert asked.closed == [(CANCEL, False)]
    rig.handover.end(rig.conn)
    rig.link.pump()
    assert asked.closed == [(CANCEL, False)]
    assert rig.raw.streams == {}


def test_without_a_successor_nobody_has_seen_the_request():
    rig = Rig()
    asked, stream = rig.ask(end=True)
    rig.handover.end(None)
    stream.reset(CANCEL)
    rig.loop.run()
    assert asked.closed == [(REFUSED_STREAM, True)]
    assert stream.closed


def test_what_the_successor_cannot_take_is_told_the_same():
    rig = Rig(streams=1)
    first, second = rig.ask(end=True)[0], rig.ask(end=True)[0]
    rig.handover.end(rig.conn)
    rig.loop.run()
    assert (first.closed, second.closed) == ([], [(REFUSED_STREAM, True)])


def test_no_more_than_so_many_are_held():
    rig = Rig(most=2)
    rig.ask()
    rig.ask()
    assert rig.handover.hold(REQUEST, Asked(), True) is None


def test_a_successor_that_does_not_come_is_reported_and_one_that_does_is_not():
    rig = Rig()
    rig.loop.advance(2.9)
    assert rig.late == 0
    rig.loop.advance(0.2)
    assert rig.late == 1
    rig = Rig()
    rig.handover.end(rig.conn)
    rig.loop.advance(10.0)
    assert rig.late == 0
