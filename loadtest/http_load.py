"""Load for OpenAI-style HTTP servers: closed loops by wrk (or a client of our own) and streams at a fixed pace."""

from __future__ import annotations

import asyncio
import json
import math
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from loadtest.canned import DONE, TAIL, stamps
from loadtest.hop_client import quantile
from loadtest.peers_setup import find
from loadtest.rig import MODEL, RigError

PATH = "/v1/chat/completions"
_LIMIT = 60.0  # seconds after which an answer is missing
_WORDS = ("router", "cache", "token", "stream", "prefix", "memory", "layer", "batch", "queue", "weight")
_LARGE = 16 << 10
_SHARED = 4 << 10
_BODIES = 64

# One line that a script can read, after wrk's own report.
_LUA = """
local bodies = {}
for line in io.lines("BODIES") do
  bodies[#bodies + 1] = wrk.format("POST", nil, {["host"] = "bench", ["content-type"] = "application/json"}, line)
end
local i = 0
request = function()
  i = i % #bodies + 1
  return bodies[i]
end
done = function(summary, latency, requests)
  local e = summary.errors
  local failed = e.connect + e.read + e.write + e.status + e.timeout
  io.write(string.format('\\nFIGURES {"calls":%d,"us":%d,"p50":%.0f,"p99":%.0f,"errors":%d}\\n', summary.requests,
    summary.duration, latency:percentile(50), latency:percentile(99), failed))
end
"""


def bodies(stream: bool = False, large: bool = False) -> list[bytes]:
    """Chat requests, one JSON line each: a short one, or 16 KiB ones that differ after a common 4 KiB."""
    if not large:
        return [_body("Summarise the state of the router in one sentence.", stream)]
    rng = random.Random(16)
    common = _text(rng, _SHARED)
    return [_body(common + _text(rng, _LARGE - _SHARED), stream) for _ in range(_BODIES)]


