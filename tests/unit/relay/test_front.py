"""Who may call what on the public port, and who answers."""

from __future__ import annotations

import hashlib

import pytest

from router_node.middleware.keys import KeyRecord
from shared import headers as names
from shared.errors import Code, LayaError
from shared.net.grpc_wire import error_from_trailers, frame
from shared.pb.laya.v1 import inference_pb2 as pb
from tests.support.fake_streams import FakeServerStream
from tests.support.relay_rig import MODEL, Rig

SECRET = "laya-" + "k" * 43
KEY = KeyRecord(id="k1", hash=hashlib.sha256(SECRET.encode()).hexdigest(), tenant="acme", best_priority=-5)


def headers(path: bytes, *extra: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [(b":method", b"POST"), (b":path", path), (b"content-type", b"application/grpc"), *extra]


def error_of(stream: FakeServerStream) -> LayaError:
    error = error_from_trailers(list(stream.status().items()))
    assert error is not None
    return error


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (b"/laya.v1.Inference/Nonsense", Code.UNIMPLEMENTED),
        (b"/laya.v2.Inference/Generate", Code.UNIMPLEMENTED),
        (b"/laya.v1.Node/Drain", Code.PERMISSION_DENIED),
        (b"/laya.v1.Node/Watch", Code.PERMISSION_DENIED),
        (b"/laya.v1.Admin/DrainNode", Code.PERMISSION_DENIED),
        (b"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo/x", Code.UNIMPLEMENTED),
    ],
)
async def test_what_is_not_served_here_is_named_and_reaches_nobody(path, code):
    rig = Rig()
    client = FakeServerStream().call(rig.front.accept, headers(path), b"x")
    error = error_of(client)
    assert error.code == code
    assert path.decode() in error.message
    assert not rig.bridge.streams
    client.settle()
    rig.assert_idle()


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ([], "KEY_MISSING"),
        ([(b"authorization", b"Bearer laya-" + b"z" * 43)], "KEY_INVALID"),
        ([(b"authorization", SECRET.encode())], "KEY_INVALID"),
        ([(b"authorization", b"Bearer ")], "KEY_INVALID"),
    ],
)
async def test_a_missing_or_wrong_key_is_unauthenticated_and_says_nothing_of_the_models(extra, reason):
    rig = Rig(keys=[KEY])
    for path in (b"/laya.v1.Inference/Generate", b"/laya.v1.Inference/ListModels"):
        client = FakeServerStream().call(rig.front.accept, headers(path, *extra), b"x")
        error = error_of(client)
        assert (error.code, error.reason) == (Code.UNAUTHENTICATED, reason)
        assert MODEL not in error.message
        client.settle()
    rig.assert_idle()
    assert SECRET not in str(rig.log.entries)


async def test_health_needs_no_key_and_reflection_does():
    rig = Rig(keys=[KEY])
    health = FakeServerStream().call(
        rig.front.accept, headers(b"/grpc.health.v1.Health/Check", (names.MODEL, b"m")), b""
    )
    assert rig.bridge.last.headers[b":path"] == b"/grpc.health.v1.Health/Check"
    assert names.MODEL not in rig.bridge.last.headers
    rig.bridge.last.answer(b"\x08\x01")
    assert health.data == [frame(b"\x08\x01")]
    health.settle()
    path = b"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    refused = FakeServerStream().call(rig.front.accept, headers(path), b"")
    assert error_of(refused).reason == "KEY_MISSING"
    refused.settle()
    key = (b"authorization", b"Bearer " + SECRET.encode())
    taken = FakeServerStream().call(rig.front.accept, headers(path, key), b"", end=False)
    assert b"authorization" not in rig.bridge.last.headers
    taken.cancel()
    assert rig.bridge.last.code == 8
    rig.bridge.last.settle()
    rig.assert_idle()


async def test_health_without_its_services_is_unavailable():
    rig = Rig()
    rig.bridge.full = True
    client = FakeServerStream().call(rig.front.accept, headers(b"/grpc.health.v1.Health/Check"), b"")
    assert error_of(client).code == Code.UNAVAILABLE
    client.settle()
    rig.bridge.full = False
    client = FakeServerStream().call(rig.front.accept, headers(b"/grpc.health.v1.Health/Watch"), b"")
    rig.bridge.last.lose()
    assert error_of(client).code == Code.UNAVAILABLE
    client.settle()
    rig.assert_idle()


async def test_the_list_of_models_comes_from_the_table():
    rig = Rig()
    client = FakeServerStream().call(rig.front.accept, headers(b"/laya.v1.Inference/ListModels"), b"")
    assert client.status()[b"grpc-status"] == b"0"
    answer = pb.ListModelsResponse.FromString(b"".join(client.data)[5:])
    assert [(model.name, list(model.aliases), model.nodes) for model in answer.models] == [(MODEL, ["small"], 2)]
    client.settle()
    rig.assert_idle()
    assert not any(upstream.streams for upstream in rig.upstreams.values())


async def test_an_endless_question_for_the_models_is_cut_off():
    rig = Rig()
    client = FakeServerStream().call(rig.front.accept, headers(b"/laya.v1.Inference/ListModels"), end=False)
    assert client.sink is not None
    for _ in range(5):
        client.sink.on_data(b"x" * 16_384, False)
    assert error_of(client).reason == "BODY_TOO_LARGE"
    client.settle()
    rig.assert_idle()


@pytest.mark.parametrize("value", [b"has space", b"x" * 129, b"", b"a\nb"])
async def test_an_insane_request_id_is_replaced(value):
    rig = Rig()
    path = b"/laya.v1.Inference/ListModels"
    client = FakeServerStream().call(rig.front.accept, headers(path, (names.REQUEST_ID, value)), b"")
    assert dict(client.head)[names.REQUEST_ID].startswith(b"req-")
    client.settle()


async def test_a_malformed_deadline_is_refused():
    rig = Rig()
    sent = headers(b"/laya.v1.Inference/Generate", (b"grpc-timeout", b"soon"))
    client = FakeServerStream().call(rig.front.accept, sent, b"x")
    assert "grpc-timeout" in error_of(client).message
    client.settle()
    rig.assert_idle()


async def test_a_key_s_best_priority_bounds_what_is_asked_for():
    rig = Rig(keys=[KEY])
    sdk = [(names.MODEL, MODEL.encode()), (names.PROMPT_TOKENS, b"1"), (names.MAX_TOKENS, b"1")]
    key = (b"authorization", b"Bearer " + SECRET.encode())
    for asked, given in ((b"-99", b"-5"), (b"-5", b"-5"), (b"3", b"3")):
        sent = headers(b"/laya.v1.Inference/Generate", key, (names.PRIORITY, asked), *sdk)
        client = FakeServerStream().call(rig.front.accept, sent, b"x")
        assert rig.used.last.headers[names.PRIORITY] == given
        rig.used.last.answer(b"x")
        client.settle()
        rig.used.streams.clear()
    rig.assert_idle()


async def test_a_defect_of_ours_is_one_internal_error_with_its_books_closed(monkeypatch):
    rig = Rig()
    monkeypatch.setattr(rig.dispatcher, "resolve", lambda *_: 1 / 0)
    sdk = [(names.MODEL, MODEL.encode()), (names.PROMPT_TOKENS, b"1"), (names.MAX_TOKENS, b"1")]
    client = FakeServerStream().call(rig.front.accept, headers(b"/laya.v1.Inference/Generate", *sdk), b"x")
    error = error_of(client)
    assert error.code == Code.INTERNAL
    assert "division" not in error.message
    client.settle()
    rig.assert_idle()
