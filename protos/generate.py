"""Generate ``shared/pb`` from ``protos/``: ``python protos/generate.py [OUT]``.

Modules are imported as ``shared.pb.laya.v1.*``, so the imports that protoc writes are turned to that package. The
descriptor set of all files is written beside them for the breaking-change test.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
_IMPORT = re.compile(r"^from laya\.v1 import", re.MULTILINE)
_HEADER = '"""Generated from protos/laya/v1 by protos/generate.py; do not edit."""\n'


def generate(out: Path) -> None:
    """Write every module, stub and ``laya.binpb`` under ``out``; raises RuntimeError when protoc refuses."""
    files = sorted(str(p.relative_to(PROTOS)) for p in PROTOS.glob("laya/v1/*.proto"))
    package = out / "laya" / "v1"
    package.mkdir(parents=True, exist_ok=True)
    include = Path(grpc_tools.__file__).parent / "_proto"
    status = protoc.main(
        [
            "protoc",
            f"-I{PROTOS}",
            f"-I{include}",
            f"--python_out={out}",
            f"--pyi_out={out}",
            f"--grpc_python_out={out}",
            f"--descriptor_set_out={out / 'laya.binpb'}",
            "--include_imports",
            *files,
        ]
    )
    if status != 0:
        raise RuntimeError(f"protoc ended with status {status}")
    for path in package.glob("*_pb2*.py*"):
        path.write_text(_IMPORT.sub("from shared.pb.laya.v1 import", path.read_text()))
    for folder in (out, out / "laya", package):
        (folder / "__init__.py").write_text(_HEADER)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "shared" / "pb")
