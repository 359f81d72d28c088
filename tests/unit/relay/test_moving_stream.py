"""A streamed call that outlives its node, in every order that nodes, client and clock can put things."""

from __future__ import annotations

import asyncio

from router_node.relay.settings import MigrationSettings
from shared import headers as names
from shared.errors import Code, LayaError, exhausted, unavailable
from shared.net.api import INTERNAL_ERROR
from shared.net.grpc_wire import error_from_trailers, frame
from shared.pb.laya.v1 import inference_pb2 as pb
from tests.support import relay_calls
from tests.support.fake_streams import FakeClientStream, FakeServerStream, FakeUpstream
from tests.support.relay_calls import GENERATE
from tests.support.relay_rig import MODEL, Rig

CHAT = b"/laya.v1.Inference/Chat"
GRANT = (names.JOURNAL, b"1")
DRAINING = unavailable("The node drains.", "DRAINING").grpc_trailers()


def headers(path: bytes = GENERATE, *extra: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return relay_calls.headers(path, *relay_calls.SDK, *extra)


REQUEST = pb.GenerateRequest(model=MODEL, text="Hello").SerializeToString()


def said(*ids: int, text: str = "", finish: int = 0) -> bytes:
    message = pb.GenerateResponse(token_ids=ids, text=text or "".join(f" w{i}" for i in ids), finish_reason=finish)
    if finish:
        message.usage.prompt_tokens = 12
    return frame(message.SerializeToString())


def rig(nodes: int = 3, **settings: object) -> Rig:
    return Rig(nodes, migration=MigrationSettings(**settings), retry_backoff=0.001)  # type: ignore[arg-type]


class Call:
    """A call that is on its way, and the nodes that it has been to."""

    def __init__(self, world: Rig, *extra: tuple[bytes, bytes], body: bytes = REQUEST, path: bytes = GENERATE) -> None:
        self.rig = world
        self.seen: set[int] = set()
        self.client = FakeServerStream().call(world.front.accept, headers(path, *extra), body)

    def node(self) -> FakeClientStream:
        """The stream of the node that was asked last."""
        fresh = [s for up in self.rig.upstreams.values() for s in up.streams if id(s) not in self.seen]
        (found,) = fresh
        self.seen.add(id(found))
        return found

    def upstream(self, stream: FakeClientStream) -> FakeUpstream:
        (found,) = [up for up in self.rig.upstreams.values() if stream in up.streams]
        return found

    async def next_node(self) -> FakeClientStream:
        deadline = asyncio.get_running_loop().time() + 5
        while not any(id(s) not in self.seen for up in self.rig.upstreams.values() for s in up.streams):
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.002)
        return self.node()

    def ids(self) -> list[int]:
        """Token ids that the client has been given."""
        return [i for message in self.messages() for i in message.token_ids]

    def messages(self) -> list[pb.GenerateResponse]:
        data = b"".join(self.client.data)
        out = []
        while data:
            size = int.from_bytes(data[1:5], "big")
            assert len(data) >= 5 + size, "half a message was sent"
            out.append(pb.GenerateResponse.FromString(data[5 : 5 + size]))
            data = data[5 + size :]
        return out

    def error(self) -> LayaError:
        error = error_from_trailers(list(self.client.status().items()))
        assert error is not None
        return error

    def over(self) -> None:
        """Let all streams end, and see that nothing is left."""
        for upstream in self.rig.upstreams.values():
            for stream in upstream.streams:
                stream.settle()
        self.client.settle()
        self.rig.assert_idle()
        migrations = self.rig.core.migrations
        assert migrations is not None
        counts = self.rig.metrics.moves
        assert (counts.journal_bytes, counts.journals) == (0, 0)


def resume_of(stream: FakeClientStream) -> pb.Resume:
    """What a node is told of a stream."""
    assert stream.headers[names.RESUME] == b"1"
    (data,) = stream.data
    assert stream.ended
    request = pb.GenerateRequest.FromString(data[5:])
    assert int.from_bytes(data[1:5], "big") == len(data) - 5
    assert (request.model, request.text) == (MODEL, "Hello")
    return request.resume


