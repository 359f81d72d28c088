"""Clients from npm: installed once into a cache folder outside the project, and run with node."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

_INSTALL_LIMIT = 180.0
_UNREACHABLE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH", "SOCKET_TIMEOUT")
_QUICKLY = ("--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1", "--fetch-timeout=20000")


def installed(packages: dict[str, str]) -> Path:
    """A folder in whose ``node_modules`` these versions are.

    Skips the test when npm is not on the machine or no registry answers it; any other failure is one.
    """
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("npm and node are not on this machine")
    wanted = [f"{name}@{version}" for name, version in sorted(packages.items())]
    key = hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "laya-tests"
    folder = cache / f"npm-{key}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache, prefix="npm-") as work:
        new = Path(work) / "new"
        new.mkdir()
        done = subprocess.run(
            ["npm", "install", "--prefix", str(new), *_QUICKLY, *wanted],
            capture_output=True,
            text=True,
            timeout=_INSTALL_LIMIT,
        )
        if done.returncode:
            if any(code in done.stderr for code in _UNREACHABLE):
                pytest.skip(f"no package registry answers npm: {done.stderr.strip().splitlines()[0][:200]}")
            raise AssertionError(f"npm cannot install {wanted}:\n{done.stderr[-2000:]}")
        try:
            new.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another run was faster
                raise
    return folder


def run(script: Path, folder: Path, *arguments: str, timeout: float = 60.0) -> dict[str, Any]:
    """Run a script that finds its modules in ``folder``; what it prints is one JSON object."""
    done = subprocess.run(
        ["node", str(script), *arguments],
        env={**os.environ, "NODE_PATH": str(folder / "node_modules")},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
