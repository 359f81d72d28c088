"""What ``make perf`` measures, in a process of its own for each revision: the router's hot path, in memory.

    python perf_cases.py TREE --by instructions|cpu

The product is imported from TREE, with the benches that build a router in memory; the work is this file's, so both
revisions do the same. What clients and node send is worked out beforehand and only played while it counts, so nothing
but the router is in it.
Lines of JSON come in (``{"case": "grpc", "units": 400}``), one goes out for each: what a unit cost, in CPU
instructions (counted by callgrind, below which this process must run then) or in nanoseconds of CPU, or
``{"error": ...}``.

=========  =====================================================================================
case       a unit
=========  =====================================================================================
grpc       a unary call with routing metadata, eight at a time
scan       the same without: the router reads the message
stream     a message of eight streams that run at once, their calls' own cost shared out
http       an OpenAI request over HTTP/1.1 with a JSON answer, eight connections
dispatch   a decision over 16 nodes, with a session
=========  =====================================================================================
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import re
import subprocess
import sys
import time
import types
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from loadtest.bench_relay import Bench

CASES: Final = ("grpc", "scan", "stream", "http", "dispatch")
IN_FLIGHT: Final = 8
MESSAGES: Final = 32  # of each stream
_HERE: Final = Path(__file__).resolve().parent
WARM: Final = 64  # units before the first that counts
_TOTAL: Final = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)
Work = Callable[[], Awaitable[None]]
Run = Callable[[int], Awaitable[Work]]  # gets ready for so many units; what it returns is what counts


def use(tree: Path) -> None:
    """Take the product from ``tree``, and the load tools from here."""
    sys.path[:] = [str(tree), *(p for p in sys.path if p and Path(p).resolve() != _HERE)]
    package = types.ModuleType("loadtest")
    # The benches that a revision has fit its own classes best; what it lacks is taken from here.
    package.__path__ = [str(tree / "loadtest"), str(_HERE)]
    sys.modules["loadtest"] = package
    import shared

    found = Path(shared.__file__ or "").resolve()
    if not found.is_relative_to(tree):
        raise SystemExit(f"{found} is not of {tree}")


class Tape:
    """What a router was given: bytes for one of its connections, or a turn of the event loop (-1)."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, bytes]] = []

    async def turn(self) -> None:
        """Let the event loop turn."""
        self.steps.append((-1, b""))
        await asyncio.sleep(0)


