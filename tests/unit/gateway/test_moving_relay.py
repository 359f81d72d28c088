"""A streamed OpenAI answer that outlives its node, in every order that nodes, client and clock can put things."""

from __future__ import annotations

import asyncio
import json

import pytest
import xxhash

from router_node.relay.settings import MigrationSettings
from shared import headers as names
from shared.errors import LayaError, exhausted, invalid, unavailable
from shared.net.grpc_wire import frame
from shared.pb.laya.v1 import openai_pb2 as pb
from tests.support.fake_http import FakeExchange
from tests.support.fake_streams import FakeClientStream
from tests.support.relay_rig import Rig

CHAT = b"/v1/chat/completions"
BODY = b'{"model":"smollm2","messages":[{"role":"user","content":"hi"}],"max_tokens":50,"stream":true}'
GRANT = (names.JOURNAL, b"1")
DRAINING = unavailable("The node drains.", "DRAINING").grpc_trailers()
SSE = ("content-type", "text/event-stream; charset=utf-8")
DONE = b"data: [DONE]\n\n"


def head(status: int = 200, kind: tuple[str, str] = SSE) -> bytes:
    fields = [pb.HttpHeader(name=kind[0], value=kind[1])]
    return frame(pb.HttpResponse(head=pb.HttpResponseHead(status=status, headers=fields)).SerializeToString())


def chunk(i: int, created: int = 1_700_000_000) -> bytes:
    return b'data: {"id":"c","created":%d,"choices":[{"delta":{"content":" w%d"}}]}\n\n' % (created, i)


def part(body: bytes, *ids: int, finish: str = "", pinned: str = "") -> bytes:
    message = pb.HttpResponse(token_ids=ids, finish_reason=finish, pinned=pinned)
    if body:
        message.body = body
    return frame(message.SerializeToString())


class Ask:
    """A request that is on its way, and the nodes that it has been to."""

    def __init__(self, rig: Rig, *headers: tuple[bytes, bytes], body: bytes = BODY) -> None:
        self.rig = rig
        self.seen: set[int] = set()
        self.client = FakeExchange(b"POST", CHAT, list(headers), body)
        rig.gateway.handle(self.client)

    def fresh(self) -> list[FakeClientStream]:
        return [s for up in self.rig.upstreams.values() for s in up.streams if id(s) not in self.seen]

    def node(self) -> FakeClientStream:
        """The stream of the node that was asked last."""
        (found,) = self.fresh()
        self.seen.add(id(found))
        return found

    async def next_node(self) -> FakeClientStream:
        deadline = asyncio.get_running_loop().time() + 5
        while not self.fresh():
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.002)
        return self.node()

    def begun(self, *data: bytes) -> FakeClientStream:
        """The first node grants a journal and sends its head and these messages."""
        node = self.node()
        node.begin(GRANT)
        say(node, head(), *data)
        return node

    @property
    def text(self) -> bytes:
        return b"".join(self.client.parts)

    def error(self) -> dict[str, str]:
        """The error in the last event of a stream that broke off."""
        assert self.client.state == "finished"
        last = self.text.split(b"\n\n")[-2]
        error = json.loads(last.removeprefix(b"data: "))["error"]
        assert isinstance(error, dict)
        return error

    def over(self) -> None:
        """Let all streams end, and see that nothing is left."""
        for upstream in self.rig.upstreams.values():
            for stream in upstream.streams:
                stream.settle()
        self.rig.assert_idle()
        counts = self.rig.metrics.moves
        assert (counts.journal_bytes, counts.journals) == (0, 0)


def say(node: FakeClientStream, *data: bytes) -> None:
    for one in data:
        node.sink.on_response_data(one, False)


def request_of(node: FakeClientStream) -> pb.HttpRequest:
    """What a later node is sent."""
    assert node.headers[names.RESUME] == b"1"
    assert node.ended
    (data,) = node.data
    assert int.from_bytes(data[1:5], "big") == len(data) - 5
    request = pb.HttpRequest.FromString(data[5:])
    assert request.body == BODY
    return request


def rig(nodes: int = 3, **settings: object) -> Rig:
    return Rig(nodes, migration=MigrationSettings(**settings), retry_backoff=0.001)  # type: ignore[arg-type]


