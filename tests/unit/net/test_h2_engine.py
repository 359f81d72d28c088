"""Ways of ``h2``'s that its engine works around, and bytes no proper peer would send.

What it shares with the other engine is in test_engine.py.
"""

from __future__ import annotations

import random
from typing import Any

import ngh2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ngh2 import Role

from shared.net.api import CANCEL, NO_ERROR, PROTOCOL_ERROR, REFUSED_STREAM
from shared.net.engine import make_engine
from shared.net.h2_engine import H2Engine, _Connection
from shared.net.settings import NetSettings
from tests.support.engine_pair import ALL, Log, Pair
from tests.support.garbage import no_collector
from tests.support.h2_rig import REQUEST, RESPONSE, TRAILERS, Raw

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
EMPTY_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
LAST = (1 << 31) - 1


def pair(**changes: Any) -> Pair:
    return Pair("h2", "h2", **changes)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + payload


def serving() -> tuple[H2Engine, Log]:
    """A server that has a client's preface and settings."""
    engine = H2Engine("server", NetSettings(engine="h2"))
    log = Log()
    engine.receive(PREFACE + EMPTY_SETTINGS)
    engine.dispatch(log)
    engine.take(ALL)
    log.pop()
    return engine, log


def test_a_request_that_is_cancelled_before_it_left_never_leaves():
    both = pair()
    gone, kept = both.client.request(REQUEST), both.client.request(REQUEST, end_stream=True)
    both.client.reset(gone, CANCEL)
    both.pump()
    assert [event[1] for event in both.s.pop()] == [kept]
    assert both.c.pop() == [("closed", gone, CANCEL, True)]


def test_a_connection_that_is_over_is_freed_with_its_engine():
    with no_collector(_Connection) as there:
        both = pair()
        answered, gone, _ = (both.client.request(REQUEST, end_stream=True) for _ in range(3))
        both.pump()
        both.server.respond(answered, RESPONSE, end_stream=True)
        both.client.reset(gone, CANCEL)
        both.pump()
        with pytest.raises(both.server.errors):
            both.server.receive(frame(0, 0, 99, b"on no stream"))
        assert there() == 2
        del both
        assert not there()


def test_running_streams_outlive_a_goaway_of_either_side():
    both = pair()
    first = both.client.request(REQUEST)
    both.pump()
    both.server.shutdown_notice()
    both.pump()
    both.server.goaway(NO_ERROR)
    both.pump()
    assert both.c.pop() == [("goaway", LAST, NO_ERROR), ("goaway", first, NO_ERROR)]
    both.client.send(first, b"more", end_stream=True)
    both.server.respond(first, RESPONSE)
    both.server.send(first, b"answer")
    both.server.trailers(first, TRAILERS)
    both.pump()
    assert both.s.data[first] == 4
    assert both.c.pop()[-2:] == [("closed", first, 0, False), ("end", NO_ERROR)]
    assert both.s.pop()[-1] == ("end", NO_ERROR)


def test_requests_behind_a_goaway_are_refused_and_their_bytes_come_back():
    both = pair()
    first = both.client.request(REQUEST)
    both.pump()
    both.server.goaway(NO_ERROR)
    late = both.client.request(REQUEST)
    both.client.send(late, b"x" * 20_000)
    both.server.receive(both.client.take(ALL))
    both.server.dispatch(both.s)
    assert [event[1] for event in both.s.pop() if event[0] == "request"] == [first]
    both.pump()
    assert ("closed", late, REFUSED_STREAM, False) in both.c.pop()
    both.server.reset(first, CANCEL)
    both.pump()
    assert both.server.local_window() >= NetSettings().connection_window - 20_000


def test_a_malformed_header_block_costs_its_stream_alone():
    engine, log = serving()
    raw = Raw(Role.CLIENT)
    raw.take()
    raw.connection.send_request([*REQUEST, (b"bad name", b"1")])
    good = raw.connection.send_request(REQUEST)
    engine.receive(raw.take())
    engine.dispatch(log)
    assert log.pop() == [("oddity",), ("request", good, False)]
    raw.feed(engine.hello)
    raw.feed(engine.take(ALL))
    assert raw.streams[1].reset == PROTOCOL_ERROR


@pytest.mark.parametrize("end", [False, True])
def test_a_malformed_response_ends_its_stream(end: bool):
    client, log = H2Engine("client", NetSettings(engine="h2")), Log()
    raw = Raw(Role.SERVER)
    raw.feed(client.hello)
    client.receive(raw.take())
    for _ in range(2):
        client.request(REQUEST, end_stream=True)
    raw.feed(client.take(ALL))
    raw.connection.send_response(1, [*RESPONSE, (b"x y", b"1")], end_stream=end)
    raw.connection.send_response(3, RESPONSE, end_stream=True)
    client.receive(raw.take())
    client.take(ALL)
    client.dispatch(log)
    assert ("response", 3, True) in log.events
    assert [event[1:] for event in log.events if event[0] == "closed"][-1] == (1, PROTOCOL_ERROR, False)


