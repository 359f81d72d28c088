"""Children are started again when they die, never when it would not help, and never left behind."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.cli import supervise
from shared.cli.supervise import Child
from tests.support.alive import alive
from tests.support.ports import until

READY = 'import os,sys; fd=int(sys.argv[-1]); os.write(fd, b\'{"event":"ready","address":"a:1"}\\n\')\n'


class Nursery:
    """A child with a script for a program, and what it said."""

    def __init__(self, tmp_path: Path, script: str) -> None:
        self.events: list[dict[str, Any]] = []
        argv = [sys.executable, "-c", script]
        self.child = Child(
            "child", argv, env=dict(os.environ), log_dir=tmp_path, on_event=lambda _, e: self.events.append(e)
        )

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e["event"] == kind]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "_FIRST_DELAY", 0.02)


async def test_a_ready_line_is_heard_and_stop_ends_it(tmp_path: Path) -> None:
    nursery = Nursery(tmp_path, READY + "import time; time.sleep(60)")
    task = asyncio.create_task(nursery.child.run())
    await until(lambda: nursery.child.ready, "the ready line")
    pid = nursery.child.pid
    assert pid
    await nursery.child.stop(5)
    await asyncio.wait_for(task, 5)
    assert nursery.child.pid is None
    assert not nursery.of("died")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_crash_is_followed_by_another_start_later_each_time(tmp_path: Path) -> None:
    nursery = Nursery(tmp_path, "raise SystemExit(1)")
    task = asyncio.create_task(nursery.child.run())
    await until(lambda: len(nursery.of("died")) >= 3, "three deaths")
    await nursery.child.stop(5)
    await asyncio.wait_for(task, 5)
    waits = [e["retry_in"] for e in nursery.of("died")][:3]
    assert waits == [0.02, 0.04, 0.08]


@pytest.mark.parametrize("code", sorted(supervise.FINAL_CODES))
async def test_a_bad_configuration_or_a_missing_engine_is_final(tmp_path: Path, code: int) -> None:
    nursery = Nursery(tmp_path, f"print('laya-node: what to do'); raise SystemExit({code})")
    await asyncio.wait_for(nursery.child.run(), 10)
    [died] = nursery.of("died")
    assert died["final"] and died["code"] == code
    assert nursery.child.tail == ["laya-node: what to do"]


async def test_what_a_dead_child_left_is_swept_up(tmp_path: Path) -> None:
    script = (
        "import subprocess,sys,time; p=subprocess.Popen([sys.executable,'-c','import time; time.sleep(60)']);"
        "print(p.pid, flush=True); raise SystemExit(2)"
    )
    nursery = Nursery(tmp_path, script)
    await asyncio.wait_for(nursery.child.run(), 10)
    orphan = int(nursery.child.tail[0])
    await until(lambda: not alive(orphan), "the grandchild is gone")


async def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    script = READY + "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)\n"
    nursery = Nursery(tmp_path, script + "time.sleep(60)")
    task = asyncio.create_task(nursery.child.run())
    await until(lambda: "deaf" in nursery.child.tail, "it is deaf")
    await asyncio.wait_for(nursery.child.stop(0.1), 5)
    await asyncio.wait_for(task, 5)


async def test_kill_ends_it_at_once(tmp_path: Path) -> None:
    nursery = Nursery(tmp_path, READY + "import time; time.sleep(60)")
    task = asyncio.create_task(nursery.child.run())
    await until(lambda: nursery.child.ready, "the ready line")
    nursery.child.kill()
    await asyncio.wait_for(task, 5)


@pytest.mark.parametrize("as_json", [False, True])
async def test_a_refusal_to_be_replaced_is_told_with_its_reason(tmp_path: Path, as_json: bool) -> None:
    log = "import logging; from shared import logging as logs; "
    log += f"logs.setup('info', {'json' if as_json else 'text'!r}); "
    log += "logs.event(logs.get('router'), logging.ERROR, 'successor_refused', why='the process is kept by x'); "
    nursery = Nursery(tmp_path, log + "raise SystemExit(2)")
    await asyncio.wait_for(nursery.child.run(), 20)
    assert [e["why"] for e in nursery.of("refused")] == ["the process is kept by x"]
