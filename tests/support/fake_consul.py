"""A Consul agent on loopback that goes by the documented HTTP API, in what Laya asks of it.

Registrations with a field that Consul does not know are refused, as it does since 1.7. Checks run: a time to live
that nobody renews, and gRPC health asked for over the wire. A service that is critical for too long is taken out.
A blocking query returns once the index is above the one asked for, or after its wait and up to a sixteenth more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shared.tasks import cancel_all

# Names of JSON fields by what Consul's decoder takes: any case, and no other field at all.
_SERVICE_FIELDS: Final = frozenset(
    ["name", "id", "tags", "address", "port", "meta", "check", "checks", "enabletagoverride", "weights", "kind"]
)
_CHECK_FIELDS: Final = frozenset(
    [
        "name",
        "checkid",
        "status",
        "notes",
        "ttl",
        "interval",
        "timeout",
        "grpc",
        "grpcusetls",
        "tlsskipverify",
        "deregistercriticalserviceafter",
    ]
)
_MOST_WAIT: Final = 600.0  # seconds; more is cut down
_LOOK_EVERY: Final = 0.05


class Refused(Exception):
    """What the agent answers instead: status and body."""


class FakeConsul:
    """``services`` are registrations by id with lower-case keys. Each change raises ``index``."""

    def __init__(self, token: str = "") -> None:
        self.services: dict[str, dict[str, Any]] = {}
        self.status: dict[str, dict[str, str]] = {}  # of the checks, by service id and check id
        self.index = 10
        self.queries: list[dict[str, str]] = []
        self.token = token
        self.broken = ""  # sent in place of every answer
        self.leader = True
        self.reaped: list[str] = []  # services that were critical for too long
        self.forget_scale = 1.0  # by which the time until then is multiplied
        self.port = 0
        self._heard: dict[tuple[str, str], float] = {}  # when a time to live was renewed last
        self._critical_since: dict[tuple[str, str], float] = {}
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._checker: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> FakeConsul:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self._checker = asyncio.create_task(self._check(), name="fake-consul-checks")
        return self

    async def close(self) -> None:
        await cancel_all([self._checker])
        if self._server is not None:
            self._server.close()
            await self.change()

    async def change(self, index: int | None = None) -> None:
        """Something is new; ``index`` is one after a restore, which lets every waiting query go."""
        async with self._changed:
            self.index = self.index + 1 if index is None else index
            self._changed.notify_all()

    async def put(self, service_id: str, **service: Any) -> None:
        """Register behind the agent's back, without checks."""
        self.services[service_id] = {"name": "laya-node", "id": service_id, "tags": [], **service}
        self.status[service_id] = {}
        await self.change()

    async def forget(self) -> None:
        """As an agent that lost its data."""
        self.services.clear()
        self.status.clear()
        await self.change()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.split("\r\n")
            method, target, _ = first.split(" ")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            try:
                status, answer = 200, json.dumps(await self._answer(method, target, headers, body))
            except Refused as refused:
                status, answer = refused.args
            known = f"X-Consul-Index: {self.index}\r\nX-Consul-Knownleader: {str(self.leader).lower()}\r\n"
            head = f"HTTP/1.0 {status} X\r\n{known}X-Consul-Lastcontact: 0\r\nContent-Length: {len(answer)}\r\n\r\n"
            writer.write(self.broken.encode() if self.broken else (head + answer).encode())
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Any:
        parts = urlsplit(target)
        path = unquote(parts.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        if self.token and headers.get("x-consul-token") != self.token:
            raise Refused(403, "Permission denied: token with AccessorID lacks permission 'service:read'")
        name = path.rpartition("/")[2]
        if method == "GET" and path.startswith("/v1/health/service/"):
            self.queries.append(query)
            return await self._health(name, query)
        if method == "PUT" and path == "/v1/agent/service/register":
            await self._register(body)
        elif method == "PUT" and path.startswith("/v1/agent/service/deregister/"):
            if name not in self.services:
                raise Refused(404, f'Unknown service ID "{name}". Ensure that the service ID is passed.')
            await self._remove(name)
        elif method == "PUT" and path.startswith("/v1/agent/check/pass/"):
            await self._renew(name)
        else:
            raise Refused(404, "")
        return None

    async def _register(self, body: bytes) -> None:
        service = _lowered(json.loads(body), _SERVICE_FIELDS)
        checks = [_lowered(check, _CHECK_FIELDS) for check in service.get("checks") or ()]
        for key, value in (service.get("meta") or {}).items():
            if len(key) > 128 or len(value) > 512:
                raise Refused(400, f"Invalid Service Meta: {key} is too long")
        states: dict[str, str] = {}
        for at, check in enumerate(checks):
            if ("ttl" in check) == ("grpc" in check and "interval" in check):
                raise Refused(400, "Invalid check: Interval must be > 0 for Script, HTTP, or TCP checks")
            check.setdefault("checkid", f"service:{service['id']}:{at + 1}")
            states[check["checkid"]] = check.get("status", "critical")
            self._heard[service["id"], check["checkid"]] = time.monotonic()
        self.services[service["id"]] = {**service, "checks": checks}
        self.status[service["id"]] = states
        await self.change()

    async def _remove(self, service_id: str) -> None:
        self.services.pop(service_id, None)
        self.status.pop(service_id, None)
        await self.change()

    async def _renew(self, check_id: str) -> None:
        for service_id, states in self.status.items():
            if check_id in states:
                self._heard[service_id, check_id] = time.monotonic()
                await self._set(service_id, check_id, "passing")
                return
        raise Refused(404, f'Unknown check ID "{check_id}". Ensure that the check ID is passed, not the check name.')

    async def _set(self, service_id: str, check_id: str, status: str) -> None:
        states = self.status.get(service_id, {})
        if status == "critical":
            self._critical_since.setdefault((service_id, check_id), time.monotonic())
        else:
            self._critical_since.pop((service_id, check_id), None)
        if states.get(check_id, status) != status:
            states[check_id] = status
            await self.change()

    # Checks

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            now = time.monotonic()
            for service_id, service in list(self.services.items()):
                for check in service.get("checks") or ():
                    await self._look(service_id, check, now)

    async def _look(self, service_id: str, check: dict[str, Any], now: float) -> None:
        at = (service_id, check["checkid"])
        if "grpc" in check:
            await self._set(*at, "passing" if await _serves(check["grpc"]) else "critical")
        elif now - self._heard.get(at, now) > _seconds(check["ttl"]):
            await self._set(*at, "critical")
        limit = check.get("deregistercriticalserviceafter")
        since = self._critical_since.get(at)
        if limit and since is not None and now - since > max(60.0, _seconds(limit)) * self.forget_scale:
            self.reaped.append(service_id)
            self._critical_since.pop(at)
            await self._remove(service_id)

    # The health endpoint

    async def _health(self, service: str, query: dict[str, str]) -> list[dict[str, Any]]:
        if "stale" in query and "consistent" in query:
            raise Refused(400, "Cannot specify ?stale with ?consistent, conflicting semantics.")
        if not self.leader and "stale" not in query:
            raise Refused(500, "No cluster leader")
        asked = int(query.get("index") or 0)
        if asked > 0 and self.index <= asked:
            wait = min(_seconds(query.get("wait") or "300s"), _MOST_WAIT)
            async with self._changed:
                before = self.index
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait * (1 + random.random() / 16)):
                        await self._changed.wait_for(lambda: self.index > asked or self.index < before)
        if not self.leader and "stale" not in query:
            raise Refused(500, "No cluster leader")
        return [
            {
                "Node": {"Node": "agent", "Address": "10.0.0.9", "Datacenter": "dc1"},
                "Service": {
                    "ID": one["id"],
                    "Service": one["name"],
                    "Tags": one.get("tags") or [],
                    "Address": one.get("address", ""),
                    "Port": one.get("port", 0),
                    "Meta": one.get("meta"),
                },
                "Checks": [{"CheckID": name, "Status": status} for name, status in self.status[one["id"]].items()],
            }
            for one in self.services.values()
            if one["name"] == service
            and (not query.get("tag") or query["tag"] in (one.get("tags") or ()))
            and ("passing" not in query or all(s == "passing" for s in self.status[one["id"]].values()))
        ]


def _lowered(tree: dict[str, Any], known: frozenset[str]) -> dict[str, Any]:
    for key in tree:
        if key.lower() not in known:
            raise Refused(400, f'Request decode failed: json: unknown field "{key}"')
    return {key.lower(): value for key, value in tree.items()}


def _seconds(text: str) -> float:
    number, unit = (text[:-2], 1000.0) if text.endswith("ms") else (text[:-1], 1.0)
    return float(number) / unit


async def _serves(target: str) -> bool:
    """What a node's health service says, at ``HOST:PORT/SERVICE``."""
    address, _, service = target.partition("/")
    async with grpc.aio.insecure_channel(address) as channel:
        ask = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[no-untyped-call]
        try:
            answer = await ask(health_pb2.HealthCheckRequest(service=service), timeout=1.0)
        except grpc.aio.AioRpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
