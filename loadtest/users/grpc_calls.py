"""Calls over gRPC, by the SDK. Belongs to processes without gevent."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from types import TracebackType

from loadtest.users.call import CUT_OFF, UNREACHABLE, Call, Outcome
from loadtest.users.target import Target
from shared.client import LayaClient, Token
from shared.errors import Code, LayaError
from shared.pb.laya.v1 import inference_pb2 as pb

LANES = 16
"""Connections at most for each key: a router with several workers is reached over several."""


class GrpcCalls:
    """Makes calls to one target."""

    def __init__(self, at: Target, model: str, ca_file: str = "") -> None:
        self._at, self._model = at, model
        self._root = open(ca_file, "rb").read() if ca_file else None  # noqa: SIM115 - once, before the load
        self._clients: dict[tuple[str, int], LayaClient] = {}

    async def __aenter__(self) -> GrpcCalls:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients.values():
            await client.close()

    def _client(self, key: str, lane: int) -> LayaClient:
        at = (key, lane % LANES)
        client = self._clients.get(at)
        if client is None:
            # Channels with equal arguments share a connection, unless told not to.
            options = [("grpc.use_local_subchannel_pool", 1)]
            client = self._clients[at] = LayaClient(
                self._at.address, key or None, tls=self._at.tls, root_certificates=self._root, options=options
            )
        return client

    async def ask(self, call: Call) -> Outcome:
        """One streamed answer. Never raises for what the target does."""
        out = Outcome()
        begun = time.perf_counter()
        try:
            async with contextlib.aclosing(self._open(call)) as tokens:
                await _read(tokens, call, out, begun)
        except LayaError as e:
            out.reason, out.detail = _reason(e, out), e.message
        out.total = time.perf_counter() - begun
        return out

    def _open(self, call: Call) -> AsyncGenerator[Token, None]:
        client = self._client(call.key, call.lane)
        structured = None
        if call.schema:
            structured = pb.StructuredOutput(json_schema=call.schema)
        elif call.choices:
            structured = pb.StructuredOutput(choice=pb.Choices(options=call.choices))
        sampling = {"max_tokens": call.max_tokens, "ignore_eos": call.ignore_eos or None}
        if call.messages:
            turns = [{"role": role, "content": content} for role, content in call.messages]
            return client.chat(
                turns, model=self._model, session=call.session, priority=call.priority, timeout=call.timeout,
                structured=structured, **sampling,
            )  # fmt: skip
        return client.generate(
            call.prompt, model=self._model, session=call.session, priority=call.priority, timeout=call.timeout,
            structured=structured, **sampling,
        )  # fmt: skip


async def _read(tokens: AsyncGenerator[Token, None], call: Call, out: Outcome, begun: float) -> None:
    async for token in tokens:
        count = len(token.token_ids) or bool(token.text)
        if count:
            out.token(time.perf_counter() - begun, count, token.text, call.keep_text)
        if token.usage is not None:
            out.prompt_tokens, out.cached_tokens = token.usage.prompt_tokens, token.usage.cached_tokens
        if call.leave_after and out.tokens >= call.leave_after:
            out.left = True
            return
        if call.read_delay:
            await asyncio.sleep(call.read_delay)


def _reason(e: LayaError, out: Outcome) -> str:
    if e.reason or e.code != Code.UNAVAILABLE:
        return e.reason or e.code.name
    # Without a reason it is grpcio that speaks: it reached nobody, or lost the connection.
    return CUT_OFF if out.first else UNREACHABLE
