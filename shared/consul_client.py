"""py-consul over asyncio: the library's calls, awaited, on connections that end when their caller does.

The library makes URLs, headers and sense of answers; only the bytes are sent here. Each call has a connection of its
own, so a blocking query that is cancelled leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from consul import base

MAX_BODY: Final = 32 << 20  # bytes of an answer
MARGIN: Final = 5.0  # seconds beyond a blocking query's wait
TIMEOUT: Final = 5.0  # seconds for a call that does not block


class ConsulError(Exception):
    """The agent cannot be reached, or what answers is no HTTP server; one sentence."""


class _Headers(dict[str, str]):
    """By name, whatever its case."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(name.lower())

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())


class _Http(base.HTTPClient):  # type: ignore[misc]
    """One call, one connection. HTTP/1.0, so that an answer ends with its connection."""

    async def get(self, callback: Any, path: str, params: Any = None, headers: Any = None, raw: bool = False) -> Any:
        return callback(await self._call("GET", path, params, headers, ""))

    async def put(self, callback: Any, path: str, params: Any = None, data: Any = "", headers: Any = None) -> Any:
        return callback(await self._call("PUT", path, params, headers, data))

    async def delete(self, callback: Any, path: str, params: Any = None, data: Any = "", headers: Any = None) -> Any:
        return callback(await self._call("DELETE", path, params, headers, data))

    async def post(self, callback: Any, path: str, params: Any = None, data: str = "", headers: Any = None) -> Any:
        return callback(await self._call("POST", path, params, headers, data))

    def close(self) -> None:
        """Nothing is kept open."""

    async def _call(self, method: str, path: str, params: Any, headers: Any, data: str | bytes) -> Any:
        wait = next((float(str(value).rstrip("s")) for name, value in params or () if name == "wait"), 0.0)
        uri = self.uri(path, params)
        body = data.encode() if isinstance(data, str) else data
        target = uri[len(self.base_uri) :]
        lines = [f"{method} {target} HTTP/1.0", f"Host: {self.host}:{self.port}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        # Consul adds up to a sixteenth of the wait.
        async with asyncio.timeout(wait * 17 / 16 + MARGIN if wait else TIMEOUT):
            raw = await self._exchange("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return _answer(raw)

    async def _exchange(self, request: bytes) -> bytes:
        context = ssl.create_default_context() if self.scheme == "https" else None
        if context is not None and isinstance(self.verify, str):
            context.load_verify_locations(self.verify)
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=context)
        try:
            writer.write(request)
            await writer.drain()
            out = bytearray()
            while chunk := await reader.read(65536):
                out += chunk
                if len(out) > MAX_BODY:
                    raise ConsulError(f"the answer is over {MAX_BODY} bytes")
            return bytes(out)
        finally:
            writer.close()


def _answer(raw: bytes) -> Any:
    head, found, body = raw.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    parts = status.split(" ", 2)
    if not found or len(parts) < 2 or not parts[0].startswith("HTTP/") or not parts[1].isdigit():
        raise ConsulError("what answers is no Consul agent")
    headers = _Headers()
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    length = headers.get("content-length", "")
    if length.isdigit() and len(body) < int(length):
        raise ConsulError("the answer broke off")
    return base.Response(int(parts[1]), headers, body.decode("utf-8", "replace"))


class AsyncConsul(base.Consul):  # type: ignore[misc]
    """The library's client, whose calls are to be awaited."""

    def http_connect(self, host: str, port: int, scheme: str, verify: Any = True, cert: Any = None) -> _Http:
        return _Http(host, port, scheme, verify, cert)


def connect(address: str, token: str, datacenter: str, ca_file: str = "") -> Any:
    """A client of the agent at ``http://HOST:PORT`` or ``https://HOST:PORT``."""
    parts = urlsplit(address)
    return AsyncConsul(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 8500,
        scheme=parts.scheme or "http",
        token=token or None,
        dc=datacenter or None,
        verify=ca_file or True,
    )


Connect = Callable[[str, str, str, str], Any]
