"""What each HTTP/2 engine costs, without sockets: ``python -m loadtest.bench_engine [--seconds S]``.

One client's engine and one server's talk in memory. A relayed call passes through one of each, so their sum is what an
engine costs a router for a call, or for a message of a stream, beside everything else it does.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

from shared.net.api import Headers
from shared.net.engine import Engine, EngineEvents, Header, make_engine
from shared.net.settings import NetSettings

ENGINES = ("ngh2", "h2")
_REQUEST: Headers = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/laya.v1.Inference/Generate"),
    (b":authority", b"127.0.0.1:8000"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
    (b"user-agent", b"laya"),
    (b"laya-model", b"SmolLM2-135M-Instruct-W8A8"),
]
_RESPONSE: Headers = [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"laya-node", b"node-0")]
_TRAILERS: Headers = [(b"grpc-status", b"0")]
_ASK = b"\0\0\0\1\x2c" + b"q" * 300
_ANSWER = b"\0\0\0\0\x40" + b"a" * 64
_ALL = 1 << 20
_ROUNDS = 5


class _End(EngineEvents):
    """One end: acknowledges what comes, and notes which streams came and went."""

    __slots__ = ("engine", "gone", "new")

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.new: list[int] = []
        self.gone = 0

    def on_request(self, stream_id: int, headers: tuple[Header, ...], end: bool) -> None:
        self.new.append(stream_id)

    def on_response(self, stream_id: int, headers: tuple[Header, ...], end: bool) -> None:
        pass

    def on_data(self, stream_id: int, data: bytes, end: bool) -> None:
        self.engine.acknowledge(len(data), stream_id)

    def on_trailers(self, stream_id: int, headers: tuple[Header, ...]) -> None:
        pass

    def on_stream_closed(self, stream_id: int, code: int, local: bool) -> None:
        self.gone += 1

    def on_window(self, stream_id: int) -> None:
        pass

    def on_settings(self) -> None:
        pass

    def on_ping(self) -> None:
        pass

    def on_pong(self, payload: bytes) -> None:
        pass

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        pass

    def on_oddity(self) -> None:
        pass

    def on_end(self, code: int) -> None:
        pass

    def on_fault(self, stream_id: int, error: Exception) -> None:
        raise error


class Talk:
    """A client's engine and a server's, connected."""

    def __init__(self, name: str) -> None:
        settings = NetSettings(engine=name)
        self.client = _End(make_engine("client", settings))
        self.server = _End(make_engine("server", settings))
        self._pass(self.client.engine.hello, self.server)
        self._pass(self.server.engine.hello, self.client)
        self._exchange()

    def calls(self, n: int) -> None:
        """So many unary calls, one after another."""
        client, server = self.client.engine, self.server.engine
        before = self.client.gone
        for _ in range(n):
            stream = client.request(_REQUEST)
            client.send(stream, _ASK, end_stream=True)
            self._exchange()
            asked = self.server.new.pop()
            server.respond(asked, _RESPONSE)
            server.send(asked, _ANSWER)
            server.trailers(asked, _TRAILERS)
            self._exchange()
        if self.client.gone - before != n:
            raise AssertionError("calls did not end")

    def messages(self, n: int) -> None:
        """One stream of so many messages, each flushed alone."""
        client, server = self.client.engine, self.server.engine
        client.send(client.request(_REQUEST), _ASK, end_stream=True)
        self._exchange()
        asked = self.server.new.pop()
        server.respond(asked, _RESPONSE)
        for _ in range(n):
            server.send(asked, _ANSWER)
            self._exchange()
        server.trailers(asked, _TRAILERS)
        self._exchange()

    def _exchange(self) -> None:
        while True:
            up, down = self._take(self.client), self._take(self.server)
            if up:
                self._pass(up, self.server)
            if down:
                self._pass(down, self.client)
            if not up and not down:
                return

    @staticmethod
    def _take(end: _End) -> bytes:
        if not end.engine.wants_write():
            return b""
        out = end.engine.take(_ALL)
        end.engine.dispatch(end)
        return out

    @staticmethod
    def _pass(data: bytes, to: _End) -> None:
        to.engine.receive(data)
        to.engine.dispatch(to)


def cost(work: Callable[[int], None], seconds: float) -> float:
    """CPU microseconds for one piece of ``work``, over about so many seconds."""
    n = 50
    while True:
        began = time.process_time()
        work(n)
        took = time.process_time() - began
        if took >= seconds:
            return took / n * 1e6
        n = max(n + 1, int(n * min(10.0, 1.2 * seconds / max(took, 1e-6))))


def main(argv: Sequence[str] | None = None) -> None:
    """Measure both engines in turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.2, help="length of one measurement")
    seconds = parser.parse_args(argv).seconds
    samples: dict[tuple[str, str], list[float]] = {}
    for _ in range(_ROUNDS):
        for name in ENGINES:
            talk = Talk(name)
            samples.setdefault((name, "call"), []).append(cost(talk.calls, seconds))
            samples.setdefault((name, "message"), []).append(cost(talk.messages, seconds))
    print(f"{'engine':8}{'µs a call':>12}{'µs a message':>15}")
    for name in ENGINES:
        call, message = (statistics.median(samples[name, kind]) for kind in ("call", "message"))
        print(f"{name:8}{call:12.1f}{message:15.2f}")


if __name__ == "__main__":
    main()
