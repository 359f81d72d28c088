"""What is read from and written into an OpenAI body."""

from __future__ import annotations

from typing import Any

import pytest

from inference_node import bodies
from inference_node.call import Call
from inference_node.engines.base import BadRequest
from inference_node.prepare import Caps
from shared.errors import Code, LayaError, exhausted

CAPS = Caps(16, 1000)


def plan(path: Any, body: Any, metadata: Any = None) -> Any:
    out = bodies.plan(path, body, Call(metadata or {}, "r"), CAPS)
    bodies.fill_max_tokens(out, 10, 50, 100)
    return out


def test_a_body_that_says_all_stays_as_it_is():
    body = {"model": "m", "max_tokens": 5, "n": 2, "priority": 3, "cache_salt": "s"}
    out = plan(bodies.CHAT, body)
    assert not out.changed and (out.max_new_tokens, out.sequences, out.priority) == (5, 2, 3)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (bodies.CHAT, "max_completion_tokens"),
        (bodies.COMPLETIONS, "max_tokens"),
        (bodies.RESPONSES, "max_output_tokens"),
    ],
)
def test_an_absent_max_tokens_is_written_under_the_routes_own_name(path, name):
    body: dict[str, Any] = {}
    out = plan(path, body)
    assert out.changed and body == {name: 50} and out.max_new_tokens == 50


def test_the_default_never_leaves_the_context():
    body: dict[str, Any] = {}
    out = bodies.plan(bodies.CHAT, body, Call({}, "r"), CAPS)
    bodies.fill_max_tokens(out, 80, 50, 100)
    assert out.max_new_tokens == 20
    out = bodies.plan(bodies.CHAT, {}, Call({}, "r"), CAPS)
    bodies.fill_max_tokens(out, 500, 50, 100)
    assert out.max_new_tokens == 1  # admission says that the context is too long


def test_the_newer_name_wins_as_in_the_application():
    assert plan(bodies.CHAT, {"max_tokens": 9, "max_completion_tokens": 4}).max_new_tokens == 4
    assert plan(bodies.CHAT, {"max_tokens": 9, "max_completion_tokens": None}).max_new_tokens == 9


def test_best_of_and_beams_count_as_sequences():
    assert plan(bodies.COMPLETIONS, {"n": 2, "best_of": 5}).sequences == 5
    assert plan(bodies.COMPLETIONS, {"n": 4, "use_beam_search": True}).sequences == 4


def test_embeddings_grow_by_nothing():
    body = {"input": "x"}
    out = plan(bodies.EMBEDDINGS, body, {b"laya-priority": b"2", b"laya-salt": b"s"})
    assert out.max_new_tokens == 0 and body == {"input": "x"}


def test_router_metadata_is_written_in():
    metadata = {
        b"laya-rewrite": b"real",
        b"laya-priority": b"-1",
        b"laya-salt": b"t",
        b"laya-clamps": b'{"temperature":{"max":1},"top_p":{"default":0.9},"max_tokens":{"max":3}}',
    }
    body = {"model": "alias", "temperature": 2, "max_tokens": 9, "cache_salt": "own", "logprobs": True}
    out = plan(bodies.CHAT, body, metadata)
    assert out.changed
    assert body == {
        "model": "real",
        "temperature": 1.0,
        "top_p": 0.9,
        "max_tokens": 3,
        "cache_salt": "t:own",
        "priority": -1,
        "logprobs": True,
    }


def test_the_model_asked_for():
    assert bodies.model_of({"model": "a"}, Call({}, "r")) == "a"
    assert bodies.model_of({"model": 5}, Call({b"laya-rewrite": b"b"}, "r")) == "b"
    assert bodies.model_of({}, Call({}, "r")) == ""
    with pytest.raises(BadRequest):
        bodies.model_of({"model": ["a"]}, Call({}, "r"))


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"null", b'"\xff"', b"[" * 200_000])
def test_what_is_no_object_is_refused(raw):
    with pytest.raises(LayaError) as e:
        bodies.parse(raw)
    assert e.value.code == Code.INVALID_ARGUMENT


def test_a_clamp_on_a_text_is_told():
    with pytest.raises(BadRequest, match="temperature must be a number"):
        plan(bodies.CHAT, {"temperature": "hot"}, {b"laya-clamps": b'{"temperature":{"max":1}}'})


def test_an_error_is_status_headers_and_object():
    status, headers, body = bodies.error_body(exhausted("busy", "QUEUE_FULL", 1.2))
    assert status == 429 and (b"retry-after", b"2") in headers and b'"queue_full"' in body


def test_with_streaming_off_a_streamed_body_is_refused_by_its_field():
    caps = Caps(16, 1000, streaming=False)
    with pytest.raises(BadRequest, match="enable_streaming") as e:
        bodies.plan(bodies.CHAT, {"model": "m", "stream": True}, Call({}, "r"), caps)
    assert e.value.param == "stream"
    assert bodies.plan(bodies.CHAT, {"model": "m", "stream": False}, Call({}, "r"), caps).sequences == 1
