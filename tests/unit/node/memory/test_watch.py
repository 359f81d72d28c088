"""What is read of a machine: trees of files as kernels write them, and this machine itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inference_node.memory.guard import GpuReading
from inference_node.memory.watch import DiskFiles, Files, Watch

GIB = 1 << 30
V1_UNLIMITED = "9223372036854771712"


class Tree(Files):
    """Files by path; what a folder holds follows from them."""

    def __init__(self, **files: str) -> None:
        self.files = files

    def text(self, path: str) -> str:
        return self.files.get(path, "")

    def names(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        return sorted({p[len(prefix) :].split("/")[0] for p in self.files if p.startswith(prefix)})


def tree(*parts: dict[str, str]) -> Tree:
    merged: dict[str, str] = {}
    for part in parts:
        merged |= part
    found = Tree()
    found.files = merged
    return found


MACHINE = {"/proc/meminfo": "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n"}


def v2(path: str, limit: str, used: int, cache: int = 0, slab: int = 0) -> dict[str, str]:
    folder = f"/sys/fs/cgroup{path}"
    return {
        f"{folder}/memory.max": limit + "\n",
        f"{folder}/memory.current": f"{used}\n",
        f"{folder}/memory.stat": f"anon 1\nactive_file {cache}\ninactive_file 0\nslab_reclaimable {slab}\n",
    }


def v1(path: str, limit: str, used: int, cache: int = 0) -> dict[str, str]:
    folder = f"/sys/fs/cgroup/memory{path}"
    return {
        f"{folder}/memory.limit_in_bytes": limit + "\n",
        f"{folder}/memory.usage_in_bytes": f"{used}\n",
        f"{folder}/memory.stat": f"rss 1\ninactive_file 7\ntotal_active_file {cache}\ntotal_inactive_file 0\n",
    }


def read(files: Files):
    return Watch(files, 7, page=4096).read()


def test_without_any_file_nothing_is_said():
    got = read(tree())
    assert (got.memory, got.memory_limit, got.stall, got.rss, got.gpus) == (None, None, None, None, ())


def test_without_limits_the_machine_counts():
    got = read(tree(MACHINE, {"/proc/7/cgroup": "0::/\n"}))
    assert (got.memory, got.memory_limit) == (0.5, 16 * GIB)


def test_the_tightest_group_above_the_process_counts_and_the_page_cache_does_not():
    files = tree(
        MACHINE,
        {"/proc/7/cgroup": "0::/pod/box\n"},
        v2("/pod/box", "max", 7 * GIB, 1 * GIB),
        v2("/pod", str(10 * GIB), 9 * GIB, 1 * GIB, GIB // 2),
    )
    got = read(files)
    assert (got.memory, got.memory_limit) == (0.75, 10 * GIB)


def test_in_a_container_the_root_of_the_tree_is_its_own_group():
    files = tree(MACHINE, {"/proc/7/cgroup": "0::/../../secret/box\n"}, v2("", str(4 * GIB), 3 * GIB))
    got = read(files)
    assert (got.memory, got.memory_limit) == (0.75, 4 * GIB)


def test_version_1_is_read_too_beside_an_empty_version_2():
    files = tree(
        MACHINE,
        {"/proc/7/cgroup": "9:name=systemd:/\n4:cpu,memory:/docker/x\n0::/\n"},
        v1("/docker/x", str(8 * GIB), 8 * GIB, 2 * GIB),
        v1("", V1_UNLIMITED, 15 * GIB),
    )
    got = read(files)
    assert (got.memory, got.memory_limit) == (0.75, 8 * GIB)


@pytest.mark.parametrize("limit", ["max", V1_UNLIMITED, "", "many", "-5", "0", "9" * 40])
def test_a_limit_that_is_none_is_left_out(limit):
    got = read(tree(MACHINE, {"/proc/7/cgroup": "0::/g\n"}, v2("/g", limit, 5 * GIB)))
    assert got.memory_limit == 16 * GIB


def pressure(full: str) -> str:
    return f"some avg10=99.00 avg60=0.00 avg300=0.00 total=1\nfull avg10={full} avg60=0.00 avg300=0.00 total=1\n"


def test_the_own_groups_pressure_goes_before_the_machines():
    files = {
        "/proc/7/cgroup": "0::/g\n",
        "/proc/pressure/memory": pressure("1.00"),
        "/sys/fs/cgroup/g/memory.pressure": pressure("31.50"),
    }
    assert read(tree(v2("/g", "max", 1), files)).stall == 31.5
    assert read(tree(v2("/g", "max", 1), files | {"/sys/fs/cgroup/g/memory.pressure": ""})).stall == 1.0
    assert read(tree(files)).stall == 1.0


@pytest.mark.parametrize(
    "text", ["", "full\n", "full avg10=nan\n", "full avg10=x\n", "full avg10=-1\n", "some avg10=3"]
)
def test_pressure_that_makes_no_sense_is_left_out(text):
    assert read(tree({"/proc/pressure/memory": text})).stall is None


def test_resident_memory_is_that_of_the_process_and_all_below_it():
    files = tree(
        {
            "/proc/7/statm": "900 100 50 1 0 2 0\n",
            "/proc/7/task/7/children": "8 ",
            "/proc/7/task/71/children": "9\n",
            "/proc/8/statm": "900 200 50 1 0 2 0",
            "/proc/8/task/8/children": "10",
            "/proc/10/statm": "1 30 1",
            "/proc/11/statm": "1 5000 1",
        }
    )
    assert read(files).rss == 330 * 4096  # 9 ended meanwhile; 11 is somebody else's


def test_gpus_come_along():
    assert Watch(tree(), 7, lambda: (GpuReading(3),)).read().gpus == (GpuReading(3),)


def test_this_machine_can_be_read():
    got = Watch(DiskFiles(), os.getpid()).read()
    if not Path("/proc/meminfo").exists():
        pytest.skip("no /proc here")
    assert got.memory is not None and 0 < got.memory < 1 and got.memory_limit
    assert got.rss is not None and got.rss > 10 << 20
    assert DiskFiles().text("/nowhere/at/all") == "" and DiskFiles().names("/nowhere") == []


_HOLDER = """
import os, sys
from inference_node.memory.watch import DiskFiles, Watch
sys.stdin.readline()                      # moved into its group by now
watch = Watch(DiskFiles(), os.getpid())
kept = b""
for size in (0, 100 << 20):
    kept = b"x" * size
    print(*(share for share, limit in watch._limits() if limit == 400 << 20), flush=True)
"""


def own_group() -> tuple[Path, str]:
    """A new control group to put a process in, and the name of its limit; skips where that is not allowed."""
    for root, limit in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
        folder = Path(root) / f"laya-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        if (folder / limit).exists():
            return folder, limit
        folder.rmdir()
    pytest.skip("no control group can be made here")


def test_a_real_control_group_is_read_from_within():
    folder, limit = own_group()
    child = None
    try:
        (folder / limit).write_text(str(400 << 20))
        child = subprocess.Popen(
            [sys.executable, "-c", _HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        (folder / "cgroup.procs").write_text(str(child.pid))
        out, _ = child.communicate("go\n", timeout=60)
        before, after = map(float, out.splitlines())
        assert 0 < before < after < 1
        assert after - before == pytest.approx(100 / 400, abs=0.05)
    finally:
        if child is not None and child.poll() is None:
            child.kill()
            child.wait()
        folder.rmdir()