async def test_a_stream_goes_on_where_its_lost_node_left_it():
    call = Call(rig())
    first = call.node()
    assert first.headers[names.JOURNAL] == b"1"
    first.begin(GRANT)
    assert dict(call.client.head)[names.MIGRATABLE] == b"1"
    first.sink.on_response_data(said(1) + said(2, 3), False)
    first.lose()
    second = call.node()
    assert call.upstream(second) is not call.upstream(first)
    resume = resume_of(second)
    assert list(resume.token_ids) == [1, 2, 3]
    assert list(resume.message_tokens) == [1, 2]
    assert resume.text_bytes == len(" w1 w2 w3")
    assert resume.attempt == 1
    second.begin(GRANT)
    second.sink.on_response_data(said(4, finish=2), False)
    second.finish()
    assert call.ids() == [1, 2, 3, 4]
    status = call.client.status()
    assert status[b"grpc-status"] == b"0"
    assert status[names.MIGRATED].startswith(b"from=n")
    assert b" stall_ms=" in status[names.MIGRATED]
    call.over()
    assert call.rig.metrics.moves.sample().outcomes == {"moved": 1}
    assert str(call.rig.log.entries[-1]["migrated"]).startswith("n")


async def test_half_a_message_is_never_passed_on_and_said_anew_by_the_next_node():
    call = Call(rig())
    node = call.node()
    node.begin(GRANT)
    whole = said(2, text="x" * 100)
    node.sink.on_response_data(said(1) + whole[:40], False)
    assert call.ids() == [1]
    node.lose()
    after = call.node()
    assert list(resume_of(after).token_ids) == [1]
    after.begin(GRANT)
    after.sink.on_response_data(whole[:70], False)
    after.sink.on_response_data(whole[70:], False)
    assert call.ids() == [1, 2]
    after.finish()
    call.over()


async def test_a_stream_whose_last_message_was_passed_on_is_ended_by_the_router():
    call = Call(rig())
    node = call.node()
    node.begin(GRANT)
    node.sink.on_response_data(said(1, finish=1), False)
    node.lose()
    assert call.client.status()[b"grpc-status"] == b"0"
    assert sum(len(up.streams) for up in call.rig.upstreams.values()) == 1
    call.over()
    assert call.rig.metrics.moves.sample().outcomes == {"complete": 1}


async def test_a_draining_node_hands_its_stream_over_and_is_not_blamed():
    call = Call(rig())
    node = call.node()
    node.begin(GRANT)
    node.sink.on_response_data(said(1), False)
    node.sink.on_response_trailers(DRAINING)
    node.lose(0)
    after = call.node()
    after.begin(GRANT)
    after.sink.on_response_data(said(2, finish=1), False)
    after.finish()
    assert call.ids() == [1, 2]
    assert call.rig.count("node_lost") == 0
    call.over()


async def test_other_errors_of_a_node_are_the_client_s():
    call = Call(rig())
    node = call.node()
    node.begin(GRANT)
    node.sink.on_response_data(said(1), False)
    node.sink.on_response_trailers(LayaError(Code.INTERNAL, "ENGINE_FAILED", "no").grpc_trailers())
    node.lose(0)
    assert call.error().reason == "ENGINE_FAILED"
    call.over()


async def test_two_nodes_may_be_lost_in_one_stream():
    call = Call(rig())
    node = call.node()
    node.begin(GRANT)
    for i in range(3):
        node.sink.on_response_data(said(i), False)
        if i < 2:
            node.lose(INTERNAL_ERROR)
            node = call.node()
            assert resume_of(node).attempt == i + 1
            node.begin(GRANT)
    node.finish()
    assert call.ids() == [0, 1, 2]
    assert call.client.status()[names.MIGRATED].count(b"from=") == 2
    call.over()


async def test_a_node_that_was_left_may_be_returned_to_later():
    call = Call(rig(2))
    node = call.node()
    node.begin(GRANT)
    for i in range(3):
        node.sink.on_response_data(said(i), False)
        node.lose()
        node = call.node()
        node.begin(GRANT)
    node.sink.on_response_data(said(3), False)
    node.finish()
    assert call.ids() == [0, 1, 2, 3]
    call.over()


async def test_a_stream_is_moved_so_many_times_and_no_more():
    call = Call(rig(attempts=1))
    node = call.node()
    node.begin(GRANT)
    for i in range(2):
        node.sink.on_response_data(said(i), False)
        node.lose()
        if not i:
            node = call.node()
            node.begin(GRANT)
    error = call.error()
    assert (error.code, error.reason) == (Code.UNAVAILABLE, "NODE_LOST")
    assert error.metadata is not None
    assert error.metadata["delivered_tokens"] == "2"
    assert error.metadata["delivered_messages"] == "2"
    assert "1 times" in error.metadata["not_migrated"]
    call.over()
    assert call.rig.metrics.moves.sample().outcomes == {"moved": 1, "attempts": 1}


