"""The process that runs vLLM's engine core: started early, tied to the node's life, and always reaped.

vLLM starts the core itself, late and untied: it spends seconds importing what the node has just imported, and goes on
running for ever when the node is killed. So the node starts the process first, with this module's ``_main``; it
imports vLLM while the node does, and then waits for its job. vLLM still believes that it starts the core: it is
handed a ``Launcher`` where it asks ``multiprocessing`` for a context, and the process where it makes one.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, util
from multiprocessing.process import BaseProcess
from typing import Any

from inference_node.engines.vllm_env import LogStyle, quick_imports

_SPAWN = multiprocessing.get_context("spawn")
_KILL_WAIT = 10.0  # seconds for the kernel to reap a killed process
# What an engine core imports, on the CPU also what the model's worker does.
PRELOAD = ("vllm.v1.engine.core",)
PRELOAD_CPU = (*PRELOAD, "vllm.v1.executor.uniproc_executor", "vllm.v1.worker.cpu_worker")


@dataclass(frozen=True, slots=True)
class CoreSetup:
    """What the core's process needs before vLLM is imported in it."""

    environment: Mapping[str, str]  # on top of this process's
    cores: Sequence[int]  # cores it is bound to; empty leaves it free
    logs: LogStyle
    preload: Sequence[str]  # modules to import while there is no job yet


class CoreProcess:
    """One engine core's process, with the face of ``multiprocessing.Process`` that vLLM uses."""

    def __init__(self, setup: CoreSetup) -> None:
        """Start the process; it loads vLLM and waits for its job."""
        self._ours, theirs = _SPAWN.Pipe()
        self._job: tuple[Callable[..., None], dict[str, Any]] | None = None
        self.failure = ""  # what the core said it died of
        self.process: BaseProcess = _SPAWN.Process(target=_main, args=(theirs, setup), name="EngineCore")
        with _environment(setup.environment):
            self.process.start()
        theirs.close()
        # multiprocessing joins its children when the interpreter exits: without this it would wait for ever.
        self._at_exit = util.Finalize(self, _kill, args=(self.process,), exitpriority=100)

    def give(self, target: Callable[..., None], kwargs: dict[str, Any]) -> None:
        """Set the job that ``start`` will send. A core takes one."""
        if self._job is not None:
            raise RuntimeError("vLLM asked for a second engine core; a node runs one")
        self._job = (target, kwargs)

    def start(self) -> None:
        """Send the job; called by vLLM, which thinks that this starts the process."""
        with suppress(BrokenPipeError, ConnectionError):  # a dead process shows by its sentinel
            self._ours.send(self._job)

    @property
    def name(self) -> str:
        """The process's name."""
        return self.process.name

    @property
    def pid(self) -> int | None:
        """The process's id."""
        return self.process.pid

    @property
    def sentinel(self) -> int:
        """Descriptor that becomes readable when the process ends."""
        return self.process.sentinel

    @property
    def exitcode(self) -> int | None:
        """None while the process runs."""
        return self.process.exitcode

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.process.is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end, at most ``timeout`` seconds."""
        self.process.join(timeout)

    def terminate(self) -> None:
        """Ask the process to end (SIGTERM)."""
        self.process.terminate()

    def kill(self) -> None:
        """End the process now and reap it. Blocks for a moment; idempotent."""
        self.failure = self.failure or self.last_words()
        self._at_exit()
        self._ours.close()

    def last_words(self) -> str:
        """The sentence in which the core said what it died of; empty if it said nothing."""
        with suppress(OSError, EOFError):
            while self._ours.poll():
                self.failure = str(self._ours.recv())
        return self.failure


class Launcher:
    """Stands in for a multiprocessing context while vLLM launches its one engine core."""

    def __init__(self, core: CoreProcess) -> None:
        self._core = core

    # The name is multiprocessing's.
    def Process(self, *, target: Callable[..., None], name: str, kwargs: dict[str, Any]) -> CoreProcess:
        """The process that will run ``target(**kwargs)``; ``name`` is left as it is."""
        self._core.give(target, kwargs)
        return self._core

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Make vLLM start its engine core through this object."""
        module: Any = importlib.import_module("vllm.v1.engine.utils")
        original = module.get_mp_context
        module.get_mp_context = lambda: self
        try:
            yield
        finally:
            module.get_mp_context = original


def _kill(process: BaseProcess) -> None:
    if process.is_alive():
        process.kill()
    process.join(_KILL_WAIT)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Have these variables set for the processes started inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _prepare(setup: CoreSetup) -> None:
    # A terminal's Ctrl-C is for the node, which drains first and then stops its core.
    with suppress(OSError):
        os.setpgid(0, 0)
    _end_with_parent()
    if setup.cores:
        os.sched_setaffinity(0, setup.cores)
    setup.logs.apply()


def _main(link: connection.Connection, setup: CoreSetup) -> None:
    """Body of an early process: load vLLM, wait for the job, do it."""
    _prepare(setup)
    with quick_imports():
        for module in setup.preload:
            importlib.import_module(module)
    setup.logs.apply()
    try:
        target, kwargs = link.recv()
    except EOFError:
        return
    code = 0
    try:
        target(**kwargs)
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 0
    except Exception as e:
        code = 1
        with suppress(OSError):
            link.send(f"{type(e).__name__}: {e}")
    # The core has released what it held. Taking the interpreter down object by object would only take seconds.
    util._exit_function()  # type: ignore[attr-defined]  # what multiprocessing itself ends a child with
    logging.shutdown()
    os._exit(code)


def _end_with_parent() -> None:
    """End this process when its parent does, whatever it is doing then.

    The kernel's parent-death signal follows the thread that made the process, which here is a short-lived one; the
    pipe that multiprocessing keeps between parent and child follows the parent.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    sentinel = parent.sentinel

    def wait() -> None:
        connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()
