"""A Docker engine of a test's own: started where none runs, in a network namespace of its own where that is wanted.

``python -m tests.support.docker`` says whether this machine can do it (exit code 0), or why not (1).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from shared.cli.supervise import die_with_parent

_CLIS = ("/usr/bin/docker", "docker")


def why_not() -> str:
    """Why no engine can be started here; empty when one can."""
    if os.geteuid() != 0:
        return "an engine of one's own needs root"
    for program in ("dockerd", "nsenter", "ip", "mmdebstrap"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if not cli():
        return "no docker client builds with BuildKit (docker 20.10 to 22, or a later one with buildx)"
    if not Path("/sys/fs/cgroup").is_dir():
        return "there are no control groups"
    return ""


def cli() -> str:
    """A client that builds with BuildKit, with a plugin or without; empty when there is none."""
    for name in _CLIS:
        found = shutil.which(name)
        if found is None:
            continue
        text = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
        major = re.search(r"version (\d+)", text)
        if major is None:
            continue
        buildx = subprocess.run([found, "buildx", "version"], capture_output=True, check=False).returncode == 0
        if int(major[1]) < 23 or buildx:
            return found
    return ""


class DockerError(AssertionError):
    """A command that failed, with what it wrote."""


class Engine:
    """One ``dockerd`` with a folder of its own; closes with everything in it."""

    def __init__(self, namespace: str = "", flags: Sequence[str] = (), folder: str = "") -> None:
        """``folder`` is that of an engine which runs already, and is left running."""
        self.folder = Path(folder or tempfile.mkdtemp(prefix="laya-docker-"))
        self._borrowed = bool(folder)
        self.namespace = namespace
        self._flags = flags
        self._cli = cli()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def _socket(self) -> Path:
        return self.folder / "docker.sock"

    @property
    def url(self) -> str:
        """What clients call DOCKER_HOST."""
        return f"unix://{self._socket}"

    def start(self, timeout: float = 60.0) -> None:
        """Start it and wait until it answers."""
        if self._borrowed:
            self.run("info")
            return
        enter = ["nsenter", f"--net=/run/netns/{self.namespace}"] if self.namespace else []
        own = [] if self.namespace else ["--bridge=none"]
        argv = [
            *(*enter, "dockerd", "--data-root", str(self.folder / "data"), "--exec-root", str(self.folder / "exec")),
            *("-p", str(self.folder / "pid"), "-H", f"unix://{self._socket}", "--iptables=false", "--ip6tables=false"),
            *("--log-level", "warn", *own, *self._flags),
        ]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent
            )
        deadline = time.monotonic() + timeout
        while self.try_(["info"]).returncode != 0:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise DockerError(f"dockerd does not start:\n{self.log()}")
            time.sleep(0.1)

    def log(self) -> str:
        """The end of what it wrote."""
        return (self.folder / "log").read_bytes()[-4096:].decode("utf-8", "replace")

    def try_(
        self, args: Sequence[str | Path], timeout: float = 60.0, env: dict[str, str] | None = None, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run the client; its exit code is the caller's to judge."""
        return subprocess.run(
            [self._cli, *map(str, args)],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            input=stdin,
            env={**os.environ, "DOCKER_HOST": self.url, "DOCKER_BUILDKIT": "1", **(env or {})},
        )

    def run(self, *args: str | Path, timeout: float = 60.0, env: dict[str, str] | None = None, stdin: str = "") -> str:
        """Run the client; what it printed. Raises DockerError."""
        result = self.try_(args, timeout, env, stdin)
        if result.returncode != 0:
            raise DockerError(
                f"docker {' '.join(map(str, args))[:200]}: {result.stdout[-2000:]}{result.stderr[-4000:]}"
            )
        return result.stdout.strip()

    def copy_image(self, other: Engine, *names: str) -> None:
        """Take images from another engine."""
        environ = {**os.environ, "DOCKER_HOST": other.url}
        with subprocess.Popen([self._cli, "save", *names], stdout=subprocess.PIPE, env=environ) as save:
            done = subprocess.run(
                [self._cli, "load", "-q"],
                stdin=save.stdout,
                capture_output=True,
                timeout=300,
                check=False,
                env={**os.environ, "DOCKER_HOST": self.url},
            )
        if done.returncode != 0 or save.returncode != 0:
            raise DockerError(f"images {names} could not be copied: {done.stderr.decode()[-500:]}")

    def close(self) -> None:
        """Stop its containers, end it, and take away what it wrote."""
        if self._borrowed:
            return
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running = self.try_(["ps", "-q"], 20).stdout.split()
                if running:
                    self.try_(["rm", "-f", *running], 60)
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(40)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
            self._process = None
        for mount in sorted(self._mounts(), reverse=True):
            subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _mounts(self) -> list[str]:
        lines = Path("/proc/self/mounts").read_text().splitlines()
        return [line.split(" ")[1] for line in lines if line.split(" ")[1].startswith(f"{self.folder}/")]


if __name__ == "__main__":
    reason = why_not()
    print(reason or "a Docker engine can be started here")
    sys.exit(1 if reason else 0)