def test_space_at_the_end_of_a_message_is_forgiven():
    both = pair()
    stream = both.client.request(REQUEST, end_stream=True)
    both.pump()
    both.server.respond(stream, [*RESPONSE, (b"grpc-message", b"boom ")], end_stream=True)
    both.pump()
    assert ("response", stream, True) in both.c.pop()


def test_trailers_too_large_to_send_end_the_stream():
    both = pair()
    stream = both.client.request(REQUEST, end_stream=True)
    both.pump()
    both.server.respond(stream, RESPONSE)
    both.server.trailers(stream, [(b"x", b"v" * 700_000)])
    both.pump()
    assert ("closed", stream, REFUSED_STREAM, False) in both.c.pop()


def test_padding_is_given_back_by_the_engine():
    engine, log = serving()
    raw = Raw(Role.CLIENT)
    raw.take()
    raw.connection.send_request(REQUEST)
    engine.receive(raw.take())
    padded = bytes((100,)) + b"data" + bytes(100)
    for _ in range(500):
        engine.receive(frame(0, 0x8, 1, padded))
        engine.acknowledge(4, 1)
    engine.dispatch(log)
    assert log.data[1] == 2000
    assert engine.local_window() > NetSettings().connection_window - 500 * len(padded) - 1
    engine.take(ALL)
    with pytest.raises(engine.errors):
        engine.acknowledge(1, 1)


def test_data_that_crosses_our_reset_costs_nothing():
    both = pair()
    stream = both.client.request(REQUEST)
    both.pump()
    both.server.reset(stream, CANCEL)
    for _ in range(4):
        both.client.send(stream, b"x" * 10_000)
    both.client.trailers(stream, TRAILERS)
    both.server.receive(both.client.take(ALL))
    both.pump()
    assert stream not in both.s.data
    other = both.client.request(REQUEST, end_stream=True)
    both.pump()
    assert ("request", other, True) in both.s.pop()


@pytest.mark.parametrize(
    "bad",
    [
        frame(7, 0, 1, bytes(8)),  # GOAWAY on a stream
        frame(7, 0, 0, bytes(7)),  # and too short
        b"\1\0\0" + bytes(6),  # a DATA frame of 64 KiB
        frame(9, 4, 1, b"x"),  # CONTINUATION out of nowhere
        frame(1, 0, 1, b"") + frame(7, 0, 0, bytes(8)),  # GOAWAY inside a header block
        frame(1, 0, 1, b"\x82") + frame(9, 0, 1, b"") * 20,  # a header block without an end
        frame(1, 4, 1, b"\xff" * 30),  # no HPACK
        frame(1, 4, 2, b"\x82\x86\x84"),  # an id that is the server's
        frame(5, 4, 1, b"\0\0\0\2\x82"),  # a push by a client
        frame(8, 0, 0, bytes(4)),  # no increment
        frame(4, 0, 0, b"\0\4\xff\xff\xff\xff"),  # a window beyond what there is
        frame(4, 0, 0, b"123"),
        frame(6, 0, 0, b"1234567"),
        frame(0, 0, 0, b"x"),
    ],
)
def test_what_breaks_the_protocol_ends_the_connection_in_an_error(bad: bytes):
    engine, log = serving()
    with pytest.raises(engine.errors):
        engine.receive(bad)
        engine.receive(PREFACE)  # whatever was pending is no preface
    with pytest.raises(engine.errors):
        engine.take(ALL)
    engine.dispatch(log)


def test_what_came_before_the_error_is_still_told():
    engine, log = serving()
    raw = Raw(Role.CLIENT)
    raw.take()
    raw.request()
    with pytest.raises(engine.errors):
        engine.receive(raw.take() + frame(6, 0, 0, b"1234567"))
    engine.dispatch(log)
    assert ("request", 1, True) in log.events


def test_a_preface_may_come_in_any_pieces():
    engine = make_engine("server", NetSettings(engine="h2"))
    for at in range(len(PREFACE)):
        engine.receive(PREFACE[at : at + 1])
    engine.receive(EMPTY_SETTINGS)
    log = Log()
    engine.dispatch(log)
    assert log.events == [("settings",)]


