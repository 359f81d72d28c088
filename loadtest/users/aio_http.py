"""Calls over the OpenAI API on asyncio."""

from __future__ import annotations

import asyncio
import ssl
import time
from types import TracebackType

import aiohttp

from loadtest.users import http_body
from loadtest.users.call import CUT_OFF, UNREACHABLE, Call, Outcome
from loadtest.users.target import Target

_LARGEST_ERROR = 4096


class AioHttpCalls:
    """Makes calls to one target over kept-alive connections."""

    def __init__(self, at: Target, model: str, ca_file: str = "") -> None:
        trust = ssl.create_default_context(cafile=ca_file or None) if at.tls else True
        self._at, self._model = at, model
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=trust))

    async def __aenter__(self) -> AioHttpCalls:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def ask(self, call: Call) -> Outcome:
        """One streamed answer. Never raises for what the target does."""
        out = Outcome()
        begun = time.perf_counter()
        limit = aiohttp.ClientTimeout(total=call.timeout + 5.0, sock_connect=10.0)
        try:
            async with self._session.post(
                self._at.url + http_body.path(call),
                data=http_body.body(call, self._model),
                headers=http_body.headers(call),
                timeout=limit,
            ) as answer:
                if answer.status == 200:
                    await self._read(answer, call, out, begun)
                else:
                    http_body.refusal(answer.status, await answer.content.read(_LARGEST_ERROR), out)
        except aiohttp.ClientConnectorError as e:
            out.reason, out.detail = UNREACHABLE, str(e)
        except TimeoutError as e:
            out.reason, out.detail = "TIMEOUT", str(e)
        except (aiohttp.ClientError, ValueError) as e:
            out.reason, out.detail = CUT_OFF, f"{type(e).__name__}: {e}"
        out.total = time.perf_counter() - begun
        return out

    async def _read(self, answer: aiohttp.ClientResponse, call: Call, out: Outcome, begun: float) -> None:
        events = http_body.Events(call, out)
        async for line in answer.content:
            if events.line(line, time.perf_counter() - begun) and call.read_delay:
                await asyncio.sleep(call.read_delay)
            if out.left:
                answer.close()
                break
        events.ended()