async def test_two_nodes_in_a_row_that_die_without_a_token_make_the_request_poisonous():
    world = rig(4)
    call = Call(world)
    node = call.node()
    node.begin(GRANT)
    node.sink.on_response_data(said(1), False)
    node.lose()
    for _ in range(2):
        node = await call.next_node()
        node.begin(GRANT)
        node.lose()
    assert call.error().reason == "POISONOUS"
    call.over()
    again = Call(world)
    assert again.error().reason == "POISONOUS"
    again.over()
    assert world.metrics.moves.sample().poisonous == 2


async def test_only_the_request_that_nodes_die_of_is_refused():
    world = rig(4)
    call = Call(world)
    call.node().lose()
    world.counted(await call.next_node()).lose()
    assert call.error().reason == "POISONOUS"
    before = {id(stream) for upstream in world.upstreams.values() for stream in upstream.streams}
    other = Call(world, body=pb.GenerateRequest(model=MODEL, text="Good day").SerializeToString())
    other.seen = before
    other.node().answer(said(1)[5:])
    assert other.client.status()[b"grpc-status"] == b"0"
    call.client.settle()
    other.over()


async def test_a_request_that_kills_nodes_before_its_first_token_is_refused_before_the_third():
    call = Call(rig(4))
    call.node().lose()
    call.rig.counted(await call.next_node()).lose()
    assert call.error().reason == "POISONOUS"
    call.over()


async def test_a_node_that_dies_at_the_same_moment_as_the_first_is_no_second_death():
    call = Call(rig(4))
    call.node().lose()
    (await call.next_node()).lose()  # nothing shows that it ever had the request
    node = await call.next_node()
    node.begin(GRANT)
    node.sink.on_response_data(said(1, finish=1), False)
    node.finish()
    assert call.ids() == [1]
    call.over()
    assert call.rig.metrics.moves.sample().poisonous == 0


async def test_a_request_that_kills_nodes_before_they_can_say_that_they_have_it_takes_three():
    world = rig(5)
    call = Call(world)
    for _ in range(3):
        (await call.next_node()).lose()
    assert call.error().reason == "POISONOUS"
    call.over()
    again = Call(world)
    assert again.error().reason == "POISONOUS"
    again.over()


async def test_nor_is_one_that_dies_as_a_moved_stream_comes_to_it():
    call = Call(rig(5, attempts=5))
    node = call.node()
    node.begin(GRANT)
    node.lose()
    (await call.next_node()).lose()
    node = await call.next_node()
    node.begin(GRANT)
    node.sink.on_response_data(said(1, finish=1), False)
    node.finish()
    assert call.ids() == [1]
    call.over()


async def test_a_token_in_between_clears_a_request():
    call = Call(rig(4, attempts=5))
    node = call.node()
    node.begin(GRANT)
    for i in range(3):
        node.lose()
        node = await call.next_node()
        node.begin(GRANT)
        node.sink.on_response_data(said(i), False)
    node.finish()
    assert call.client.status()[b"grpc-status"] == b"0"
    call.over()


async def test_a_node_that_refuses_the_rest_is_passed_over():
    call = Call(rig())
    node = call.node()
    node.begin(GRANT)
    node.sink.on_response_data(said(1), False)
    node.lose()
    refusing = call.node()
    refusing.refuse(exhausted("full", "QUEUE_FULL", 0.1).grpc_trailers())
    taking = await call.next_node()
    assert resume_of(taking).attempt == 2
    taking.begin(GRANT)
    taking.sink.on_response_data(said(2), False)
    taking.finish()
    assert call.ids() == [1, 2]
    assert call.rig.count("node_refused") == 1
    call.over()


async def test_a_node_that_would_begin_anew_is_not_let_to():
    call = Call(rig())
    node = call.node()
    node.begin(GRANT)
    node.sink.on_response_data(said(1), False)
    node.lose()
    older = call.node()
    older.begin()
    assert older.code >= 0
    older.settle()
    taking = await call.next_node()
    taking.begin(GRANT)
    taking.sink.on_response_data(said(2), False)
    taking.finish()
    assert call.ids() == [1, 2]
    call.over()