def captures() -> list[bytes]:
    """Bytes of real clients, frame by frame."""
    raw = Raw(Role.CLIENT)
    out = [raw.take()[len(PREFACE) :]]
    for i in range(3):
        raw.request([*REQUEST, (b"x-%d" % i, b"v" * 40)], b"body" * 50)
    raw.connection.send_trailers(raw.connection.send_request(REQUEST), TRAILERS)
    raw.connection.ping(b"12345678")
    raw.connection.reset_stream(3, CANCEL)
    raw.connection.send_goaway(0)
    data = out[0] + raw.take()
    pieces, at = [], 0
    while at < len(data):
        end = at + 9 + int.from_bytes(data[at : at + 3], "big")
        pieces.append(data[at:end])
        at = end
    return pieces


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 1 << 48))
def test_mutated_captures_end_in_known_errors_and_tell_of_known_streams_alone(seed: int):
    pick = random.Random(seed)
    frames = captures()
    for _ in range(pick.randrange(1, 6)):
        at = pick.randrange(len(frames))
        one = bytearray(frames[at])
        act = pick.random()
        if act < 0.5:
            spot = pick.randrange(3, len(one)) if len(one) > 9 else pick.randrange(3, 9)
            one[spot] = pick.randrange(256)
        elif act < 0.7:
            frames.insert(pick.randrange(len(frames)), bytes(one))
        elif act < 0.85 and len(one) > 9:
            body = one[9 : pick.randrange(9, len(one))]
            one = bytearray(len(body).to_bytes(3, "big")) + one[3:9] + body
        else:
            body = one[9:] + pick.randbytes(pick.randrange(40))
            one = bytearray(len(body).to_bytes(3, "big")) + one[3:9] + body
        frames[at] = bytes(one)
    engine = H2Engine("server", NetSettings(engine="h2"))
    log = Log()
    open_streams: set[int] = set()
    try:
        engine.receive(PREFACE)
        for one_frame in frames:
            engine.receive(one_frame)
            engine.dispatch(log)
            for event in log.pop():
                if event[0] == "request":
                    assert event[1] not in open_streams
                    open_streams.add(event[1])
                    engine.respond(event[1], RESPONSE)
                    engine.send(event[1], b"answer" * 10)
                elif event[0] in ("data", "trailers", "closed"):
                    assert event[1] in open_streams, event
                    if event[0] == "data":
                        engine.acknowledge(event[2], event[1])
                    elif event[0] == "closed":
                        open_streams.remove(event[1])
            engine.take(ALL)
    except engine.errors:
        pass
    engine.dispatch(log)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400))
def test_random_bytes_end_in_known_errors(data: bytes):
    engine, log = serving()
    try:
        at = 0
        while at + 9 <= len(data):
            end = at + 9 + int.from_bytes(data[at : at + 3], "big")
            engine.receive(data[at : min(end, len(data))])
            at = end
        engine.take(ALL)
    except engine.errors:
        pass
    engine.dispatch(log)


def test_random_traffic_between_the_two_engines_conserves_bytes_and_windows():
    for seed in range(30):
        pick = random.Random(seed)
        both = Pair(*pick.choice([("h2", "ngh2"), ("ngh2", "h2"), ("h2", "h2")]))
        sent: dict[int, int] = {}
        held: list[tuple[int, int]] = []
        for _ in range(200):
            act = pick.random()
            alive = list(sent)
            if act < 0.2 or not alive:
                sent[both.client.request(REQUEST)] = 0
            elif act < 0.7:
                stream, size = pick.choice(alive), pick.choice([1, 900, 20_000])
                both.client.send(stream, b"x" * size)
                sent[stream] += size
            elif act < 0.8:
                stream = pick.choice(alive)
                both.client.reset(stream, CANCEL)
                del sent[stream]
            both.pump()
            held += [(event[1], event[2]) for event in both.s.pop() if event[0] == "data"]
            while held and pick.random() < 0.9:
                stream, size = held.pop(0)
                both.server.acknowledge(size, stream)
        for _ in range(2000):
            both.pump()
            held += [(event[1], event[2]) for event in both.s.pop() if event[0] == "data"]
            if not held:
                break
            for stream, size in held:
                both.server.acknowledge(size, stream)
            held = []
        assert {stream: both.s.data.get(stream, 0) for stream in sent} == sent
        assert both.client.queued() == 0
        assert both.server.local_window() > NetSettings().connection_window // 2


def test_it_is_understood_by_the_other_library():
    raw = Raw(Role.CLIENT)
    engine = H2Engine("server", NetSettings(engine="h2"))
    engine.receive(raw.take())
    raw.feed(engine.hello)
    assert raw.connection.remote_settings[ngh2.Setting.MAX_CONCURRENT_STREAMS] == NetSettings().max_streams
    assert raw.connection.remote_settings[ngh2.Setting.NO_RFC7540_PRIORITIES] == 1
