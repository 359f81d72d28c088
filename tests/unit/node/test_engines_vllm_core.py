"""The engine core's process: early, obedient, and never left behind. No vLLM runs here: any job will do."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from inference_node.engines.vllm_core import CoreProcess, CoreSetup, Launcher
from inference_node.engines.vllm_env import LogStyle
from tests.support.alive import alive
from tests.support.ports import within

ROOT = Path(__file__).resolve().parents[3]
LOGS = LogStyle(logging.WARNING)
LIMIT = 20.0


def setup(**values: object) -> CoreSetup:
    return CoreSetup(**({"environment": {}, "cores": (), "logs": LOGS, "preload": ()} | values))  # type: ignore[arg-type]


def report(path: str) -> None:
    """A job that writes down where it runs."""
    cores = sorted(os.sched_getaffinity(0))
    own_group = os.getpgid(0) == os.getpid()
    Path(path).write_text(f"{os.environ.get('LAYA_TEST')} {cores} {own_group} {'colorsys' in sys.modules}")


def fail() -> None:
    raise ValueError("no such model")


def leave() -> None:
    raise SystemExit(3)


@pytest.fixture
def start() -> Iterator[Callable[..., CoreProcess]]:
    made: list[CoreProcess] = []

    def one(**values: object) -> CoreProcess:
        made.append(CoreProcess(setup(**values)))
        return made[-1]

    yield one
    for core in made:
        core.kill()


def test_process_starts_before_its_job_and_then_does_it(start: Callable[..., CoreProcess], tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    process = start(environment={"LAYA_TEST": "yes"}, cores=(core,), preload=("colorsys",))
    assert process.is_alive()
    assert "LAYA_TEST" not in os.environ
    out = tmp_path / "out"
    process.give(report, {"path": str(out)})
    process.start()
    process.join(LIMIT)
    assert process.exitcode == 0
    assert out.read_text() == f"yes [{core}] True True"


def test_what_a_core_dies_of_is_told(start: Callable[..., CoreProcess]) -> None:
    process = start()
    process.give(fail, {})
    process.start()
    process.join(LIMIT)
    assert process.exitcode == 1
    assert process.last_words() == "ValueError: no such model"
    process.kill()
    assert process.failure == "ValueError: no such model"


def test_exit_code_of_the_job_is_the_process_s(start: Callable[..., CoreProcess]) -> None:
    process = start()
    process.give(leave, {})
    process.start()
    process.join(LIMIT)
    assert process.exitcode == 3


def test_core_takes_one_job(start: Callable[..., CoreProcess]) -> None:
    process = start()
    process.give(fail, {})
    with pytest.raises(RuntimeError, match="second engine core"):
        process.give(fail, {})


def test_kill_reaps_the_process_and_may_be_called_again(start: Callable[..., CoreProcess]) -> None:
    process = start()
    pid = process.pid
    assert pid is not None
    process.kill()
    assert not process.is_alive()
    assert not alive(pid)
    process.kill()


def test_starting_a_dead_core_shows_by_its_sentinel_and_not_by_an_error(start: Callable[..., CoreProcess]) -> None:
    process = start()
    process.terminate()
    process.join(LIMIT)
    process.give(fail, {})
    process.start()
    assert process.exitcode == -signal.SIGTERM


def test_vllm_is_lent_the_launcher_and_gets_its_own_context_back(
    start: Callable[..., CoreProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    def own() -> str:
        return "vllm's"

    module = SimpleNamespace(get_mp_context=own)
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.utils", module)
    process = start()
    launcher = Launcher(process)
    with pytest.raises(ZeroDivisionError), launcher.lend():
        assert module.get_mp_context() is launcher
        assert module.get_mp_context().Process(target=fail, name="EngineCore", kwargs={}) is process
        raise ZeroDivisionError
    assert module.get_mp_context is own


_PARENT = """
import sys, threading, time
sys.path.insert(0, {root!r})
import logging
from inference_node.engines.vllm_core import CoreProcess, CoreSetup
from inference_node.engines.vllm_env import LogStyle

def main():
    made = []
    def make():
        made.append(CoreProcess(CoreSetup({{}}, (), LogStyle(logging.WARNING), ())))
    # In a thread that ends, as in the engine: the core must outlive the thread, and not the process.
    maker = threading.Thread(target=make)
    maker.start()
    maker.join()
    made[0].join(0.3)
    print(made[0].pid if made[0].is_alive() else "dead", flush=True)
    {then}

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("how", "then"), [("killed", "time.sleep(60)"), ("ended", "return"), ("failed", "raise RuntimeError('x')")]
)
def test_core_ends_with_its_parent_however_that_ends(tmp_path: Path, how: str, then: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(_PARENT.format(root=str(ROOT), then=then))
    parent = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    try:
        line = parent.stdout.readline().strip()
        assert line.isdigit(), line
        if how == "killed":
            parent.kill()
        parent.wait(LIMIT)
        within(LIMIT, lambda: not alive(int(line)), f"core {line} outlived its parent")
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


async def test_process_can_be_made_in_a_thread_of_a_running_loop(start: Callable[..., CoreProcess]) -> None:
    process = await asyncio.get_running_loop().run_in_executor(None, start)
    assert process.is_alive()
