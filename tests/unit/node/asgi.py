"""Calls an ASGI application in process, as a test's client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """What came back; ``chunks`` are the body parts as they were sent."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    chunks: list[bytes] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of the stream's events, "[DONE]" as it stands."""
        lines = [line[6:] for line in self.body.decode().split("\n\n") if line]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def call(app: Any, method: str, path: str, body: Any = None, headers: Any = ()) -> Answer:
    """One request; ``body`` is encoded as JSON unless it is bytes."""
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    answer = Answer()
    sent = False

    async def receive() -> MutableMapping[str, Any]:
        nonlocal sent
        if sent:
            await asyncio.Event().wait()
        sent = True
        return {"type": "http.request", "body": raw, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = dict(message["headers"])
        elif message["body"]:
            answer.chunks.append(message["body"])

    scope = {"type": "http", "method": method, "path": path, "headers": list(headers), "query_string": b""}
    await app(scope, receive, send)
    return answer
