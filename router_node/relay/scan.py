"""Reads routing fields out of a first request message whose metadata did not name them.

Protobuf promises no field order and lets a later value replace an earlier one, so a peek at the first bytes is not
enough: the whole message is parsed, by protobuf's own C parser. That takes about a microsecond for 300 bytes and a few
milliseconds for the worst 256 KiB that anyone can send; a walk over the fields in Python would take twenty times that,
which a hostile client could buy with one small message. Only what routes the request is then read; what metadata named
stays. Fields of a newer schema than this router's are skipped, as they should be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from router_node.relay.fields import MAX_MODEL, Fields, model
from router_node.relay.peek import peek
from router_node.relay.settings import RelaySettings
from shared import prefix
from shared.errors import LayaError, invalid
from shared.pb.laya.v1 import inference_pb2 as pb
from shared.pb.laya.v1 import openai_pb2

HASH_FROM: Final = 512  # bytes: a shorter prompt has no whole block to hash
MAX_TURNS: Final = 4096  # chat messages that are looked into

M = TypeVar("M", bound=Message)


def scan_generate(message: bytes, into: Fields, settings: RelaySettings) -> None:
    """Read a ``GenerateRequest``. Raises, as its like do, INVALID_ARGUMENT for what is none or is above a cap."""
    _generate(_parse(pb.GenerateRequest.FromString, message), into, settings, "sampling")


def scan_complete(message: bytes, into: Fields, settings: RelaySettings) -> None:
    """Read a ``CompleteRequest``."""
    _generate(_parse(pb.CompleteRequest.FromString, message).request, into, settings, "request.sampling")


def scan_chat(message: bytes, into: Fields, settings: RelaySettings) -> None:
    """Read a ``ChatRequest``."""
    request = _parse(pb.ChatRequest.FromString, message)
    _sampling(request.sampling if request.HasField("sampling") else None, into, settings, "sampling")
    _common(request.model, request.priority, into)
    _turns(request.messages, into)


def scan_embed(message: bytes, into: Fields, settings: RelaySettings) -> None:
    """Read an ``EmbedRequest``: all its inputs are prompt, and one new token stands for the vectors."""
    request = _parse(pb.EmbedRequest.FromString, message)
    _common(request.model, request.priority, into)
    into.n = into.n or 1
    into.max_new_tokens = into.max_new_tokens or 1
    into.prompt_bytes = sum(map(len, request.inputs))


def scan_tunnel(message: bytes, into: Fields, settings: RelaySettings) -> None:
    """Read the JSON body of an ``HttpRequest``; one without a body, as GET has, may go to any node of the model."""
    body = _parse(openai_pb2.HttpRequest.FromString, message).body
    if body:
        peek(body, into, settings)


def _parse(read: Callable[[bytes], M], message: bytes) -> M:
    try:
        return read(message)
    except DecodeError:
        raise invalid("The first message is not the protobuf message that this method takes.") from None


def _generate(request: pb.GenerateRequest, into: Fields, settings: RelaySettings, where: str) -> None:
    _sampling(request.sampling if request.HasField("sampling") else None, into, settings, where)
    _common(request.model, request.priority, into)
    kind = request.WhichOneof("prompt")
    if kind == "text":
        text = request.text
        into.prompt_bytes = size = len(text) if text.isascii() else len(text.encode())
        if size >= HASH_FROM and not into.prefix:
            into.prefix = prefix.of_text(text)
    elif kind == "messages":
        _turns(request.messages.messages, into)
    elif kind == "token_ids":
        into.prompt_tokens = len(request.token_ids.ids)
        into.exact = True
        if not into.prefix and into.prompt_tokens >= HASH_FROM // 5:
            into.prefix = prefix.of_ids(request.token_ids)


def _sampling(found: pb.SamplingParams | None, into: Fields, settings: RelaySettings, where: str) -> None:
    if found is None:
        into.n = 1
        return
    n = 1
    if found.HasField("n"):
        n = found.n
        if not 1 <= n <= settings.max_n:
            raise _out_of_bounds(f"{where}.n", n, settings.max_n)
    into.n = n
    if found.HasField("max_tokens"):
        limit = found.max_tokens
        if not 1 <= limit <= settings.max_max_tokens:
            raise _out_of_bounds(f"{where}.max_tokens", limit, settings.max_max_tokens)
        if not into.max_new_tokens:
            into.max_new_tokens = limit * n


def _out_of_bounds(field: str, value: int, most: int) -> LayaError:
    return invalid(f"The field '{field}' is {value}: it must be 1 to {most}.", field)


def _common(name: str, priority: int, into: Fields) -> None:
    if not into.model:
        into.model = name if len(name) <= MAX_MODEL // 4 else model(name.encode(), "model")
    if not into.named:
        into.priority = priority


def _turns(messages: Sequence[pb.ChatMessage], into: Fields) -> None:
    """A conversation: its length, and the hash of its beginning, where each turn adds to what was there before."""
    size = 0
    for turn in islice(messages, MAX_TURNS):
        size += len(turn.content) + len(turn.role)
    into.prompt_bytes = size
    if size < HASH_FROM // 2 or into.prefix:
        return
    into.prefix = prefix.of_turns(islice(messages, MAX_TURNS))