async def test_without_another_node_the_end_is_clean_and_says_what_was_delivered():
    call = Call(rig(1))
    node = call.node()
    node.begin(GRANT)
    node.sink.on_response_data(said(1, 2), False)
    node.lose()
    error = call.error()
    assert (error.code, error.reason) == (Code.UNAVAILABLE, "NODE_LOST")
    assert "2 tokens in 1 messages" in error.message
    call.over()


async def test_a_node_of_another_revision_is_no_other_node():
    world = rig(1)
    spec = world.dispatcher.nodes()[0].spec
    call = Call(world)
    node = call.node()
    other = world.add_node("other")
    changed = type(spec)(MODEL, revision="r2", max_seq_len=65_536, kv_capacity_tokens=100_000)
    world.dispatcher.add_node("other", other.address, changed)
    node.begin(GRANT)
    node.sink.on_response_data(said(1), False)
    node.lose()
    assert call.error().metadata is not None
    assert not world.upstreams["other"].streams
    call.over()


async def test_a_client_that_wants_none_of_it_is_told_so():
    call = Call(rig(), (names.NO_MIGRATE, b"1"))
    node = call.node()
    assert names.JOURNAL not in node.headers, "the node is not to count on it"
    node.begin(GRANT)
    assert dict(call.client.head)[names.MIGRATABLE] == b"0; the client said laya-no-migrate"
    node.sink.on_response_data(said(1), False)
    node.lose()
    error = call.error()
    assert error.reason == "NODE_LOST"
    assert error.metadata is not None
    assert error.metadata["not_migrated"] == "the client said laya-no-migrate"
    call.over()


async def test_a_node_s_own_reason_is_passed_on():
    call = Call(rig())
    node = call.node()
    node.begin((names.JOURNAL, b"0; n is 2"))
    assert dict(call.client.head)[names.MIGRATABLE] == b"0; n is 2"
    node.finish()
    call.over()
    assert call.rig.metrics.moves.sample().kept == {"n is 2": 1}


async def test_a_node_that_says_nothing_is_relayed_byte_for_byte():
    call = Call(rig())
    node = call.node()
    node.begin()
    assert names.MIGRATABLE not in dict(call.client.head)
    node.sink.on_response_data(b"\0\0\0", False)
    assert call.client.data == [b"\0\0\0"]
    node.lose()
    assert "not_migrated" not in (call.error().metadata or {})
    call.over()


async def test_a_request_over_the_bound_is_not_migratable_and_says_so():
    body = pb.GenerateRequest(model=MODEL, text="x" * 3000).SerializeToString()
    call = Call(rig(max_request_bytes=2048), body=body)
    call.node().begin(GRANT)
    assert dict(call.client.head)[names.MIGRATABLE].startswith(b"0; the request is over 2048 bytes")
    call.client.cancel()
    call.over()


async def test_a_request_longer_than_a_splice_keeps_is_kept_up_to_the_bound():
    body = pb.GenerateRequest(model=MODEL, text="x" * 200_000).SerializeToString()
    world = rig()
    client = FakeServerStream().call(world.front.accept, headers(), end=False)
    call = Call.__new__(Call)
    call.rig, call.seen, call.client = world, set(), client
    node = call.node()
    framed = frame(body)
    for at in range(0, len(framed), 16_384):
        client.sink.on_data(framed[at : at + 16_384], at + 16_384 >= len(framed))  # type: ignore[union-attr]
    node.begin(GRANT)
    assert dict(client.head)[names.MIGRATABLE] == b"1"
    node.sink.on_response_data(said(7), False)
    node.lose()
    after = call.node()
    (data,) = after.data
    assert pb.GenerateRequest.FromString(data[5:]).text == "x" * 200_000
    client.cancel()
    call.over()


async def test_too_many_tokens_end_the_journal_but_not_the_stream():
    call = Call(rig(max_tokens=2))
    node = call.node()
    node.begin(GRANT)
    for i in range(4):
        node.sink.on_response_data(said(i), False)
    node.sink.on_response_data(said(4)[:6], False)
    assert b"".join(call.client.data).endswith(said(4)[:6]), "it passes as it comes"
    node.lose()
    error = call.error()
    assert error.metadata is not None
    assert error.metadata["not_migrated"] == "the stream is too long"
    call.over()


async def test_a_client_that_leaves_at_any_moment_leaves_nothing_behind():
    for stage in range(5):
        call = Call(rig())
        node = call.node()
        if stage > 0:
            node.begin(GRANT)
        if stage > 1:
            node.sink.on_response_data(said(1) + said(2)[:4], False)
        if stage > 2:
            node.lose()
            node = call.node()
        if stage > 3:
            node.refuse(exhausted("full", "QUEUE_FULL", 0.1).grpc_trailers())
        call.client.cancel()
        call.over()