def _text(rng: random.Random, size: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(size // 5))[:size]


def _body(prompt: str, stream: bool) -> bytes:
    asked: dict[str, object] = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": 64}
    if stream:
        asked["stream"] = True
    return json.dumps(asked, separators=(",", ":")).encode()


def closed_loop(address: str, sent: list[bytes], in_flight: int, seconds: float) -> dict[str, float]:
    """Figures of a closed loop: latencies in ms, calls, calls a second, errors. Blocks. RigError when wrk fails."""
    if find("wrk") is None:
        return asyncio.run(own_loop(address, sent, in_flight, seconds))
    return _wrk(address, sent, in_flight, seconds)


def warm_up(address: str, sent: list[bytes], in_flight: int, seconds: float) -> None:
    """A short closed loop that nobody counts."""
    asyncio.run(own_loop(address, sent, in_flight, seconds))


def _wrk(address: str, sent: list[bytes], in_flight: int, seconds: float) -> dict[str, float]:
    # wrk runs whole seconds only.
    whole = max(1, round(seconds))
    folder = Path(tempfile.mkdtemp(prefix="laya-wrk-"))
    try:
        lines, script = folder / "bodies", folder / "load.lua"
        lines.write_bytes(b"\n".join(sent) + b"\n")
        script.write_text(_LUA.replace("BODIES", str(lines)))
        done = subprocess.run(
            [str(find("wrk")), "-t1", f"-c{in_flight}", f"-d{whole}s", "--timeout", "20s", "-s", str(script),
             f"http://{address}{PATH}"],
            capture_output=True, text=True, timeout=whole + _LIMIT, check=False,
        )  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found = [line for line in done.stdout.splitlines() if line.startswith("FIGURES ")]
    if not found:
        raise RigError(f"wrk failed: {(done.stderr or done.stdout)[-500:]}")
    said = json.loads(found[0].removeprefix("FIGURES "))
    none = not said["calls"]  # then wrk's latencies are 0, which would look like a record
    return {
        "p50_ms": math.nan if none else said["p50"] / 1e3,
        "p99_ms": math.nan if none else said["p99"] / 1e3,
        "calls": float(said["calls"]),
        "calls_per_second": said["calls"] / (said["us"] / 1e6),
        "errors": float(said["errors"]),
    }


class Conn(asyncio.Protocol):
    """One kept-alive connection; ``ask`` sends a request and waits for its answer."""

    def __init__(self, heard: Callable[[list[float]], None] | None = None) -> None:
        self._heard = heard
        self._data = b""
        self._rest = b""
        self._answer: asyncio.Future[int] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The server hung up."""
        self._transport = None
        self._end(0)

    def data_received(self, data: bytes) -> None:
        """Part of an answer: the whole is known by its length, or by its last chunk."""
        if self._heard is not None:
            have = self._rest + data
            delays, after = stamps(have)
            self._rest = have[max(after, len(have) - TAIL) :]
            if delays:
                self._heard(delays)
        # Of a stream only the beginning and the end are of interest.
        self._data = (
            self._data + data if len(self._data) < 4096 else self._data[:1024] + (self._data[1024:] + data)[-64:]
        )
        head = self._data.find(b"\r\n\r\n")
        if head < 0:
            return
        lower = self._data[:head].lower()
        at = lower.find(b"\r\ncontent-length:")
        if at >= 0:
            size = int(lower[at + 17 :].partition(b"\r\n")[0])
            whole = len(self._data) >= head + 4 + size
        else:
            whole = self._data.endswith(b"\r\n0\r\n\r\n")
        if whole:
            status = int(self._data[9:12])
            streamed = b"text/event-stream" in lower
            self._end(status if not streamed or DONE in self._data else 0)

    def _end(self, status: int) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result(status)

    async def ask(self, body: bytes) -> int:
        """The status of the answer to this chat request, 0 when it broke off."""
        if self._transport is None:
            return 0
        self._data = self._rest = b""
        self._answer = asyncio.get_running_loop().create_future()
        head = b"POST %b HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % (PATH.encode(), len(body)) + body)
        return await self._answer

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()


async def connect(address: str, heard: Callable[[list[float]], None] | None = None) -> Conn:
    """A connection. Raises OSError."""
    host, _, port = address.rpartition(":")
    _, conn = await asyncio.get_running_loop().create_connection(lambda: Conn(heard), host, int(port))
    return conn


async def own_loop(address: str, sent: list[bytes], in_flight: int, seconds: float) -> dict[str, float]:
    """What ``closed_loop`` does where wrk is not installed; slower, so its calls a second say less."""
    latencies: list[float] = []
    errors = 0
    conns = [await connect(address) for _ in range(in_flight)]
    began = time.perf_counter()

    async def work(conn: Conn, i: int) -> None:
        nonlocal errors
        while (now := time.perf_counter()) < began + seconds:
            i += 1
            status = await conn.ask(sent[i % len(sent)])
            if status == 200:
                latencies.append(time.perf_counter() - now)
            else:
                errors += 1
                if not status:
                    return

    try:
        async with asyncio.timeout(seconds + _LIMIT):
            await asyncio.gather(*(work(conn, i) for i, conn in enumerate(conns)))
    finally:
        for conn in conns:
            conn.close()
    took = time.perf_counter() - began
    return {
        "p50_ms": quantile(latencies, 0.50) * 1e3,
        "p99_ms": quantile(latencies, 0.99) * 1e3,
        "calls": float(len(latencies)),
        "calls_per_second": len(latencies) / took,
        "errors": float(errors),
    }


async def paced(
    address: str, streams: int, settle: float, seconds: float, cpu: Callable[[], float]
) -> dict[str, float]:
    """Figures of ``seconds`` in the middle of so many streams whose backend sends time stamps at its own pace."""
    delays: list[float] = []
    came = 0
    counting = False

    def heard(found: list[float]) -> None:
        nonlocal came
        came += len(found)
        if counting:
            delays.extend(found)

    [body] = bodies(stream=True)
    conns: list[Conn] = []
    tasks: list[asyncio.Task[int]] = []
    try:
        for i in range(streams):
            conns.append(await connect(address, heard))
            tasks.append(asyncio.create_task(conns[-1].ask(body)))
            if i % 16 == 15:
                await asyncio.sleep(0.001)
        await asyncio.sleep(settle)
        counting, before, used, began = True, came, cpu(), time.perf_counter()
        await asyncio.sleep(seconds)
        counting, got, used, took = False, came - before, cpu() - used, time.perf_counter() - began
        async with asyncio.timeout(_LIMIT):
            statuses = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        for conn in conns:
            conn.close()
    return {
        "chunks_per_second": got / took,
        "delay_p50_ms": quantile(delays, 0.50) * 1e3,
        "delay_p99_ms": quantile(delays, 0.99) * 1e3,
        "cpu_us_per_chunk": used / got * 1e6 if got else float("nan"),
        "errors": float(sum(status != 200 for status in statuses)),
    }