class Tap:
    """A connection of the router that puts on tape what it is given."""

    def __init__(self, tape: Tape, number: int, connection: Any) -> None:
        self._tape = tape
        self._number = number
        self._connection = connection

    def data_received(self, data: bytes) -> None:
        """Bytes for the connection."""
        self._tape.steps.append((self._number, data))
        self._connection.data_received(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class Loop:
    """In place of an access log: makes every request dearer by a loop of so many turns."""

    def __init__(self, turns: int) -> None:
        self._turns = turns

    def add(self, entry: object) -> None:
        """A request has ended."""
        for _ in range(self._turns):
            pass


class Scene:
    """A router in memory; its connections are the node's and those of clients. ``burn``: see ``Loop``."""

    def __init__(self, bench: Bench, clients: list[Any], wires: list[Any], burn: int) -> None:
        self.bench = bench
        if burn:
            bench.core.access_log = Loop(burn)  # type: ignore[assignment]
        self.connections = [bench.node.link, *clients]
        self.wires = [bench.node.wire, *wires]
        self.tape = Tape()

    def record(self) -> None:
        """Put on tape what the connections are given from here on."""
        self.connections = [Tap(self.tape, i, one) for i, one in enumerate(self.connections)]
        self.bench.node.link = self.connections[0]
        self.bench.server = self.connections[1]

    def answered(self) -> int:
        """Requests that ended well."""
        found = self.bench.core.metrics.snapshot().requests
        return sum(count for _, code, count in found if code in (0, 200))


def replayed(build: Callable[[], Scene], drive: Callable[[Scene, int], Awaitable[None]]) -> Run:
    """A case whose load is worked out beforehand and only given to the router while it counts."""

    async def prepare(units: int) -> Work:
        first = build()
        first.record()
        await drive(first, WARM)
        warm = len(first.tape.steps)
        await drive(first, units)
        steps, scene = first.tape.steps, build()

        async def play(some: list[tuple[int, bytes]]) -> None:
            connections, wires = scene.connections, scene.wires
            for number, data in some:
                if number < 0:
                    await asyncio.sleep(0)
                else:
                    connections[number].data_received(data)
                for wire in wires:
                    wire.out.clear()

        await play(steps[:warm])
        rest = steps[warm:]

        async def work() -> None:
            await play(rest)
            if scene.answered() != first.answered() or not first.answered():
                raise RuntimeError(f"{scene.answered()} requests were answered, not {first.answered()}")

        return work

    return prepare


def grpc_calls(metadata: bool, burn: int) -> Run:
    """Unary calls in lock-step."""
    from loadtest.bench_relay import Bench

    def build() -> Scene:
        bench = Bench(metadata)
        return Scene(bench, [bench.server], [bench.wire], burn)

    async def drive(scene: Scene, units: int) -> None:
        scene.bench.round(units, IN_FLIGHT)

    return replayed(build, drive)


def streams(burn: int) -> Run:
    """Streams whose messages come one by one."""
    from ngh2 import RequestReceived

    from loadtest.bench_relay import _HEAD, _OK, Bench

    message = b"\0\0\0\0\x14" + b"m" * 20

    def build() -> Scene:
        bench = Bench(True)
        return Scene(bench, [bench.server], [bench.wire], burn)

    def to_client(bench: Bench) -> None:
        bench.client.receive_data(bench.wire.take())
        for _ in bench.client.events():
            pass
        bench.server.data_received(bench.client.data_to_send())

    async def drive(scene: Scene, units: int) -> None:
        bench = scene.bench
        client, engine, link = bench.client, bench.node.engine, bench.node.link
        headers, body = bench._ask._to_generate, bench._ask._stream
        for _ in range(max(1, units // (IN_FLIGHT * MESSAGES))):
            for _ in range(IN_FLIGHT):
                client.send_data(client.send_request(headers), body, end_stream=True)
            bench.server.data_received(client.data_to_send())
            engine.receive_data(bench.node.wire.take())
            asked = [e.stream_id for e in engine.events() if isinstance(e, RequestReceived)]
            if len(asked) != IN_FLIGHT:
                raise RuntimeError(f"{len(asked)} of {IN_FLIGHT} streams reached the node")
            for stream in asked:
                engine.send_response(stream, _HEAD)
            for _ in range(MESSAGES):
                for stream in asked:
                    engine.send_data(stream, message)
                link.data_received(engine.data_to_send())
                to_client(bench)
                engine.receive_data(bench.node.wire.take())
            for stream in asked:
                engine.send_trailers(stream, _OK)
            link.data_received(engine.data_to_send())
            to_client(bench)

    return replayed(build, drive)


def http_requests(burn: int) -> Run:
    """OpenAI requests of eight clients."""
    from loadtest.bench_relay import Bench, Memory
    from loadtest.rig import MODEL
    from router_node.gateway.gateway import Gateway
    from shared.net.grpc_wire import frame
    from shared.net.http1 import Http1Protocol
    from shared.net.uploads import Uploads
    from shared.pb.laya.v1 import openai_pb2 as pb

    kind = [pb.HttpHeader(name="content-type", value="application/json")]
    head = pb.HttpResponse(head=pb.HttpResponseHead(status=200, headers=kind))
    answer = pb.HttpResponse(body=b'{"choices":[{"message":{"content":"' + b"y" * 200 + b'"}}]}')
    asked = {"model": MODEL, "max_tokens": 64, "messages": [{"role": "user", "content": "Summarise it. " * 15}]}
    body = json.dumps(asked).encode()
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(body), body)
    )

    def build() -> Scene:
        bench = Bench(True)
        bench.node.reply = frame(head.SerializeToString()) + frame(answer.SerializeToString())
        handler = Gateway(bench.core, lambda: True).handle
        uploads = Uploads(asyncio.get_running_loop(), 60.0, 1 << 30)
        wires = [Memory() for _ in range(IN_FLIGHT)]
        clients: list[Any] = []
        for wire in wires:
            client = Http1Protocol(handler, bench.settings, bench.flusher, uploads)
            client.connection_made(wire)  # type: ignore[arg-type]
            clients.append(client)
        return Scene(bench, clients, wires, burn)

    async def drive(scene: Scene, units: int) -> None:
        for _ in range(max(1, units // IN_FLIGHT)):
            for client in scene.connections[1:]:
                client.data_received(request)
            await scene.tape.turn()  # what was put off to the end of the loop's turn
            scene.connections[0].data_received(scene.bench.node.answer())
            await scene.tape.turn()
            for wire in scene.wires[1:]:
                if not wire.take().startswith(b"HTTP/1.1 200 "):
                    raise RuntimeError("a request was not answered with 200")

    return replayed(build, drive)


def decisions() -> Run:
    """The dispatcher alone."""
    from loadtest.bench_dispatch import MODEL, Bed
    from router_node.dispatch import Ask

    bed = Bed(16, seed=1)
    names = [b"session-%d" % i for i in range(256)]

    async def prepare(units: int) -> Work:
        async def work() -> None:
            for i in range(units):
                ask = Ask(MODEL, session=names[i * 7 % 256], prompt_tokens=100 + i % 400, max_new_tokens=64)
                bed.submit(ask).end()

        return work

    return prepare


def make(case: str, burn: int) -> Run:
    """The work of a case. Raises where the revision does not have what it needs."""
    if case == "grpc":
        return grpc_calls(True, burn)
    if case == "scan":
        return grpc_calls(False, burn)
    if case == "dispatch":
        return decisions()
    return {"stream": streams, "http": http_requests}[case](burn)


class Instructions:
    """Counts by callgrind, below which this process runs."""

    def __init__(self, out: str) -> None:
        self._out = Path(out)
        self._dumps = 0
        self._tell("instrumentation", "on")
        self.start()
        self.nothing = self.stop()  # what it costs to count

    def start(self) -> None:
        """Count from here."""
        self._tell("zero")

    def stop(self) -> float:
        """Instructions since ``start``."""
        self._tell("dump")
        self._dumps += 1
        file = self._out.with_name(f"{self._out.name}.{self._dumps}")
        found = _TOTAL.search(file.read_text("utf-8", "replace"))
        file.unlink()
        if found is None:
            raise RuntimeError("callgrind's file has no sum")
        return float(found[1])

    def _tell(self, *command: str) -> None:
        subprocess.run(["vgdb", f"--pid={os.getpid()}", *command], check=True, capture_output=True, timeout=60)


class CpuTime:
    """Nanoseconds of this process's CPU."""

    nothing = 0.0
    _began = 0

    def start(self) -> None:
        """Count from here."""
        self._began = time.process_time_ns()

    def stop(self) -> float:
        """Nanoseconds since ``start``."""
        return float(time.process_time_ns() - self._began)


async def serve(counter: Instructions | CpuTime, burn: int) -> None:
    """Answer lines until there are no more."""
    made: dict[str, Run] = {}
    for line in iter(sys.stdin.readline, ""):
        asked = json.loads(line)
        case, units = asked["case"], asked["units"]
        try:
            if case not in made:
                made[case] = make(case, burn)
                await (await made[case](WARM))()
            print(json.dumps({"value": await _measure(counter, made[case], units)}), flush=True)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}), flush=True)


async def _measure(counter: Instructions | CpuTime, run: Run, units: int) -> float:
    work = await run(units)
    gc.collect()
    gc.disable()
    try:
        counter.start()
        await work()
        return max(0.0, counter.stop() - counter.nothing) / units
    finally:
        gc.enable()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tree", type=Path)
    parser.add_argument("--by", choices=("instructions", "cpu"), required=True)
    parser.add_argument("--out", default="", help="callgrind's --callgrind-out-file")
    parser.add_argument("--burn", type=int, default=0)
    args = parser.parse_args()
    use(args.tree.resolve())
    import uvloop

    from shared.net import turns

    turns.TURN = 3600.0  # a case is one long turn
    uvloop.run(_serve(args))


async def _serve(args: argparse.Namespace) -> None:
    counter: Instructions | CpuTime = Instructions(args.out) if args.by == "instructions" else CpuTime()
    await serve(counter, args.burn)


if __name__ == "__main__":
    main()
