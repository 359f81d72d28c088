"""What conversion refuses before any work, and how its result appears."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from inference_node.quantize import QuantizeError, convert
from inference_node.quantize.convert import quantize
from tests.unit.node.quantize.test_source import checkpoint

Usage = namedtuple("Usage", "total used free")


def left(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_importing_the_package_leaves_torch_out() -> None:
    code = "import sys, inference_node.quantize.convert, inference_node.quantize.demo; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_an_unknown_scheme_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(QuantizeError, match="not known"):
        quantize(tmp_path / "none", tmp_path / "out", "w3a3")


def test_an_existing_output_is_refused_and_untouched(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("keep")
    with pytest.raises(QuantizeError, match="out exists already; remove it or name another folder"):
        quantize(checkpoint(tmp_path / "m"), out, "w8a8")
    assert (out / "mine").read_text() == "keep"


def test_an_output_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(QuantizeError, match="cannot be written"):
        quantize(checkpoint(tmp_path / "m"), tmp_path / "file" / "out", "w8a8")


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(source: object, meter: object) -> object:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(convert, "_load", no_space)
    with pytest.raises(QuantizeError, match="is full; free some space"):
        quantize(checkpoint(tmp_path / "m"), tmp_path / "out", "w8a8")
    assert left(tmp_path) == ["m"]


def test_too_little_space_is_refused_with_both_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "_load", lambda source, meter: object())
    monkeypatch.setattr(convert, "_output_bytes", lambda model, scheme: 200 << 20)
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(1 << 30, 0, 100 << 20))
    with pytest.raises(QuantizeError, match="needs 264 MiB and its disk has 100 MiB free"):
        quantize(checkpoint(tmp_path / "m"), tmp_path / "out", "w8a8")
    assert left(tmp_path) == ["m"]


def test_a_crash_in_the_middle_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(source: object, meter: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(convert, "_load", crash)
    with pytest.raises(KeyboardInterrupt):
        quantize(checkpoint(tmp_path / "m"), tmp_path / "out", "w8a8")
    assert left(tmp_path) == ["m"]


def test_the_result_appears_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "deep" / "out"

    def save(model: object, config: object, source: object, work: Path, meter: object) -> bool:
        assert not out.exists()
        (work / "config.json").write_text("{}")
        (work / "model.safetensors").write_bytes(b"12345")
        (work / "model.safetensors").chmod(0o600)
        return True

    monkeypatch.setattr(convert, "_load", lambda source, meter: object())
    monkeypatch.setattr(convert, "_output_bytes", lambda model, scheme: 0)
    monkeypatch.setattr(convert, "_quantize_layers", lambda model, scheme, meter: (7, None))
    monkeypatch.setattr(convert, "_save", save)
    result = quantize(checkpoint(tmp_path / "m"), out, "W4A16")
    assert (result.path, result.scheme, result.layers, result.output_bytes) == (out, "w4a16", 7, 5)
    assert left(out) == ["config.json", "model.safetensors"]
    assert (out / "model.safetensors").stat().st_mode == (out / "config.json").stat().st_mode
    assert left(out.parent) == ["out"]


def test_a_folder_that_appears_meanwhile_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"

    def save(model: object, config: object, source: object, work: Path, meter: object) -> bool:
        (work / "config.json").write_text("{}")
        out.mkdir()
        (out / "theirs").write_text("keep")
        return True

    monkeypatch.setattr(convert, "_load", lambda source, meter: object())
    monkeypatch.setattr(convert, "_output_bytes", lambda model, scheme: 0)
    monkeypatch.setattr(convert, "_quantize_layers", lambda model, scheme, meter: (1, None))
    monkeypatch.setattr(convert, "_save", save)
    with pytest.raises(QuantizeError, match="appeared while the work went on"):
        quantize(checkpoint(tmp_path / "m"), out, "w8a8")
    assert left(out) == ["theirs"]
