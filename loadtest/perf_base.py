"""The base revision of ``make perf``: its files, and their compiled form, which is made once and then kept.

Compiling takes minutes, so it is done as seldom as can be. Extensions are kept in the user's cache folder
(XDG_CACHE_HOME) by all that they are made from: the sources, the way they are built, Python and mypyc. The working
tree's own are kept as well: once they are committed, the next comparison finds its base there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
COMPILE_LIMIT: Final = 1200.0
KEPT: Final = 8  # compiled forms, some 20 MB each
PRODUCT: Final = ("router_node", "shared")
_SAY_EVERY: Final = 60.0
_RECIPE: Final = ("setup.py", "shared/cold.h")


class PerfError(Exception):
    """Nothing can be compared: one sentence."""


def git(*args: str) -> str:
    """What git says. Raises PerfError."""
    done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PerfError(f"git {args[0]}: {done.stderr.strip()[-300:] or f'exit code {done.returncode}'}")
    return done.stdout.strip()


def default_base() -> str:
    """HEAD where the product differs from it, else what was there before the last commit that changed it."""
    if git("status", "--porcelain", "--", *PRODUCT):
        return "HEAD"
    last = git("log", "-1", "--format=%h", "--", *PRODUCT)
    return f"{last}~1" if last else "HEAD~1"


def extract(revision: str, into: Path) -> Path:
    """The files of a revision, in a folder. Raises PerfError."""
    try:
        commit = git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except PerfError:
        raise PerfError(f"git rev-parse knows no commit {revision}: name one by --base") from None
    tree = into / "base"
    tree.mkdir()
    archive = into / "base.tar"
    git("archive", "--format=tar", f"--output={archive}", commit)
    shutil.unpack_archive(archive, tree, filter="data")
    archive.unlink()
    return tree


def is_compiled(tree: Path) -> bool:
    """Whether a process that imports from this tree takes the hot path from extensions."""
    probe = "import sys; from shared.compiled import compiled; sys.exit(not compiled())"
    env = {**os.environ, "LAYA_PLAIN": ""}
    return (
        subprocess.run([sys.executable, "-c", probe], cwd=tree, env=env, check=False, capture_output=True).returncode
        == 0
    )


def key(tree: Path) -> str:
    """Of all that the tree's compiled form depends on; empty where a revision has no such form."""
    probe = [sys.executable, "-c", "from shared.compiled import digest; print(digest())"]
    found = subprocess.run(probe, cwd=tree, capture_output=True, text=True, check=False).stdout.strip()
    if not found:
        return ""
    recipe = hashlib.blake2b(digest_size=4)
    for name in _RECIPE:
        with contextlib.suppress(OSError):
            recipe.update((tree / name).read_bytes())
    with contextlib.suppress(metadata.PackageNotFoundError):
        recipe.update(metadata.version("mypy").encode())
    return f"{found}-{recipe.hexdigest()}-{sys.implementation.cache_tag}"


def cache() -> Path:
    """Where compiled forms are kept."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "laya" / "perf"


def keep(tree: Path, name: str) -> None:
    """Keep a copy of the tree's extensions, unless there is one; past ``KEPT`` the one unused for longest goes."""
    kept = cache() / name
    if kept.is_dir():
        os.utime(kept)
        return
    part = kept.with_name(f"{name}.{os.getpid()}")
    try:
        for package in PRODUCT:
            for file in (tree / package).rglob("*.so"):
                there = part / file.relative_to(tree)
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, there)
        part.rename(kept)
        for old in sorted(cache().iterdir(), key=lambda one: one.stat().st_mtime)[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    except OSError as error:  # a full disk, or another run that was first: the comparison needs none of it
        print(f"perf: its compiled form is not kept: {error}", file=sys.stderr)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def compile_base(tree: Path, limit: float = COMPILE_LIMIT) -> bool:
    """Have the tree's extensions beside its sources: kept ones, or made now within ``limit`` seconds; else False."""
    name = key(tree)
    if not name:
        print("perf: the base revision has no compiled form: both sides are plain", file=sys.stderr)
        return False
    kept = cache() / name
    if kept.is_dir():
        os.utime(kept)
        shutil.copytree(kept, tree, dirs_exist_ok=True)
        if is_compiled(tree):
            return True
        shutil.rmtree(kept, ignore_errors=True)  # half of it was lost
    if limit <= 0:
        print("perf: no compiled form of the base is kept, and none may be made: both sides are plain", file=sys.stderr)
        return False
    print("perf: compiling the base revision, once; this takes as long as `make compile`", file=sys.stderr)
    began = time.monotonic()
    _bounded([sys.executable, "setup.py", "compile"], tree, limit)
    took = time.monotonic() - began
    if not is_compiled(tree):
        why = f"not within {limit:.0f} s" if took >= limit else "see what `make compile` says there"
        print(f"perf: the base could not be compiled ({why}): both sides are plain", file=sys.stderr)
        return False
    print(f"perf: compiled in {took:.0f} s", file=sys.stderr)
    keep(tree, name)
    return True


def _bounded(argv: list[str], folder: Path, limit: float) -> None:
    """Run a command that may start others; past ``limit`` seconds, or when interrupted, all of them are ended."""
    quiet = subprocess.DEVNULL
    began = time.monotonic()
    with subprocess.Popen(argv, cwd=folder, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True) as proc:
        try:
            while (left := began + limit - time.monotonic()) > 0:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    proc.wait(min(left, _SAY_EVERY))
                    return
                print(f"perf: still compiling after {time.monotonic() - began:.0f} s", file=sys.stderr)
        finally:
            if proc.poll() is None:
                os.killpg(proc.pid, signal.SIGKILL)
