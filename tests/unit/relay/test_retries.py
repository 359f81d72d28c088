"""A failed request goes to another node: at once or later, as often as its pool can bear, while its client waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router_node.dispatch import DispatchSettings
from router_node.relay.retries import PUSHBACK
from shared.errors import Code, LayaError, exhausted, unavailable
from shared.net.grpc_wire import error_from_trailers
from tests.support.fake_http import FakeExchange
from tests.support.fake_streams import FakeServerStream, FakeUpstream
from tests.support.ports import until
from tests.support.relay_rig import Rig
from tests.unit.relay.test_phases import call, post

QUICK: dict[str, Any] = {"retry_backoff": 0.05, "max_retry_backoff": 0.05}


def sole(rig: Rig, but: list[FakeUpstream]) -> FakeUpstream:
    """The one node with a stream that is not in ``but``."""
    (found,) = [one for one in rig.upstreams.values() if one.streams and one not in but]
    return found


def tried(rig: Rig) -> int:
    return sum(len(one.streams) for one in rig.upstreams.values())


def error_of(client: FakeServerStream) -> LayaError:
    error = error_from_trailers(list(client.status().items()))
    assert error is not None
    return error


async def test_the_first_retry_is_at_once_and_the_second_is_not() -> None:
    rig = Rig(nodes=4, **QUICK)
    client = call(rig)
    first = sole(rig, [])
    first.last.lose()
    second = sole(rig, [first])
    loop = asyncio.get_running_loop()
    at = loop.time()
    second.last.lose()
    assert tried(rig) == 2
    await until(lambda: tried(rig) == 3, "the third node is asked", 5)
    assert loop.time() - at >= 0.02  # half of the back-off at least
    third = sole(rig, [first, second])
    third.last.answer(b"x")
    client.settle()
    assert client.status()[b"grpc-status"] == b"0"
    assert rig.count("retry") == 2 and rig.log.entries[-1]["attempts"] == 3
    rig.assert_idle()


async def test_http_waits_between_retries_too() -> None:
    rig = Rig(nodes=4, **QUICK)
    exchange = post(rig, False)
    first = sole(rig, [])
    first.last.lose()
    second = sole(rig, [first])
    second.last.lose()
    assert tried(rig) == 2
    await until(lambda: tried(rig) == 3, "the third node is asked", 5)
    sole(rig, [first, second]).last.lose()
    assert exchange.answer()[0] == 503  # three were enough
    rig.assert_idle()


@pytest.mark.parametrize("http", [False, True])
async def test_a_client_that_leaves_while_a_retry_is_waited_for_leaves_nothing(http: bool) -> None:
    rig = Rig(nodes=4, retry_backoff=0.05, max_retry_backoff=0.05)
    client: FakeServerStream | FakeExchange = post(rig, False) if http else call(rig)
    first = sole(rig, [])
    first.last.lose()
    sole(rig, [first]).last.lose()
    assert rig.dispatcher.reserved_tokens == 0  # nothing is held anywhere meanwhile
    client.leave() if isinstance(client, FakeExchange) else client.cancel()
    rig.assert_idle()
    await asyncio.sleep(0.15)
    assert tried(rig) == 2
    rig.assert_idle()


async def test_a_deadline_ends_the_wait_for_a_retry() -> None:
    rig = Rig(nodes=4, retry_backoff=5.0, max_retry_backoff=5.0)
    client = call(rig, b"/laya.v1.Inference/Generate", (b"grpc-timeout", b"40m"))
    first = sole(rig, [])
    first.last.lose()
    sole(rig, [first]).last.lose()
    await until(lambda: client.ended, "the deadline", 5)
    assert error_of(client).code is Code.DEADLINE_EXCEEDED
    client.settle()
    rig.assert_idle()


async def test_an_empty_budget_ends_retries_and_says_so() -> None:
    rig = Rig(nodes=2)
    pool = rig.dispatcher.resolve("smollm2")[0]
    while rig.dispatcher.settings.retry_burst and pool.budget.take(pool.sent):
        pass
    client = call(rig)
    sole(rig, []).last.lose()
    error = error_of(client)
    assert error.reason == "NODE_LOST" and error.metadata is not None and error.metadata["retry_safe"] == "true"
    assert rig.count("retry_budget_empty") == 1 and rig.count("retry") == 0
    client.settle()
    rig.assert_idle()


async def test_what_no_node_has_seen_costs_no_budget() -> None:
    rig = Rig(nodes=2)
    pool = rig.dispatcher.resolve("smollm2")[0]
    while pool.budget.take(pool.sent):
        pass
    client = call(rig)
    first = sole(rig, [])
    first.last.lose(unprocessed=True)
    second = sole(rig, [first])
    second.last.answer(b"x")
    client.settle()
    assert client.status()[b"grpc-status"] == b"0"
    rig.assert_idle()
    client = call(rig)
    first = next(one for one in rig.upstreams.values() if len(one.streams) and not one.last.closed)
    first.last.refuse(unavailable("I am leaving.", "DRAINING").grpc_trailers())
    assert next(one for one in rig.upstreams.values() if one is not first).streams[-1].data
    client.cancel()


async def test_a_full_node_s_request_goes_elsewhere_at_once() -> None:
    rig = Rig(nodes=2, **QUICK)
    client = call(rig)
    first = sole(rig, [])
    first.last.refuse(exhausted("No room.", "OVERLOADED", 30.0).grpc_trailers())
    second = sole(rig, [first])
    second.last.answer(b"x")
    client.settle()
    assert client.status()[b"grpc-status"] == b"0"
    rig.assert_idle()


@pytest.mark.parametrize("value", [b"-1", b"never", b"3600000"])
@pytest.mark.parametrize("http", [False, True])
async def test_a_node_that_wants_no_retry_gets_none_anywhere(value: bytes, http: bool) -> None:
    rig = Rig(nodes=2)
    client: FakeServerStream | FakeExchange = post(rig, False) if http else call(rig)
    trailers = [*exhausted("No room.", "OVERLOADED", 1.0).grpc_trailers(), (PUSHBACK, value)]
    rig.used.last.refuse(trailers)
    assert tried(rig) == 1
    if isinstance(client, FakeExchange):
        assert client.answer()[0] == 429
    else:
        assert error_of(client).code is Code.RESOURCE_EXHAUSTED
        client.settle()
    rig.assert_idle()


@pytest.mark.parametrize("http", [False, True])
async def test_a_node_may_ask_for_a_pause(http: bool) -> None:
    rig = Rig(nodes=2)
    client: FakeServerStream | FakeExchange = post(rig, False) if http else call(rig)
    first = rig.used
    loop = asyncio.get_running_loop()
    at = loop.time()
    first.last.refuse([*exhausted("No room.", "OVERLOADED", 1.0).grpc_trailers(), (PUSHBACK, b"60")])
    assert tried(rig) == 1
    await until(lambda: tried(rig) == 2, "the other node is asked", 5)
    assert loop.time() - at >= 0.055
    if isinstance(client, FakeExchange):
        client.leave()
    else:
        client.cancel()
    rig.other(first).last.settle()
    rig.assert_idle()


async def test_a_loss_in_the_middle_says_what_was_delivered_and_that_a_retry_is_not_safe() -> None:
    rig = Rig(nodes=2)
    client = call(rig)
    node = rig.used.last
    node.begin()
    node.sink.on_response_data(b"x" * 321, False)
    node.lose()
    error = error_of(client)
    assert error.code is Code.UNAVAILABLE and error.reason == "NODE_LOST"
    assert error.metadata is not None
    assert error.metadata["delivered_bytes"] == "321" and error.metadata["retry_safe"] == "false"
    assert error.retry_after is None
    client.settle()
    rig.assert_idle()


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError):
        DispatchSettings(retry_share=1.5)
    with pytest.raises(ValueError):
        DispatchSettings(retry_burst=-1)


async def test_a_node_that_fails_its_calls_rests() -> None:
    rig = Rig(nodes=2)
    bad: FakeUpstream | None = None
    for _ in range(40):
        client = call(rig)
        (up,) = [one for one in rig.upstreams.values() if one.streams and not one.last.closed]
        bad = bad or up
        if up is bad:
            up.last.refuse(LayaError(Code.INTERNAL, "ENGINE_FAILED", "It broke.").grpc_trailers())
        else:
            up.last.answer(b"x")
        client.settle()
    (ejected,) = [node for node in rig.dispatcher.nodes() if node.state == "ejected"]
    assert ejected.upstream is bad and "in a row" in ejected.health.why
    assert bad is not None and len(bad.streams) == 5
    rig.assert_idle()
