"""The stages of a request, from its arrival to its last byte."""

from __future__ import annotations

from router_node.admin.stages import EVERY, StageTimes
from router_node.relay.track import Track
from shared import headers as names
from shared.net.grpc_wire import frame
from shared.pb.laya.v1 import openai_pb2 as pb
from tests.support.fake_http import FakeExchange
from tests.support.fake_streams import FakeServerStream
from tests.support.relay_rig import MODEL, Rig

SDK = [(names.MODEL, MODEL.encode()), (names.PROMPT_TOKENS, b"12"), (names.MAX_TOKENS, b"64")]


def headers(path: bytes) -> list[tuple[bytes, bytes]]:
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *SDK,
    ]


def times_of(rig: Rig) -> dict[str, tuple[int, float]]:
    """Count and sum of each stage that has any."""
    snapshot = rig.metrics.snapshot()
    counts = {stage: sum(counts) for stage, counts in snapshot.stage_buckets.items()}
    return {stage: (n, snapshot.stage_seconds[stage]) for stage, n in counts.items() if n}


def ticking(rig: Rig) -> None:
    """Each look at the clock is a second after the one before, and the next request is timed."""
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    rig.core.clock = clock
    rig.core.until_timed = 1


def stages(track: Track, routed: float, now: float) -> dict[str, float]:
    times = StageTimes()
    track.add_to(times, routed, now)
    counts = times.buckets()
    return {stage: seconds for stage, seconds in times.seconds().items() if sum(counts[stage])}


def test_the_stages_of_a_whole_answer_sum_up_to_its_time() -> None:
    track = Track(True)
    track.chosen(10.0)
    track.sent(11.0, "n0")
    track.answered(15.0, False)
    track.done(15.0)
    assert stages(track, 3.0, 16.0) == {"match": 2.0, "relay_in": 1.0, "node": 4.0, "relay_out": 1.0}


def test_a_streamed_answer_is_the_nodes_until_its_last_byte() -> None:
    track = Track(True)
    track.chosen(10.0)
    track.sent(11.0, "n0")
    track.answered(15.0, True)
    track.done(40.0)
    found = stages(track, 3.0, 41.0)
    assert found == {"match": 2.0, "relay_in": 1.0, "first": 4.0, "node": 29.0, "relay_out": 1.0}


def test_a_wait_is_a_stage_of_its_own() -> None:
    track = Track(True)
    track.queued(10.0)
    track.chosen(17.0)
    track.sent(18.0, "n0")
    assert stages(track, 3.0, 20.0) == {"match": 2.0, "queue": 7.0, "relay_in": 1.0}


def test_after_another_try_the_node_is_the_last_one() -> None:
    track = Track(True)
    track.chosen(10.0)
    track.sent(11.0, "n0")
    track.answered(12.0, False)
    track.chosen(20.0)
    track.sent(21.0, "n1")
    track.answered(25.0, False)
    track.done(25.0)
    assert stages(track, 3.0, 26.0) == {"match": 2.0, "relay_in": 1.0, "node": 4.0, "relay_out": 1.0}


def test_a_request_that_is_traced_only_is_not_counted() -> None:
    track = Track(False)
    track.chosen(10.0)
    track.sent(11.0, "n0")
    assert stages(track, 3.0, 12.0) == {}


async def test_a_call_is_timed_at_every_stage() -> None:
    rig = Rig(1)
    ticking(rig)
    client = FakeServerStream().call(rig.front.accept, headers(b"/laya.v1.Inference/Complete"), b"message")
    rig.used.last.answer(b"message")
    client.settle()
    found = times_of(rig)
    assert set(found) == {"match", "relay_in", "node", "relay_out"}
    assert all(count == 1 and seconds >= 1.0 for count, seconds in found.values())


async def test_a_streamed_call_has_a_first_byte() -> None:
    rig = Rig(1)
    ticking(rig)
    client = FakeServerStream().call(rig.front.accept, headers(b"/laya.v1.Inference/Generate"), b"message")
    rig.used.last.answer(b"message")
    client.settle()
    assert set(times_of(rig)) == {"match", "relay_in", "node", "first", "relay_out"}


async def test_an_http_request_is_timed_too() -> None:
    rig = Rig(1)
    ticking(rig)
    body = b'{"model":"smollm2","messages":[{"role":"user","content":"hi"}],"max_tokens":5}'
    rig.gateway.handle(FakeExchange(b"POST", b"/v1/chat/completions", [], body))
    node = rig.used.last
    fields = [pb.HttpHeader(name="content-type", value="application/json")]
    node.begin()
    head = pb.HttpResponse(head=pb.HttpResponseHead(status=200, headers=fields))
    for message in (head, pb.HttpResponse(body=b"{}")):
        node.sink.on_response_data(frame(message.SerializeToString()), False)
    node.finish()
    assert set(times_of(rig)) == {"match", "relay_in", "node", "relay_out"}


async def test_one_request_in_seventeen_is_timed() -> None:
    rig = Rig(1)
    for _ in range(2 * EVERY):
        client = FakeServerStream().call(rig.front.accept, headers(b"/laya.v1.Inference/Complete"), b"message")
        node = rig.used.last
        node.begin()
        node.finish()
        client.settle()
    assert times_of(rig)["node"][0] == 2
