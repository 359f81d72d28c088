"""The access log: whole, bounded, one line a request, and nothing a client sends can forge one."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from types import SimpleNamespace
from typing import cast

from router_node.middleware.access_lines import Entry
from router_node.middleware.access_log import AccessLog


def entry(**changes: object) -> Entry:
    values: dict[str, object] = dict(
        at=1_700_000_000.1234,
        protocol="grpc",
        peer="127.0.0.1:5000",
        method="Generate",
        code=0,
        reason="",
        seconds=0.0123,
        routed=8e-6,
        model="smollm2",
        node_id="n1",
        tenant="acme",
        request_id=b"req-1",
        attempts=1,
        bytes_in=300,
        bytes_out=900,
        migrated="",
    )
    values.update(changes)
    return cast(Entry, SimpleNamespace(**values))


async def _written(style: str, *entries: Entry) -> list[str]:
    out = io.StringIO()
    log = AccessLog(out, style)  # type: ignore[arg-type]
    log.start()
    for one in entries:
        log.add(one)
    await log.close()
    assert log.waiting == 0
    return out.getvalue().splitlines()


async def test_a_full_ring_drops_counts_and_says_so():
    out = io.StringIO()
    log = AccessLog(out, capacity=3)
    for _ in range(5):
        log.add(entry())
    assert log.dropped == 2
    log.start()
    await log.close()
    lines = out.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[-1] == "access_log_dropped lines=2"


async def test_a_burst_is_written_in_slices_without_losing_a_line():
    lines = await _written("text", *[entry(request_id=b"r%d" % i) for i in range(1234)])
    assert len(lines) == 1234
    assert " id=r1233 " in lines[-1]


async def test_a_slow_stream_does_not_hold_up_the_loop():
    release = threading.Event()

    class Slow:
        def write(self, text: str) -> None:
            assert release.wait(20)

        def flush(self) -> None:
            pass

    log = AccessLog(Slow())
    log.start()
    log.add(entry())
    deadline = time.monotonic() + 10
    while log.waiting > 0:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    for _ in range(10):
        log.add(entry())
    stuck = log.waiting
    release.set()
    await log.close()
    assert stuck == 10  # the writer was stuck, the loop was not
    assert log.written == 11


async def test_a_closed_stream_costs_lines_and_nothing_else():
    out = io.StringIO()
    out.close()
    log = AccessLog(out)
    log.start()
    log.add(entry())
    await log.close()
    assert log.dropped == 1
