"""A Consul agent on loopback: services, their checks, and blocking queries; what a test needs of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class FakeConsul:
    """``services`` are registrations by id. Each change raises ``index``."""

    def __init__(self, token: str = "") -> None:
        self.services: dict[str, dict[str, Any]] = {}
        self.passing: dict[str, bool] = {}  # by check id
        self.index = 10
        self.queries: list[dict[str, str]] = []
        self.token = token
        self.broken = ""  # sent in place of every answer
        self.port = 0
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> FakeConsul:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self.change()

    async def change(self, index: int | None = None) -> None:
        """Something is new; ``index`` makes Consul begin anew."""
        async with self._changed:
            self.index = self.index + 1 if index is None else index
            self._changed.notify_all()

    async def put(self, service_id: str, **service: Any) -> None:
        """Register behind the agent's back, all checks passing."""
        self.services[service_id] = {"name": "laya-node", "id": service_id, "tags": [], **service}
        await self.change()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.split("\r\n")
            method, target, _ = first.split(" ")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            status, answer = await self._answer(method, target, headers, body)
            raw = json.dumps(answer).encode()
            head = f"HTTP/1.0 {status} X\r\nX-Consul-Index: {self.index}\r\nContent-Length: {len(raw)}\r\n\r\n"
            writer.write(self.broken.encode() if self.broken else head.encode() + raw)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
        parts = urlsplit(target)
        path = unquote(parts.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        if self.token and headers.get("x-consul-token") != self.token:
            return 403, "Permission denied"
        if path.startswith("/v1/health/service/"):
            self.queries.append(query)
            return 200, await self._health(path.rpartition("/")[2], query)
        if path == "/v1/agent/service/register":
            service = json.loads(body)
            self.services[service["id"]] = service
            for check in service.get("checks", ()):
                self.passing[check.get("CheckID", check["name"])] = check.get("status") == "passing"
            await self.change()
            return 200, None
        name = path.rpartition("/")[2]
        if path.startswith("/v1/agent/service/deregister/"):
            self.services.pop(name, None)
            await self.change()
            return 200, None
        if path.startswith("/v1/agent/check/pass/"):
            if name not in self.passing:
                return 404, f"Unknown check {name}"
            self.passing[name] = True
            return 200, None
        return 404, "no such path"

    async def _health(self, service: str, query: dict[str, str]) -> list[dict[str, Any]]:
        if query.get("index") == str(self.index):
            async with self._changed:
                try:
                    async with asyncio.timeout(float(query["wait"].rstrip("s"))):
                        await self._changed.wait()
                except TimeoutError:
                    pass
        return [
            {
                "Node": {"Address": "10.0.0.9"},
                "Service": {
                    "ID": one["id"],
                    "Address": one.get("address", ""),
                    "Port": one.get("port", 0),
                    "Meta": one.get("meta"),
                },
            }
            for one in self.services.values()
            if one["name"] == service and (not query.get("tag") or query["tag"] in one.get("tags", ()))
        ]
