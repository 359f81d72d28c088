"""What the body of a request asks for: a stream, a given form, tools; and how its prompt begins.

Only read where a rule wants to know. A body that cannot be read shows nothing: the node will say what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError

from router_node.routes.facts import PLAIN, Shape
from router_node.routes.patterns import CONTENT_BYTES
from shared.pb.laya.v1 import inference_pb2 as pb
from shared.pb.laya.v1 import openai_pb2

_MAX_PARTS: Final = 256  # messages, or parts of one, that are looked into


class _Body(msgspec.Struct):
    stream: Any = None
    response_format: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None
    text: Any = None
    tools: Any = None
    functions: Any = None
    messages: Any = None
    prompt: Any = None
    instructions: Any = None
    input: Any = None


_decode: Final = msgspec.json.Decoder(_Body).decode


def look(method: str, message: bytes) -> Shape:
    """The shape of a request: ``message`` is its first gRPC message, or its HTTP body where ``method`` is a path."""
    if not message:
        return Shape(streaming=method in _STREAMS)
    read = _READERS.get(method)
    try:
        return read(message) if read is not None else _json(message)
    except (DecodeError, msgspec.DecodeError, UnicodeError, RecursionError):
        return PLAIN


def _json(raw: bytes) -> Shape:
    body = _decode(raw)
    form = body.response_format
    if form is None and isinstance(body.text, dict):
        form = body.text.get("format")
    structured = isinstance(form, dict) and form.get("type") not in (None, "text")
    structured = structured or any(
        value is not None
        for value in (
            body.guided_json,
            body.guided_regex,
            body.guided_choice,
            body.guided_grammar,
            body.structured_outputs,
        )
    )
    return Shape(body.stream is True, structured, bool(body.tools or body.functions), _beginning(_texts(body)))


def _texts(body: _Body) -> Iterator[str]:
    if isinstance(body.instructions, str):
        yield body.instructions
    for value in (body.messages, body.prompt, body.input):
        if value is not None:
            yield from _text(value, 4)
            return


def _text(value: Any, depth: int) -> Iterator[str]:
    """The texts in a prompt, a message or its parts, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and depth:
        for part in value[:_MAX_PARTS]:
            yield from _text(part, depth - 1)
    elif isinstance(value, dict) and depth:
        yield from _text(value.get("content", value.get("text")), depth - 1)


def _beginning(texts: Iterator[str]) -> bytes:
    """The first bytes of texts that follow each other by lines."""
    out = bytearray()
    for text in texts:
        if out:
            out += b"\n"
        out += text[: CONTENT_BYTES - len(out)].encode("utf-8", "replace")
        if len(out) >= CONTENT_BYTES:
            break
    return bytes(out[:CONTENT_BYTES])


def _generate(raw: bytes) -> Shape:
    return _of_generate(pb.GenerateRequest.FromString(raw), True)


def _complete(raw: bytes) -> Shape:
    return _of_generate(pb.CompleteRequest.FromString(raw).request, False)


def _of_generate(request: pb.GenerateRequest, streaming: bool) -> Shape:
    kind = request.WhichOneof("prompt")
    texts: Iterator[str] = iter(())
    if kind == "text":
        texts = iter((request.text,))
    elif kind == "messages":
        texts = (turn.content for turn in request.messages.messages)
    return Shape(streaming, request.HasField("structured"), False, _beginning(texts))


def _chat(raw: bytes) -> Shape:
    request = pb.ChatRequest.FromString(raw)
    return Shape(True, request.HasField("structured"), False, _beginning(turn.content for turn in request.messages))


def _embed(raw: bytes) -> Shape:
    return Shape(False, False, False, _beginning(iter(pb.EmbedRequest.FromString(raw).inputs)))


def _tunnel(raw: bytes) -> Shape:
    body = openai_pb2.HttpRequest.FromString(raw).body
    return _json(body) if body else PLAIN


_READERS: Final[dict[str, Callable[[bytes], Shape]]] = {
    "Generate": _generate,
    "Complete": _complete,
    "Chat": _chat,
    "Embed": _embed,
    "OpenAI.Call": _tunnel,
}
_STREAMS: Final = frozenset(("Generate", "Chat"))