async def test_an_answer_goes_on_where_its_lost_node_left_it():
    ask = Ask(rig())
    first = ask.begun(part(chunk(0)), part(chunk(1), 7), part(b"", 8), part(chunk(2), 9))
    assert dict(ask.client.reply_headers)[names.MIGRATABLE] == b"1"
    first.lose()
    second = ask.node()
    resume = request_of(second).resume
    body = chunk(0) + chunk(1) + chunk(2)
    assert list(resume.token_ids) == [7, 8, 9]
    assert [n for n in resume.message_tokens if n] == [1, 1, 1]
    assert (resume.body_bytes, resume.body_hash) == (len(body), xxhash.xxh3_64_intdigest(body))
    assert resume.created == 1_700_000_000
    assert resume.attempt == 1
    assert second.headers[names.REQUEST_ID] == first.headers[names.REQUEST_ID]
    second.begin(GRANT)
    say(second, head(), part(chunk(3), 10, finish="stop"), part(DONE))
    second.finish()
    assert ask.text == body + chunk(3) + DONE
    assert ask.client.state == "finished"
    ask.over()
    assert ask.rig.metrics.moves.sample().outcomes == {"moved": 1}
    assert ask.rig.log.entries[-1]["migrated"]
    assert ask.rig.log.entries[-1]["code"] == 200


async def test_half_a_message_is_never_passed_on():
    ask = Ask(rig())
    whole = part(chunk(1), 1)
    node = ask.begun(part(chunk(0), 0), whole[:30])
    assert ask.text == chunk(0)
    node.lose()
    after = ask.node()
    assert list(request_of(after).resume.token_ids) == [0]
    after.begin(GRANT)
    say(after, head() + whole[:20], whole[20:])
    assert ask.text == chunk(0) + chunk(1)
    ask.client.leave()
    ask.over()


async def test_a_node_lost_after_done_costs_nothing():
    ask = Ask(rig())
    node = ask.begun(part(chunk(0), 0, finish="length"), part(DONE))
    node.lose()
    assert ask.client.state == "finished"
    assert not ask.fresh()
    ask.over()
    assert ask.rig.metrics.moves.sample().outcomes == {"complete": 1}


async def test_a_node_lost_between_the_last_token_and_the_usage_has_them_said_by_another():
    ask = Ask(rig())
    node = ask.begun(part(chunk(0), 0, finish="length"))
    node.lose()
    after = ask.node()
    assert request_of(after).resume.finish_reason == "length"
    after.begin(GRANT)
    say(after, head(), part(b'data: {"usage":{}}\n\n'), part(DONE))
    after.finish()
    assert ask.text == chunk(0) + b'data: {"usage":{}}\n\n' + DONE
    ask.over()


async def test_a_draining_node_hands_its_answer_over():
    ask = Ask(rig())
    node = ask.begun(part(chunk(0), 0))
    node.sink.on_response_trailers(DRAINING)
    node.lose(0)
    after = ask.node()
    after.begin(GRANT)
    say(after, head(), part(DONE))
    after.finish()
    assert ask.text == chunk(0) + DONE
    assert ask.rig.count("node_lost") == 0
    ask.over()


async def test_two_nodes_may_be_lost_in_one_answer():
    ask = Ask(rig())
    node = ask.begun(part(chunk(0), 0))
    for i in (1, 2):
        node.lose()
        node = ask.node()
        assert request_of(node).resume.attempt == i
        node.begin(GRANT)
        say(node, head(), part(chunk(i), i))
    node.finish()
    assert ask.text == chunk(0) + chunk(1) + chunk(2)
    assert str(ask.rig.log.entries[-1]["migrated"]).count(">") == 2
    ask.over()


async def test_a_node_that_refuses_the_rest_is_passed_over():
    ask = Ask(rig())
    ask.begun(part(chunk(0), 0)).lose()
    ask.node().refuse(exhausted("full", "QUEUE_FULL", 0.1).grpc_trailers())
    after = await ask.next_node()
    after.begin(GRANT)
    say(after, head(), part(chunk(1), 1))
    after.finish()
    assert ask.text == chunk(0) + chunk(1)
    ask.over()


async def test_a_node_that_finds_another_answer_is_passed_over_also_after_its_headers():
    ask = Ask(rig())
    ask.begun(part(chunk(0), 0)).lose()
    node = ask.node()
    node.begin(GRANT)
    node.sink.on_response_trailers(unavailable("It differs.", "RESUME_INEXACT").grpc_trailers())
    after = await ask.next_node()
    node.lose(0)
    after.begin(GRANT)
    say(after, head(), part(chunk(1), 1))
    after.finish()
    assert ask.text == chunk(0) + chunk(1)
    ask.over()


async def test_a_node_that_cannot_read_the_rest_ends_the_search():
    ask = Ask(rig())
    ask.begun(part(chunk(0), 0)).lose()
    ask.node().refuse(invalid("resume is odd.", "resume").grpc_trailers())
    assert "resume is odd" in ask.error()["message"]
    assert ask.error()["code"] == "node_lost"
    ask.over()


