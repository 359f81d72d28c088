"""Streams of a node as a router takes them down, cut at any message, and the Resume with which another node goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import msgspec
import xxhash

from shared.pb.laya.v1 import inference_pb2 as pb
from shared.pb.laya.v1 import openai_pb2
from tests.support.grpc_errors import reason

ASK = (("laya-journal", "1"),)
RESUME = (*ASK, ("laya-resume", "1"))
METHODS: dict[type, tuple[str, Any]] = {
    pb.GenerateRequest: ("/laya.v1.Inference/Generate", pb.GenerateResponse),
    pb.ChatRequest: ("/laya.v1.Inference/Chat", pb.ChatResponse),
    openai_pb2.HttpRequest: ("/laya.v1.OpenAI/Call", openai_pb2.HttpResponse),
}


@dataclass
class Heard:
    """What came of a call: its messages, the word on its journal, and the error's code and reason if it failed."""

    messages: list[Any] = field(default_factory=list)
    journal: str = ""
    code: str = ""
    reason: str = ""
    detail: str = ""

    @property
    def text(self) -> str:
        return "".join(m.content if isinstance(m, pb.ChatResponse) else m.text for m in self.messages)

    @property
    def tokens(self) -> list[int]:
        return [token for message in self.messages for token in message.token_ids]

    @property
    def body(self) -> bytes:
        return b"".join(message.body for message in self.messages)


async def hear(
    address: str,
    request: Any,
    metadata: Sequence[tuple[str, str]] = ASK,
    after_each: Callable[[Heard], None] | None = None,
    timeout: float = 30.0,
) -> Heard:
    """Call a node and hear it out; ``after_each`` is called at each message."""
    path, kind = METHODS[type(request)]
    heard = Heard()
    async with grpc.aio.insecure_channel(address) as channel:
        method = channel.unary_stream(
            path, request_serializer=type(request).SerializeToString, response_deserializer=kind.FromString
        )
        call = method(request, metadata=tuple(metadata), timeout=timeout)
        try:
            async for message in call:
                heard.messages.append(message)
                if after_each is not None:
                    after_each(heard)
        except grpc.aio.AioRpcError as e:
            heard.code, heard.reason, heard.detail = e.code().name, reason(e), e.details() or ""
        heard.journal = str(dict(await call.initial_metadata() or ()).get("laya-journal", ""))
    return heard


def resumed(request: Any, messages: Sequence[Any], finish: str | None = None, attempt: int = 1) -> Any:
    """The request as a router sends it to another node once its client has these messages."""
    resume = pb.Resume(attempt=attempt)
    body = b""
    for message in messages:
        resume.token_ids.extend(message.token_ids)
        resume.message_tokens.append(len(message.token_ids))
        if isinstance(message, openai_pb2.HttpResponse):
            body += message.body
            resume.finish_reason = message.finish_reason or resume.finish_reason
        else:
            text = message.content if isinstance(message, pb.ChatResponse) else message.text
            resume.text_bytes += len(text.encode())
    if body:
        resume.body_bytes = len(body)
        resume.body_hash = xxhash.xxh3_64_intdigest(body)
        if b'"created":' in body:
            resume.created = int(body.split(b'"created":', 1)[1].split(b",", 1)[0])
    if finish is not None:
        resume.finish_reason = finish
    out = type(request)()
    out.CopyFrom(request)
    out.resume.CopyFrom(resume)
    return out


def web(path: str, **body: Any) -> openai_pb2.HttpRequest:
    """A streamed OpenAI request."""
    header = openai_pb2.HttpHeader(name="content-type", value="application/json")
    raw = msgspec.json.encode({"stream": True, **body})
    return openai_pb2.HttpRequest(method="POST", target=path, headers=[header], body=raw)
