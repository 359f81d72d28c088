"""The protocol as ``buf`` sees it: well-formed, and nothing released is broken."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support import npm

PROTOS = Path(__file__).resolve().parents[2] / "protos"


@pytest.fixture(scope="module")
def buf() -> Path:
    return npm.installed({"@bufbuild/buf": "1.75.0"}) / "node_modules" / ".bin" / "buf"


def run(buf: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "BUF_CACHE_DIR": str(buf.parent / "cache")}
    return subprocess.run([buf, *args], cwd=PROTOS, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_the_protocol_lints(buf: Path) -> None:
    done = run(buf, "lint")
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_released_is_broken(buf: Path) -> None:
    done = run(buf, "breaking", "--against", "released.binpb")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_removed_field_would_be_noticed(buf: Path, tmp_path: Path) -> None:
    folder = tmp_path / "laya" / "v1"
    folder.mkdir(parents=True)
    for path in (PROTOS / "laya" / "v1").glob("*.proto"):
        text = path.read_text()
        if path.name == "openai.proto":
            text = text.replace("  string method = 1;\n", "")
        (folder / path.name).write_text(text)
    (tmp_path / "buf.yaml").write_text((PROTOS / "buf.yaml").read_text())
    done = run(buf, "breaking", str(tmp_path), "--against", str(PROTOS / "released.binpb"))
    assert done.returncode != 0
    assert "method" in done.stdout