async def test_without_another_node_the_answer_ends_with_an_error_that_says_what_was_delivered():
    ask = Ask(rig(1))
    ask.begun(part(chunk(0), 0), part(chunk(1), 1, 2)).lose()
    assert ask.text.startswith(chunk(0) + chunk(1))
    assert "after 3 tokens" in ask.error()["message"]
    assert "no other node" in ask.error()["message"]
    assert DONE not in ask.text
    ask.over()


async def test_a_pinned_answer_stays_and_its_end_says_why():
    ask = Ask(rig())
    node = ask.begun(part(chunk(0), 0), part(chunk(1), 1, pinned="a tool call is in progress"), part(chunk(2), 2)[:9])
    assert ask.text.startswith(chunk(0) + chunk(1))
    say(node, part(chunk(2), 2)[9:])
    assert ask.text == chunk(0) + chunk(1) + chunk(2)
    ask.client.drain()
    whole = [head(), part(chunk(0), 0), part(chunk(1), 1, pinned="a tool call is in progress"), part(chunk(2), 2)]
    assert node.taken == len(b"".join(whole))
    node.lose()
    assert "a tool call is in progress" in ask.error()["message"]
    ask.over()


async def test_a_client_that_wants_none_of_it_is_told_so():
    ask = Ask(rig(), (names.NO_MIGRATE, b"1"))
    node = ask.begun(part(chunk(0), 0))
    assert names.JOURNAL not in node.headers, "the node is not to count on it"
    assert dict(ask.client.reply_headers)[names.MIGRATABLE] == b"0; the client said laya-no-migrate"
    assert ask.text == chunk(0)
    node.lose()
    assert "laya-no-migrate" in ask.error()["message"]
    ask.over()


async def test_a_node_that_says_nothing_is_relayed_as_ever():
    ask = Ask(rig())
    node = ask.node()
    node.begin()
    say(node, head(), part(chunk(0))[:20])
    assert names.MIGRATABLE not in dict(ask.client.reply_headers)
    assert chunk(0).startswith(ask.text) and ask.text
    node.lose()
    assert "elsewhere" not in ask.error()["message"]
    ask.over()


async def test_a_request_over_the_bound_is_not_migratable_and_says_so():
    ask = Ask(rig(max_request_bytes=64))
    node = ask.begun(part(chunk(0), 0))
    assert names.JOURNAL not in node.headers
    assert dict(ask.client.reply_headers)[names.MIGRATABLE] == b"0; the request is over 64 bytes"
    ask.client.leave()
    ask.over()


async def test_an_error_of_the_application_is_no_stream_and_passes_whole():
    ask = Ask(rig())
    node = ask.node()
    node.begin(GRANT)
    say(node, head(400, ("content-type", "application/json")), part(b'{"error":'), part(b"{}}"))
    node.finish()
    assert ask.client.answer()[::2] == (400, b'{"error":{}}')
    ask.over()


async def test_a_node_without_room_is_left_for_another_before_the_answer_begins():
    ask = Ask(rig())
    node = ask.node()
    node.begin(GRANT)
    say(node, head(429, ("content-type", "application/json")))
    node.settle()
    after = ask.begun(part(chunk(0), 0))
    assert after.headers[names.JOURNAL] == b"1"
    assert dict(ask.client.reply_headers)[names.MIGRATABLE] == b"1"
    assert names.RESUME not in after.headers
    after.finish()
    assert ask.text == chunk(0)
    ask.over()


async def test_two_nodes_that_die_of_a_request_before_its_answer_are_enough():
    world = rig(4)
    ask = Ask(world)
    ask.node().lose()
    world.counted(await ask.next_node()).lose()
    assert ask.client.state == "responded"
    assert json.loads(ask.text)["error"]["code"] == "poisonous"
    ask.over()
    again = Ask(world)
    assert json.loads(again.text)["error"]["code"] == "poisonous"
    again.over()


async def test_a_node_that_dies_at_the_same_moment_as_the_first_is_no_second_death():
    ask = Ask(rig(4))
    ask.node().lose()
    (await ask.next_node()).lose()  # nothing shows that it ever had the request
    node = await ask.next_node()
    node.begin(GRANT)
    say(node, head(), part(chunk(0), 1, finish="stop"), part(DONE))
    node.finish()
    assert ask.text == chunk(0) + DONE
    ask.over()


