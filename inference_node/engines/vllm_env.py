"""What vLLM takes from its surroundings: environment variables, cores, memory, and how it may log.

vLLM reads a good part of its settings from the process environment, some of it while it is imported, so the engine
sets them before its first import. A model on the CPU runs OpenMP threads in the engine core's process; their number
and places are fixed by that process's environment alone.
"""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from shared.config.schema import ConfigError, InferenceConfig
from shared.logging import JsonFormatter, TextFormatter

MIB = 1 << 20
_TOPOLOGY = Path("/sys/devices/system/cpu")

# Settings that would open doors the node keeps shut: a second API key, development routes, adapters by name.
FORBIDDEN = ("VLLM_API_KEY", "VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_CPU_KVCACHE_SPACE")

# Warnings about what this engine does on purpose, or that no user can act on.
_EXPECTED = (
    "Enforce eager set",
    "TORCH_COMPILE_DISABLE is set",
    "Inductor compilation was disabled",
    "Triton is not installed",
    "Model Runner V2 requires Triton",
    "Reset SSM cache type",
    "%s is not found in LD_PRELOAD",
    "OMP_NUM_THREADS=%s is set",
    "Chat template rejected the request",
    "Default vLLM sampling parameters have been overridden",
)


def is_cpu_build() -> bool:
    """Whether the vLLM that is installed runs on the CPU, found without importing it."""
    for name in ("vllm-cpu", "vllm"):
        with suppress(metadata.PackageNotFoundError):
            return name == "vllm-cpu" or "+cpu" in metadata.version(name)
    return False


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import a lot inside without the garbage collector, which finds nothing in it and takes a sixth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def node_environment(config: InferenceConfig, *, cpu: bool, eager: bool) -> dict[str, str]:
    """Variables for this process and all it starts, to be set before vLLM is imported.

    ``cpu``: the model runs on the CPU. ``eager``: nothing is compiled for it, so torch must not compile helpers either
    (the first request with log-probabilities would wait for a C++ compiler).
    """
    values = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
        "VLLM_CONFIGURE_LOGGING": "0",
        # The node has threads and an event loop: a forked engine core would inherit their locks.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if config.offline or os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        values["HF_HUB_OFFLINE"] = values["TRANSFORMERS_OFFLINE"] = "1"
    if cpu and eager:
        values["TORCH_COMPILE_DISABLE"] = "1"
    if cpu:
        # This process computes nothing; the engine core's own number is in its environment.
        values["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    values["TORCH_CPP_LOG_LEVEL"] = os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")
    return values


def apply(values: Mapping[str, str]) -> None:
    """Set the variables in this process and take the forbidden ones out."""
    os.environ.update(values)
    for name in FORBIDDEN:
        os.environ.pop(name, None)


def core_environment(cores: Sequence[int], workers: int) -> dict[str, str]:
    """Variables for an engine core on the CPU.

    With no ``workers`` it computes itself: one OpenMP thread for each core, in its place. Workers it starts get the
    cores shared out by vLLM; a core bound to a place would hand that one on to all of them.
    """
    if workers:
        return {"VLLM_CPU_OMP_THREADS_BIND": split_cores(cores, workers)}
    if not cores:
        return {}
    places = ",".join(f"{{{core}}}" for core in cores)
    return {"OMP_NUM_THREADS": str(len(cores)), "OMP_PROC_BIND": "true", "OMP_PLACES": places}


def parse_cores(text: str) -> tuple[int, ...]:
    """Cores of a list like "0-3,6", in order. Raises ConfigError for a list that is none."""
    cores: set[int] = set()
    for part in text.replace(" ", "").split(","):
        low, dash, high = part.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise ConfigError(f'inference.cpu_threads: {text!r} is no list of cores; write it like "0-3,6"')
        first, last = int(low), int(high or low)
        if last < first or last > 4095:
            raise ConfigError(f"inference.cpu_threads: {part} is no range of cores from 0 to 4095")
        cores.update(range(first, last + 1))
    return tuple(sorted(cores))


def compute_cores(cpu_threads: str, allowed: Iterable[int], topology: Path = _TOPOLOGY) -> tuple[int, ...]:
    """Cores that the model computes on.

    Those of ``cpu_threads``, which must be ``allowed`` to this process (ConfigError). Where it is empty: one logical
    core of each physical one, less one for everything else, because a computing thread that loses its core to the
    node's own work stops all the others.
    """
    free = sorted(allowed)
    if cpu_threads:
        wanted = parse_cores(cpu_threads)
        missing = [core for core in wanted if core not in free]
        if missing:
            raise ConfigError(
                f"inference.cpu_threads: this process may not use core {missing[0]}; it may use {_ranges(free)}"
            )
        return wanted
    physical = [core for core in free if core == min(_siblings(core, topology).intersection(free))]
    return tuple(physical[:-1] or physical)


def _siblings(core: int, topology: Path) -> set[int]:
    try:
        text = (topology / f"cpu{core}" / "topology" / "thread_siblings_list").read_text().strip()
        return set(parse_cores(text)) | {core}
    except (OSError, ConfigError):
        return {core}


def _ranges(cores: Sequence[int]) -> str:
    parts: list[list[int]] = []
    for core in cores:
        if parts and parts[-1][1] == core - 1:
            parts[-1][1] = core
        else:
            parts.append([core, core])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def split_cores(cores: Sequence[int], ranks: int) -> str:
    """The cores as vLLM's own per-rank lists ("0,1|2,3"), or "auto" where each rank would not get one."""
    if not cores or len(cores) < ranks:
        return "auto"
    share = len(cores) // ranks
    return "|".join(",".join(map(str, cores[i * share : (i + 1) * share])) for i in range(ranks))


@dataclass(frozen=True, slots=True)
class LogStyle:
    """How vLLM's messages are written, in this process and in the engine core's; it travels between them."""

    level: int
    json: bool = False

    @classmethod
    def of_this_process(cls) -> LogStyle:
        """As the node writes its own: in the same form, and vLLM's INFO only where ours is DEBUG."""
        handlers = logging.getLogger().handlers
        verbose = logging.getLogger("laya").isEnabledFor(logging.DEBUG)
        json = bool(handlers) and isinstance(handlers[0].formatter, JsonFormatter)
        return cls(logging.INFO if verbose else logging.WARNING, json)

    def environment(self) -> dict[str, str]:
        """Variables for processes that vLLM starts itself: its own form of log, as loud as ours."""
        return {
            "VLLM_CONFIGURE_LOGGING": "1",
            "VLLM_LOGGING_STREAM": "ext://sys.stderr",
            "VLLM_LOGGING_LEVEL": logging.getLevelName(self.level),
        }

    def apply(self) -> None:
        """Send what vLLM logs in this process to stderr, without the lines that tell nobody anything."""
        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter() if self.json else TextFormatter())
        handler.addFilter(_unexpected)
        log = logging.getLogger("vllm")
        log.handlers[:] = [handler]
        log.propagate = False
        log.setLevel(self.level)
        logging.getLogger("torch._library.triton").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", category=FutureWarning)


def _unexpected(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR or not str(record.msg).startswith(_EXPECTED)
