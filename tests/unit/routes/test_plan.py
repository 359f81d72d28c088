"""Requests on their way along a rule: through the relay and the gateway, with real dispatch and fake nodes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

from router_node.dispatch import NodeSpec, Report
from router_node.routes.live import LiveTable
from router_node.routes.rules import parse
from shared import headers as names
from shared.errors import Code, LayaError, exhausted
from shared.net.grpc_wire import error_from_trailers
from shared.pb.laya.v1 import inference_pb2 as pb
from tests.support.fake_http import FakeExchange
from tests.support.fake_streams import FakeServerStream, FakeUpstream
from tests.support.relay_rig import Rig

GENERATE = b"/laya.v1.Inference/Generate"
CHAT = b"/v1/chat/completions"
SIZES = [(names.PROMPT_TOKENS, b"12"), (names.MAX_TOKENS, b"64")]


class Site(Rig):
    """A router with rules; ``serve`` gives a pool a node named after it."""

    def __init__(self, *rules: dict[str, Any], **settings: Any) -> None:
        super().__init__(0, **settings)
        self.live = LiveTable(7, {r.name: r for r in map(parse, rules)}, {"max_n": 16, "max_max_tokens": 131072})
        self.core.table.swap(self.live)

    def serve(
        self, pool: str, headroom: int = 100_000, *, revision: str = "", node: str = "", seq: int = 65_536
    ) -> None:
        node_id = node or f"n-{pool}"
        spec = NodeSpec(
            pool, aliases=(f"{pool}-alias",), revision=revision, max_seq_len=seq, kv_capacity_tokens=100_000
        )
        self.dispatcher.add_node(node_id, "127.0.0.1:1", spec).upstream = self.upstreams[node_id] = FakeUpstream()
        self.dispatcher.set_link(node_id, True)
        self.dispatcher.on_watch_reset(node_id)
        self.sequence += 1
        self.dispatcher.on_report(
            node_id,
            Report(self.sequence, "boot", 100_000, headroom, prefill_tokens_per_second=8000.0, full=True),
        )

    def call(self, model: str, *extra: tuple[bytes, bytes], message: bytes = b"") -> FakeServerStream:
        head = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", GENERATE),
            (b":authority", b"x"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            *([(names.MODEL, model.encode()), *SIZES] if not message else []),
            *extra,
        ]
        stream = FakeServerStream().call(self.front.accept, head, end=False)
        if stream.sink is not None:
            stream.sink.on_data(b"\0" + len(message).to_bytes(4, "big") + message, True)
        return stream

    def chat(self, **body: Any) -> FakeExchange:
        body.setdefault("messages", [{"role": "user", "content": "hi"}])
        exchange = FakeExchange(b"POST", CHAT, [], json.dumps(body).encode())
        self.gateway.handle(exchange)
        return exchange

    def sent(self, pool: str) -> dict[bytes, bytes]:
        """The headers of the last call that a pool's node was sent."""
        return dict(self.upstreams[f"n-{pool}"].last.headers)


def error_of(stream: FakeServerStream) -> LayaError:
    error = error_from_trailers(list(stream.status().items()))
    assert error is not None
    return error


def to(pool: Any, model: str = "auto", **more: Any) -> dict[str, Any]:
    return {"name": "r", "when": {"model": model}, "targets": pool, **more}


async def test_a_request_goes_where_its_rule_leads_and_both_sides_are_told() -> None:
    site = Site(to({"pool": "big", "defaults": {"temperature": 0.1}, "clamps": {"max_tokens": {"max": 32}}}))
    site.serve("big")
    site.serve("other")
    client = site.call("auto")
    sent = site.sent("big")
    assert sent[names.REWRITE] == b"big"
    assert msgspec.json.decode(sent[names.CLAMPS]) == {
        "max_n": 16,
        "max_max_tokens": 131072,
        "temperature": {"default": 0.1},
        "max_tokens": {"max": 32},
    }
    (node,) = [n for n in site.dispatcher.nodes() if n.id == "n-big"]
    assert node.reserved_tokens == 48  # 12 and 32 new ones in blocks of 16
    site.upstreams["n-big"].last.answer(b"t")
    assert dict(client.head)[names.ROUTE] == b"r@7"
    client.settle()
    assert site.log.entries[-1]["model"] == "auto"
    site.assert_idle()


async def test_a_request_under_no_rule_goes_by_its_model_as_before() -> None:
    site = Site(to("big"))
    site.serve("big")
    site.call("big-alias")
    assert names.REWRITE not in site.sent("big")
    assert error_of(site.call("nothing")).code is Code.NOT_FOUND


async def test_a_rewrite_names_what_the_node_is_asked_for() -> None:
    site = Site(to({"pool": "big", "model": "lora-7"}))
    site.serve("big")
    site.call("auto")
    assert site.sent("big")[names.REWRITE] == b"lora-7"


async def test_a_revision_can_be_a_target() -> None:
    site = Site(to("big@v2"))
    site.serve("big", revision="v1", node="one")
    site.serve("big", revision="v2")
    for _ in range(5):
        site.call("auto")
    assert len(site.upstreams["n-big"].streams) == 5 and not site.upstreams["one"].streams


async def test_an_empty_a_full_and_a_too_small_pool_are_passed_over() -> None:
    site = Site(to("gone", fallback=["full", "tiny", "good"]))
    site.serve("full", headroom=16)
    site.serve("tiny", seq=4)
    site.serve("good")
    site.call("auto")
    assert site.sent("good")[names.REWRITE] == b"good"
    assert site.dispatcher.queued == 0