async def test_two_nodes_that_die_of_an_answer_without_a_token_are_enough():
    ask = Ask(rig(4))
    ask.begun(part(chunk(0))).lose()
    node = await ask.next_node()
    node.begin(GRANT)
    node.lose()
    assert ask.error()["code"] == "poisonous"
    ask.over()


async def test_a_client_that_leaves_at_any_moment_leaves_nothing_behind():
    for stage in range(5):
        ask = Ask(rig())
        node = ask.node()
        if stage > 0:
            node.begin(GRANT)
        if stage > 1:
            say(node, head(), part(chunk(0), 0), part(chunk(1), 1)[:9])
        if stage > 2:
            node.lose()
            node = ask.node()
        if stage > 3:
            node.refuse(exhausted("full", "QUEUE_FULL", 0.1).grpc_trailers())
        ask.client.leave()
        ask.over()


async def test_a_client_that_leaves_while_its_answer_waits_for_room_leaves_nothing_behind():
    world = rig(2)
    ask = Ask(world)
    node = ask.begun(part(chunk(0), 0))
    for i in range(2):
        world.report(f"n{i}", 0)
    node.lose()
    assert world.dispatcher.queued == 1
    ask.client.leave()
    ask.over()


async def test_an_answer_without_a_node_for_too_long_is_given_up():
    ask = Ask(rig(max_stall=0.1))
    ask.begun(part(chunk(0), 0)).lose()
    silent = ask.node()
    silent.begin(GRANT)
    deadline = asyncio.get_running_loop().time() + 5
    while ask.client.state != "finished":
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)
    assert "0.1 s passed" in ask.error()["message"]
    assert silent.code >= 0
    ask.over()


async def test_bytes_are_acknowledged_to_the_node_that_sent_them_and_just_once():
    ask = Ask(rig())
    sent = [head(), part(chunk(0), 0), part(chunk(1), 1)]
    first = ask.begun(sent[1])
    ask.client.drain()
    assert first.taken == len(sent[0] + sent[1])
    say(first, sent[2])  # still on its way to the client when its node is lost
    first.lose()
    taken = first.taken
    second = ask.node()
    second.begin(GRANT)
    say(second, head(), part(chunk(2), 2))
    ask.client.drain()
    assert first.taken == taken
    assert second.taken == len(head() + part(chunk(2), 2))
    ask.client.leave()
    ask.over()


async def test_a_message_longer_than_the_window_is_acknowledged_while_it_comes():
    ask = Ask(rig())
    node = ask.begun()
    message = part(b"data: " + b"y" * 150_000 + b"\n\n", *range(100))
    for at in range(0, len(message), 8192):
        say(node, message[at : at + 8192])
    assert node.taken > len(message) - 32_768
    ask.client.drain()
    assert node.taken == len(head()) + len(message)
    say(node, part(chunk(1), 1))
    ask.client.drain()
    assert node.taken == len(head()) + len(message) + len(part(chunk(1), 1))
    node.finish()
    ask.over()


async def test_a_message_beyond_all_bounds_passes_as_it_comes():
    ask = Ask(rig())
    node = ask.begun()
    body = b"data: " + b"y" * 1_200_000 + b"\n\n"
    message = part(body)
    say(node, message[:20_000])
    assert ask.text == message[:20_000][len(message) - len(body) :]
    say(node, message[20_000:])
    ask.client.drain()
    assert node.taken == len(head()) + len(message)
    node.finish()
    assert ask.text == body
    ask.over()


async def test_the_end_of_half_a_message_is_an_error_of_the_node():
    ask = Ask(rig())
    node = ask.begun(part(chunk(0), 0), part(chunk(1), 1)[:9])
    node.finish()
    assert ask.error()["code"] == "node_protocol"
    ask.over()


async def test_other_errors_of_a_node_are_the_client_s():
    ask = Ask(rig())
    node = ask.begun(part(chunk(0), 0))
    node.sink.on_response_trailers(LayaError(13, "ENGINE_FAILED", "It failed.").grpc_trailers())  # type: ignore[arg-type]
    node.lose(0)
    assert ask.error()["code"] == "engine_failed"
    ask.over()


@pytest.mark.parametrize(("status", "kept"), [(400, {}), (500, {}), (200, {"the answer is no stream of events": 1})])
async def test_an_error_is_no_stream_that_cannot_move(status: int, kept: dict[str, int]):
    ask = Ask(rig())
    node = ask.node()
    node.begin(GRANT)
    say(node, head(status, ("content-type", "application/json")), part(b"{}"))
    node.finish()
    assert (ask.client.status, ask.text) == (status, b"{}")
    assert ask.rig.metrics.moves.sample().kept == kept
    ask.over()
