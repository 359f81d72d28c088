"""What memory there is, read from files of a test's own and a library that stands in for NVML."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inference_node.memory import device


def meminfo(folder: Path, available_kib: int) -> Path:
    file = folder / "meminfo"
    file.write_text(f"MemTotal: {available_kib * 2} kB\nMemFree: 1 kB\nMemAvailable: {available_kib} kB\n")
    return file


def group(folder: Path, limit: object, used: int, cache: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\n")


def own(folder: Path, *lines: str) -> Path:
    file = folder / "cgroup"
    file.write_text("\n".join(lines))
    return file


def host(folder: Path, available_kib: int = 1024, *lines: str) -> device.Device | None:
    return device.host(meminfo(folder, available_kib), folder, own(folder, *lines))


def test_machine_without_limits_has_what_is_free(tmp_path: Path) -> None:
    assert host(tmp_path) == device.Device("cpu", "memory of this machine", 2 << 20, 1 << 20)


def test_limit_counts_and_its_page_cache_is_free(tmp_path: Path) -> None:
    group(tmp_path, 1000, 600, 100)
    assert host(tmp_path) == device.Device("cpu", "memory limit of its control group", 1000, 500)


def test_limits_of_all_groups_above_count(tmp_path: Path) -> None:
    group(tmp_path / "pod", 5000, 4900)
    group(tmp_path / "pod" / "box", 1000, 200)
    found = host(tmp_path, 1024, "0::/pod/box")
    assert found is not None and (found.total, found.free) == (1000, 100)


def test_group_that_cannot_be_seen_falls_back_to_the_root(tmp_path: Path) -> None:
    group(tmp_path, 1000, 600)
    found = host(tmp_path, 1024, "0::/not/mounted/here")
    assert found is not None and found.free == 400


def test_old_groups_are_read_too(tmp_path: Path) -> None:
    folder = tmp_path / "memory" / "box"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("1000\n")
    (folder / "memory.usage_in_bytes").write_text("900\n")
    (folder / "memory.stat").write_text("total_inactive_file 50\n")
    found = host(tmp_path, 1024, "3:cpu,cpuacct:/other", "4:memory:/box")
    assert found is not None and found.free == 150


@pytest.mark.parametrize("limit", ["max", 9223372036854771712, "nonsense"])
def test_no_limit_does_not_count(tmp_path: Path, limit: object) -> None:
    group(tmp_path, limit, 600)
    found = host(tmp_path)
    assert found is not None and found.name == "memory of this machine"


def test_limit_above_the_machine_does_not_hide_it(tmp_path: Path) -> None:
    group(tmp_path, 1 << 40, 600)
    found = host(tmp_path)
    assert found is not None and (found.total, found.free) == (2 << 20, 1 << 20)


def test_used_up_group_has_a_byte_left_rather_than_no_limit(tmp_path: Path) -> None:
    group(tmp_path, 1000, 2000)
    found = host(tmp_path)
    assert found is not None and found.free == 1


def test_nothing_known_is_none(tmp_path: Path) -> None:
    assert device.host(tmp_path / "none", tmp_path / "none", tmp_path / "none") is None


def test_this_machine_has_memory() -> None:
    found = device.host()
    assert found is not None and 0 < found.free <= found.total
    assert device.available() == pytest.approx(found.free, rel=0.2)


def test_nothing_known_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "host", lambda: None)
    assert device.available() == 0


@pytest.mark.parametrize(("flags", "expected"), [("fpu amx_bf16 amx_tile amx_int8", True), ("fpu avx512f", False)])
def test_tiles_are_found(tmp_path: Path, flags: str, expected: bool) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor : 0\nflags\t\t: {flags}\nprocessor : 1\n")
    assert device.has_amx(file) is expected
    assert device.has_amx(tmp_path / "none") is False


class Nvml:
    """The four calls, over cards given as (name, total, free)."""

    def __init__(self, *cards: tuple[Any, int, int], fail: str = "") -> None:
        self.cards = cards
        self.fail = fail
        self.open = 0

    def nvmlInit(self) -> None:
        if self.fail == "init":
            raise OSError("no driver")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index >= len(self.cards):
            raise ValueError("no such card")
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:
        return int(name.rpartition("-")[2])

    def nvmlDeviceGetName(self, handle: int) -> Any:
        return self.cards[handle][0]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        if self.fail == "memory":
            raise RuntimeError("fell off the bus")
        return SimpleNamespace(total=self.cards[handle][1], free=self.cards[handle][2])


CARDS = ((b"Card A", 100, 90), ("Card B", 80, 10), ("Card C", 60, 55))


@pytest.mark.parametrize(
    ("visible", "ranks", "expected"),
    [
        (None, 1, ("Card A", 100, 90, 3)),
        (None, 2, ("Card A", 80, 10, 3)),
        ("2", 1, ("Card C", 60, 55, 1)),
        ("2,0", 2, ("Card C", 60, 55, 2)),
        ("GPU-1", 1, ("Card B", 80, 10, 1)),
        ("0,-1,1", 8, ("Card A", 100, 90, 1)),
    ],
)
def test_visible_cards_count_in_their_order(visible: str | None, ranks: int, expected: tuple[Any, ...]) -> None:
    nvml = Nvml(*CARDS)
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = device.gpus(ranks, environment, nvml)
    assert found == device.Device("gpu", *expected)
    assert nvml.open == 0


@pytest.mark.parametrize("visible", ["", "-1", "none", "7"])
def test_no_visible_card_is_none(visible: str) -> None:
    assert device.gpus(1, {"CUDA_VISIBLE_DEVICES": visible}, Nvml(*CARDS)) is None


@pytest.mark.parametrize("fail", ["init", "memory"])
def test_driver_that_does_not_answer_is_none(fail: str) -> None:
    nvml = Nvml(*CARDS, fail=fail)
    assert device.gpus(1, {}, nvml) is None
    assert nvml.open == 0


def test_machine_without_the_library_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("importlib.import_module", absent)
    assert device.gpus() is None
    assert device.find(cpu=False) is None


def test_cpu_is_the_machine() -> None:
    found = device.find(cpu=True)
    assert found is not None and found.kind == "cpu"