async def test_where_all_are_full_a_request_waits_for_the_first_that_may() -> None:
    site = Site(to("gone", fallback=["full", "good"]))
    site.serve("full", headroom=16)
    site.serve("good", headroom=16)
    client = site.call("auto")
    assert site.dispatcher.queued == 1
    site.sequence += 1
    site.dispatcher.on_report("n-full", Report(site.sequence, "boot", 100_000, 90_000, full=True))
    assert site.sent("full")[names.REWRITE] == b"full"
    site.upstreams["n-full"].last.answer(b"t")
    client.settle()
    site.assert_idle()


async def test_a_pool_that_does_not_exist_yet_is_unavailable_with_the_reason() -> None:
    site = Site(to("later"))
    client = site.call("auto")
    client.settle()
    error = error_of(client)
    assert (error.code, error.reason) == (Code.UNAVAILABLE, "NO_NODE")
    assert "'r'" in error.message and "'later'" in error.message
    status, _, body = site.chat(model="auto").answer()
    assert status == 503 and "later" in json.loads(body)["error"]["message"]
    site.assert_idle()
    site.serve("later")
    site.call("auto")
    assert site.upstreams["n-later"].streams


async def test_a_pool_whose_only_node_gives_up_is_followed_by_the_fallback() -> None:
    site = Site(to("a", fallback="b"))
    site.serve("a")
    site.serve("b")
    client = site.call("auto")
    site.upstreams["n-a"].last.refuse(exhausted("Full.", "QUEUE_FULL", 1.0).grpc_trailers())
    await asyncio.sleep(0)
    assert site.sent("b")[names.REWRITE] == b"b"
    site.upstreams["n-b"].last.answer(b"t")
    client.settle()
    assert client.status()[b"grpc-status"] == b"0"
    site.assert_idle()


async def test_attempts_are_the_rules_own() -> None:
    site = Site(to("a", fallback="b", max_attempts=1))
    site.serve("a")
    site.serve("b")
    client = site.call("auto")
    site.upstreams["n-a"].last.refuse(exhausted("Full.", "QUEUE_FULL", 1.0).grpc_trailers())
    await asyncio.sleep(0)
    assert not site.upstreams["n-b"].streams
    assert error_of(client).reason == "QUEUE_FULL"


async def test_a_rules_time_limit_holds_for_both_ways_in() -> None:
    site = Site(to("a", timeout=0.05))
    site.serve("a")
    client, exchange = site.call("auto"), site.chat(model="auto")
    assert b"grpc-timeout" in site.sent("a")
    loop = asyncio.get_running_loop()
    until = loop.time() + 5
    while exchange.state == "fresh" or not client.ended:
        assert loop.time() < until
        await asyncio.sleep(0.01)
    error = error_of(client)
    assert error.reason == "DEADLINE" and "route 'r'" in error.message
    assert exchange.answer()[0] == 504


async def test_rules_may_look_into_bodies_of_requests_whose_metadata_says_it_all() -> None:
    site = Site(
        {"name": "code", "when": {"content": r"\bdef \w+\("}, "targets": "coder"},
        {"name": "form", "when": {"structured": True}, "targets": "former"},
        {"name": "rest", "priority": 9, "targets": "small"},
    )
    for pool in ("coder", "former", "small"):
        site.serve(pool)
    site.call("x", message=pb.GenerateRequest(model="x", text="def f(): pass").SerializeToString())
    site.chat(model="x", response_format={"type": "json_object"})
    site.chat(model="x")
    assert [len(site.upstreams[f"n-{p}"].streams) for p in ("coder", "former", "small")] == [1, 1, 1]
    head = [(names.MODEL, b"x"), *SIZES]
    whole = pb.GenerateRequest(model="x", text="def g(y): pass").SerializeToString()
    site.call("x", *head, message=whole)
    assert len(site.upstreams["n-coder"].streams) == 2


async def test_headers_of_either_way_in_are_seen() -> None:
    site = Site({"name": "r", "when": {"headers": {"x-team": "red"}}, "targets": "a"})
    site.serve("a")
    site.serve("b")
    site.call("b", (b"x-team", b"red"))
    exchange = FakeExchange(b"POST", CHAT, [(b"x-team", b"red")], b'{"model":"b","messages":[]}')
    site.gateway.handle(exchange)
    site.call("b", (b"x-team", b"blue"))
    assert [len(site.upstreams[n].streams) for n in ("n-a", "n-b")] == [2, 1]


async def test_a_rule_for_any_model_serves_requests_that_name_none() -> None:
    site = Site({"name": "r", "targets": "a"})
    site.serve("a")
    site.serve("b")
    site.call("", message=pb.GenerateRequest(text="hello").SerializeToString())
    assert len(site.upstreams["n-a"].streams) == 1


async def test_a_request_keeps_the_version_that_it_began_with() -> None:
    site = Site(to("a", fallback="b"))
    site.serve("a")
    site.serve("b")
    client = site.call("auto")
    site.core.table.swap(None)
    site.upstreams["n-a"].last.refuse(exhausted("Full.", "QUEUE_FULL", 1.0).grpc_trailers())
    await asyncio.sleep(0)
    site.upstreams["n-b"].last.answer(b"t")
    assert dict(client.head)[names.ROUTE] == b"r@7"
