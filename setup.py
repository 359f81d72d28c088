"""Builds the compiled form of the hot path, where that is wanted and possible; ``pyproject.toml`` says the rest.

``LAYA_COMPILE`` says whether it is wanted: ``0`` never, ``1`` or ``auto`` (the default) where mypyc and a C compiler
work. It is never needed: see ``shared/compiled.py``. ``python setup.py compile`` builds in place, once for each state
of the sources, and says what came of it in one line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # a build in isolation does not

from shared import compiled  # noqa: E402

WANTED = os.environ.get("LAYA_COMPILE", "auto") or "auto"
LOG = HERE / "build" / "compile.log"
# Calls within the code and to Python go straight there; what handles errors lies apart. Quicker to compile, too.
_C_FLAGS = ["-fvisibility=hidden", "-fno-plt", "-include", str(HERE / "shared" / "cold.h")]
_PROBE = "#include <Python.h>\nint main(void) { return PY_VERSION_HEX == 0; }\n"


def why_not() -> str:
    """Why nothing can be compiled here; empty when it can."""
    try:
        import mypyc.build  # noqa: F401
    except ImportError:
        return "mypyc is not installed"
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext
    from setuptools.extension import Extension

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text(_PROBE)
        try:
            command = build_ext(Distribution({"name": "probe", "ext_modules": [Extension("probe", [str(source)])]}))
            command.build_lib = command.build_temp = folder
            command.ensure_finalized()
            command.run()
        except Exception as error:
            return f"no C compiler works ({str(error)[:200]})"
    return ""


def extensions() -> list[object]:
    """What setuptools is to compile; empty where it cannot be, with a line that says why."""
    if WANTED == "0":
        return []
    reason = why_not()
    if not reason:
        from mypyc.build import mypycify

        os.chdir(HERE)
        # No configuration file: a build in isolation has no stubs of what we import, and need not judge our types.
        flags = ["--config-file=", "--ignore-missing-imports", "--explicit-package-bases", "--no-warn-no-return"]
        try:
            # -O3 and debug symbols double the compiler's time and are worth nothing that could be measured.
            name = compiled.group(compiled.digest())
            made = list(mypycify([*flags, *compiled.MODULES], group_name=name, opt_level="2", debug_level="0"))
            for extension in made:
                extension.extra_compile_args += _C_FLAGS
            return made
        except (Exception, SystemExit) as error:
            reason = f"mypyc failed ({str(error)[:200]})"
    print(f"laya: {reason}: the hot path stays plain Python (slower)", file=sys.stderr)
    return []


def compile_in_place() -> int:
    """Build beside the sources unless that was done, or was tried in vain, for the same sources; always exit code 0."""
    digest = compiled.digest()
    library = compiled.library(digest)
    tried = LOG.with_name(f"plain-{digest}")
    if WANTED == "0" or library.exists() or (WANTED == "auto" and tried.exists()):
        return 0
    LOG.parent.mkdir(exist_ok=True)
    for old in compiled.extensions():
        old.unlink()
    print("Compiling the router's hot path (once for each state of its sources; a minute or so): ", end="", flush=True)
    began = time.monotonic()
    with LOG.open("w") as log:
        subprocess.run(
            [sys.executable, __file__, "--quiet", "build_ext", "--inplace", "--build-temp", str(LOG.parent / "temp")],
            cwd=HERE,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if library.exists():
        print(f"done in {time.monotonic() - began:.0f} s")
    else:
        tried.touch()
        print(f"not possible here, so it runs as plain Python (slower); {LOG.relative_to(HERE)} says why")
    return 0


if sys.argv[1:] == ["compile"]:
    sys.exit(compile_in_place())

from setuptools import setup  # noqa: E402

setup(ext_modules=extensions())