async def test_a_client_that_leaves_while_its_stream_waits_for_room_leaves_nothing_behind():
    world = rig(2)
    call = Call(world)
    node = call.node()
    node.begin(GRANT)
    node.sink.on_response_data(said(1), False)
    for i in range(2):
        world.report(f"n{i}", 0)
    node.lose()
    assert world.dispatcher.queued == 1
    call.client.cancel()
    call.over()


async def test_a_stream_waits_for_room_and_then_goes_on():
    world = rig(2)
    call = Call(world)
    node = call.node()
    other = next(name for name, up in world.upstreams.items() if not up.streams)
    node.begin(GRANT)
    node.sink.on_response_data(said(1), False)
    world.dispatcher.set_link(next(name for name in world.upstreams if name != other), False)
    world.report(other, 0)
    node.lose()
    assert world.dispatcher.queued == 1
    world.report(other, 100_000)
    after = call.node()
    after.begin(GRANT)
    after.sink.on_response_data(said(2), False)
    after.finish()
    assert call.ids() == [1, 2]
    call.over()


async def test_a_stream_without_a_node_for_too_long_is_given_up():
    call = Call(rig(max_stall=0.1))
    node = call.node()
    node.begin(GRANT)
    node.sink.on_response_data(said(1), False)
    node.lose()
    silent = call.node()
    silent.begin(GRANT)
    deadline = asyncio.get_running_loop().time() + 5
    while not call.client.ended:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)
    assert "0.1 s passed" in call.error().message
    assert silent.code >= 0
    call.over()
    assert call.rig.metrics.moves.sample().outcomes == {"stall": 1}


async def test_bytes_are_acknowledged_to_the_node_that_sent_them_and_just_once():
    call = Call(rig())
    first = call.node()
    first.begin(GRANT)
    one, two, three = said(1), said(2), said(3)
    first.sink.on_response_data(one, False)
    call.client.drain()
    assert first.taken == len(one)
    first.sink.on_response_data(two, False)  # still on its way to the client when its node is lost
    first.lose()
    second = call.node()
    second.begin(GRANT)
    second.sink.on_response_data(three, False)
    call.client.drain()
    assert first.taken == len(one)
    assert second.taken == len(three)
    call.client.cancel()
    call.over()


async def test_a_message_longer_than_the_window_is_acknowledged_while_it_comes():
    call = Call(rig())
    node = call.node()
    node.begin(GRANT)
    message = said(1, text="y" * 120_000)
    unacked = 0
    for at in range(0, len(message), 8192):
        part = message[at : at + 8192]
        node.sink.on_response_data(part, False)
        unacked = max(unacked, min(at + 8192, len(message)) - node.taken)
        if at + 8192 < len(message):
            assert not call.client.data
    assert unacked <= len(message)
    before = node.taken
    assert before > len(message) - 32_768
    call.client.drain()
    assert node.taken == len(message)
    node.sink.on_response_data(said(2), False)
    call.client.drain()
    assert node.taken == len(message) + len(said(2))
    node.finish()
    call.over()


async def test_a_message_beyond_all_bounds_passes_as_it_comes():
    call = Call(rig())
    node = call.node()
    node.begin(GRANT)
    message = said(1, text="y" * 300_000)
    node.sink.on_response_data(message[:20_000], False)
    assert b"".join(call.client.data) == message[:20_000]
    node.sink.on_response_data(message[20_000:], False)
    call.client.drain()
    assert node.taken == len(message)
    node.finish()
    assert b"".join(call.client.data) == message
    call.over()


async def test_chat_has_its_own_fields():
    body = pb.ChatRequest(model=MODEL, messages=[pb.ChatMessage(role="user", content="hi")]).SerializeToString()
    call = Call(rig(), body=body, path=CHAT)
    node = call.node()
    node.begin(GRANT)
    message = pb.ChatResponse(role="assistant", content="héy", token_ids=[300, 70_000], request_id="r", engine="sim")
    node.sink.on_response_data(frame(message.SerializeToString()), False)
    node.lose()
    (data,) = call.node().data
    request = pb.ChatRequest.FromString(data[5:])
    assert request.messages[0].content == "hi"
    assert list(request.resume.token_ids) == [300, 70_000]
    assert request.resume.text_bytes == len("héy".encode())
    call.client.cancel()
    call.over()
