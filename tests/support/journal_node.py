"""A scripted node whose streams can go on elsewhere, and which dies of them as it is told to.

Its answer is a known function of the request, so that whatever is lost, repeated or cut in half shows. Nodes share a
script: each call to any of them takes the next fate from it.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass

import xxhash

from shared import headers as names
from shared.errors import unavailable
from shared.net.api import INTERNAL_ERROR, Headers
from shared.net.grpc_wire import frame
from shared.pb.laya.v1 import inference_pb2 as pb
from shared.pb.laya.v1 import node_pb2, openai_pb2
from tests.support.rogue_node import HEAD, OK, RogueCall, RogueNode

LENGTH = 2  # finish reason
PAUSE = 0.01  # seconds between the last message and the end that a fate has in store
DONE = b"data: [DONE]\n\n"
SSE = openai_pb2.HttpResponseHead(
    status=200, headers=[openai_pb2.HttpHeader(name="content-type", value="text/event-stream; charset=utf-8")]
)


@dataclass(frozen=True)
class Fate:
    """What becomes of a call after so many new messages: "kill", "reset", "goaway", "drain", "half", "hang", "refuse".

    ``grant`` is what the node says of a journal; empty says nothing.
    """

    how: str
    at: int = 0
    grant: bytes = b"1"


FINE = Fate("")


def word(i: int) -> str:
    return f" w{i}"


def text(tokens: int) -> str:
    """The undisturbed answer."""
    return "".join(word(i) for i in range(tokens))


def body(tokens: int, created: int) -> bytes:
    """The undisturbed answer as events."""
    return b"".join(event for event, _ in events(tokens, created))


def events(tokens: int, created: int) -> list[tuple[bytes, int]]:
    """Events and how many tokens each one has."""

    def event(**more: object) -> bytes:
        return b"data: " + json.dumps({"id": "c", "created": created, **more}, separators=(",", ":")).encode() + b"\n\n"

    out = [(event(choices=[{"delta": {"role": "assistant"}}]), 0)]
    out += [(event(choices=[{"delta": {"content": word(i)}}]), 1) for i in range(tokens)]
    out += [(event(choices=[{"delta": {}, "finish_reason": "length"}]), 0)]
    out += [(event(choices=[], usage={"completion_tokens": tokens}), 0), (DONE, 0)]
    return out


class JournalNode(RogueNode):
    """``created`` is this node's own clock in its answers over HTTP; ``resumes`` is what it was asked to go on with."""

    def __init__(self, node_id: str, script: deque[Fate], created: int = 1000, revision: str = "") -> None:
        super().__init__(node_id, revision=revision)
        self.script = script
        self.created = created
        self.resumes: list[pb.Resume] = []
        self.behave = self._script
        self.draining = False
        self.odd_report = self._report
        self._running: list[RogueCall] = []

    def _report(self, report: node_pb2.WatchResponse) -> None:
        report.draining = self.draining

    def _script(self, call: RogueCall) -> None:
        if call.method == b"Drain":
            self._drain(call)
            return
        fate = self.script.popleft() if self.script else FINE
        messages = self._messages(call)
        if messages is None or fate.how == "refuse":
            call.stream.respond([*HEAD, *unavailable("It does not fit.", "RESUME_INEXACT").grpc_trailers()], end=True)
            return
        grant: Headers = [(names.JOURNAL, fate.grant)] if fate.grant else []
        call.stream.respond([*HEAD, *grant])
        if not fate.how:
            call.stream.send(b"".join(messages))
            call.stream.trailers(OK)
            return
        call.stream.send(b"".join(messages[: fate.at]))
        if fate.how == "half":
            call.stream.send(messages[fate.at][:-3])
        self._running.append(call)
        asyncio.get_running_loop().call_later(PAUSE, self._end, call, fate.how)

    def _end(self, call: RogueCall, how: str) -> None:
        conn = call.stream.conn
        if call.stream.closed:
            return
        if how == "goaway":
            conn.go_away()  # type: ignore[attr-defined]
        if how in ("kill", "half", "goaway"):
            conn.transport.abort()
        elif how == "reset":
            call.stream.reset(INTERNAL_ERROR)
        elif how == "drain":
            call.stream.trailers(unavailable("The node drains.", "DRAINING").grpc_trailers())

    def _drain(self, call: RogueCall) -> None:
        request = node_pb2.DrainRequest.FromString(call.request[5:])
        self.draining = not request.undo
        call.stream.respond(HEAD)
        call.stream.send(frame(node_pb2.DrainResponse(draining=self.draining).SerializeToString()))
        call.stream.trailers(OK)
        for running in self._running if request.migrate else ():
            self._end(running, "drain")

    def _messages(self, call: RogueCall) -> list[bytes] | None:
        """The framed messages that the client does not have; None where what it has is not what this node says."""
        data = call.request[5:]
        if call.method == b"Generate":
            generate = pb.GenerateRequest.FromString(data)
            return self._typed(call, generate.sampling.max_tokens, generate.resume, False)
        if call.method == b"Chat":
            chat = pb.ChatRequest.FromString(data)
            return self._typed(call, chat.sampling.max_tokens, chat.resume, True)
        return self._tunnel(call, openai_pb2.HttpRequest.FromString(data))

    def _typed(self, call: RogueCall, tokens: int, resume: pb.Resume, chat: bool) -> list[bytes] | None:
        start = 0
        if names.RESUME in call.headers:
            self.resumes.append(resume)
            start = len(resume.token_ids)
            if list(resume.token_ids) != list(range(start)) or resume.text_bytes != len(text(start)):
                return None
        out: list[bytes] = []
        for i in range(start, tokens):
            answer = pb.ChatResponse(content=word(i)) if chat else pb.GenerateResponse(text=word(i))
            answer.token_ids.append(i)
            if not i:
                answer.request_id = call.headers[names.REQUEST_ID].decode()
            if i == tokens - 1:
                answer.finish_reason = LENGTH  # type: ignore[assignment]
                answer.usage.prompt_tokens, answer.usage.completion_tokens = 3, tokens
            out.append(frame(answer.SerializeToString()))
        return out

    def _tunnel(self, call: RogueCall, request: openai_pb2.HttpRequest) -> list[bytes] | None:
        resume = request.resume
        tokens = json.loads(request.body)["max_tokens"]
        resumed = names.RESUME in call.headers
        said = events(tokens, resume.created if resumed else self.created)
        skip = 0
        if resumed:
            self.resumes.append(resume)
            whole = b"".join(event for event, _ in said)
            skip = resume.body_bytes
            if xxhash.xxh3_64_intdigest(whole[:skip]) != resume.body_hash:
                return None
        out = [frame(openai_pb2.HttpResponse(head=SSE).SerializeToString())]
        at = token = 0
        for event, count in said:
            ids = range(token, token + count)
            token += count
            at += len(event)
            if at > skip:
                out.append(frame(openai_pb2.HttpResponse(body=event, token_ids=ids).SerializeToString()))
        return out
