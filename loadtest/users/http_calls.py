"""Calls over the OpenAI API on greenlets."""

from __future__ import annotations

import time
from typing import Any

import gevent
from geventhttpclient import HTTPClient
from geventhttpclient.response import HTTPParseError

from loadtest.users import http_body
from loadtest.users.call import CUT_OFF, UNREACHABLE, Call, Outcome
from loadtest.users.target import Target

_LARGEST_ERROR = 4096


class HttpCalls:
    """Makes calls to one target over kept-alive connections of its own."""

    def __init__(self, at: Target, model: str, connections: int, ca_file: str = "") -> None:
        options = {"ssl_options": {"ca_certs": ca_file}} if ca_file else {}
        self._model = model
        self._client = HTTPClient.from_url(
            at.url, concurrency=connections, connection_timeout=10, network_timeout=120, **options
        )

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def ask(self, call: Call) -> Outcome:
        """One streamed answer. Never raises for what the target does."""
        out = Outcome()
        begun = time.perf_counter()
        try:
            with gevent.Timeout(call.timeout + 5.0, TimeoutError("no end of the answer")):
                self._stream(call, out, begun)
        except (ConnectionRefusedError, gevent.socket.gaierror) as e:
            out.reason, out.detail = UNREACHABLE, str(e)
        except TimeoutError as e:
            out.reason, out.detail = "TIMEOUT", str(e)
        except (OSError, HTTPParseError) as e:
            out.reason, out.detail = CUT_OFF, f"{type(e).__name__}: {e}"
        out.total = time.perf_counter() - begun
        return out

    def _stream(self, call: Call, out: Outcome, begun: float) -> None:
        answer: Any = self._client.post(
            http_body.path(call), body=http_body.body(call, self._model), headers=http_body.headers(call)
        )
        # Left in the middle, the connection is closed: that is how a client of HTTP goes away.
        with answer:
            if answer.status_code != 200:
                http_body.refusal(answer.status_code, bytes(answer.read(_LARGEST_ERROR)), out)
                return
            events = http_body.Events(call, out)
            while not events.done and (line := answer.readline(b"\n")):
                if events.line(line, time.perf_counter() - begun) and call.read_delay:
                    gevent.sleep(call.read_delay)
            if events.done and out.ok and not out.left:
                answer.read()  # the end of the body, so that the connection can be used again
            events.ended()
