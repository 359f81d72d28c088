"""What bodies show to the rules."""

from __future__ import annotations

import msgspec
import pytest

from router_node.routes.facts import PLAIN, Shape
from router_node.routes.look import look
from router_node.routes.patterns import CONTENT_BYTES
from shared.pb.laya.v1 import inference_pb2 as pb
from shared.pb.laya.v1 import openai_pb2

CHAT = "/v1/chat/completions"


def body(**fields: object) -> bytes:
    return msgspec.json.encode({"model": "m", **fields})


@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ({"prompt": "hi"}, Shape(text=b"hi")),
        ({"prompt": ["hi", "there"], "stream": True}, Shape(streaming=True, text=b"hi\nthere")),
        ({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}, Shape(text=b"s\nu")),
        (
            {"messages": [{"content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {}}]}]},
            Shape(text=b"look"),
        ),
        ({"input": "resp", "instructions": "be brief"}, Shape(text=b"be brief\nresp")),
        ({"response_format": {"type": "json_object"}}, Shape(structured=True)),
        ({"response_format": {"type": "text"}}, PLAIN),
        ({"text": {"format": {"type": "json_schema"}}}, Shape(structured=True)),
        ({"guided_regex": "a+"}, Shape(structured=True)),
        ({"tools": [{"type": "function"}]}, Shape(tools=True)),
        ({"tools": [], "functions": [{}]}, Shape(tools=True)),
        ({"prompt": [1, 2, 3]}, PLAIN),
    ],
)
def test_an_openai_body(fields: dict[str, object], shape: Shape) -> None:
    assert look(CHAT, body(**fields)) == shape
    assert look("OpenAI.Call", openai_pb2.HttpRequest(body=body(**fields)).SerializeToString()) == shape


def test_typed_messages() -> None:
    request = pb.GenerateRequest(text="write", structured=pb.StructuredOutput(regex="a"))
    assert look("Generate", request.SerializeToString()) == Shape(True, True, False, b"write")
    assert look("Complete", pb.CompleteRequest(request=request).SerializeToString()) == Shape(
        False, True, False, b"write"
    )
    chat = pb.ChatRequest(messages=[pb.ChatMessage(role="user", content="a"), pb.ChatMessage(content="b")])
    assert look("Chat", chat.SerializeToString()) == Shape(True, False, False, b"a\nb")
    assert look("Embed", pb.EmbedRequest(inputs=["x", "y"]).SerializeToString()) == Shape(text=b"x\ny")


def test_only_the_beginning_of_a_prompt_is_taken() -> None:
    assert look(CHAT, body(prompt="x" * 100_000)).text == b"x" * CONTENT_BYTES
    assert len(look(CHAT, body(messages=[{"content": "é" * 3000}, {"content": "z" * 9000}])).text) == CONTENT_BYTES


def test_what_cannot_be_read_shows_nothing() -> None:
    deep = b'{"messages":' + b"[" * 5000 + b"]" * 5000 + b"}"
    for raw in (b"{", b"[]", b"\xff\xfe", deep):
        assert look(CHAT, raw) == PLAIN
    assert look("Chat", b"\xff\xff\xff") == PLAIN
    assert look("Generate", b"") == Shape(streaming=True)
