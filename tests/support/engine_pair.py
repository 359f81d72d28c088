"""Two engines that talk to each other, and everything they tell."""

from __future__ import annotations

from typing import Any

from shared.net.engine import Engine, EngineEvents, make_engine
from shared.net.settings import NetSettings

ALL = 1 << 24


class Log(EngineEvents):
    """Every event as a tuple."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.data: dict[int, int] = {}
        self.fail_on: str = ""

    def _note(self, *event: Any) -> None:
        self.events.append(event)
        if event[0] == self.fail_on:
            self.fail_on = ""
            raise RuntimeError("an owner's bug")

    def on_request(self, stream_id: int, headers: Any, end: bool) -> None:
        self._note("request", stream_id, end)

    def on_response(self, stream_id: int, headers: Any, end: bool) -> None:
        self._note("response", stream_id, end)

    def on_data(self, stream_id: int, data: bytes, end: bool) -> None:
        self.data[stream_id] = self.data.get(stream_id, 0) + len(data)
        self._note("data", stream_id, len(data), end)

    def on_trailers(self, stream_id: int, headers: Any) -> None:
        self._note("trailers", stream_id)

    def on_stream_closed(self, stream_id: int, code: int, local: bool) -> None:
        self._note("closed", stream_id, code, local)

    def on_window(self, stream_id: int) -> None:
        self._note("window", stream_id)

    def on_settings(self) -> None:
        self._note("settings")

    def on_ping(self) -> None:
        self._note("ping")

    def on_pong(self, payload: bytes) -> None:
        self._note("pong", payload)

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        self._note("goaway", last_stream_id, code)

    def on_oddity(self) -> None:
        self._note("oddity")

    def on_end(self, code: int) -> None:
        self._note("end", code)

    def on_fault(self, stream_id: int, error: Exception) -> None:
        self._note("fault", stream_id, str(error))

    def pop(self) -> list[tuple[Any, ...]]:
        events, self.events = self.events, []
        return events


class Pair:
    """A client and a server engine, each with its log."""

    def __init__(self, client: str = "ngh2", server: str = "ngh2", **changes: Any) -> None:
        """``client`` and ``server`` name engines, ``changes`` settings of both."""
        self.client: Engine = make_engine("client", NetSettings(engine=client, **changes))
        self.server: Engine = make_engine("server", NetSettings(engine=server, **changes))
        self.c, self.s = Log(), Log()
        self.server.receive(self.client.hello)
        self.client.receive(self.server.hello)
        self.server.dispatch(self.s)
        self.client.dispatch(self.c)
        self.pump()
        self.c.pop()
        self.s.pop()

    def pump(self) -> None:
        while True:
            up, down = self.client.take(ALL), self.server.take(ALL)
            self.client.dispatch(self.c)
            self.server.dispatch(self.s)
            if up:
                self.server.receive(up)
                self.server.dispatch(self.s)
            if down:
                self.client.receive(down)
                self.client.dispatch(self.c)
            if not up and not down:
                return
