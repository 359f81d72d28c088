"""Scarcity on a machine: a disk without room, a clock that jumps, no more file descriptors, no more memory."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

from tests.faults.hosts import run

DISK: Final = 48 << 20  # bytes of the file system for logs and snapshots
CLOCKED: Final = ("n4", "r2")  # whose clock may jump
_MEMORY: Final = Path("/sys/fs/cgroup/memory")

# What glibc asks the kernel for the time of day, moved by seconds that stand in a shared file.
_SHIM: Final = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *moved;

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("LAYA_TEST_CLOCK");
    int fd = name ? open(name, O_RDONLY) : -1;
    if (fd >= 0) {
        void *at = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
        if (at != MAP_FAILED) moved = at;
        close(fd);
    }
}

int clock_gettime(clockid_t id, struct timespec *out) {
    int code = (int)syscall(SYS_clock_gettime, id, out);
    if (code == 0 && moved && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) out->tv_sec += *moved;
    return code;
}

int gettimeofday(struct timeval *out, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"""


class Disk:
    """A small file system in memory, for logs and snapshots; ``works`` is False where none can be mounted."""

    def __init__(self, parent: str) -> None:
        self.folder = f"{parent}/disk"
        self.works = False
        os.mkdir(self.folder)

    def mount(self) -> None:
        """Mount it, where that is allowed."""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            run("mount", "-t", "tmpfs", "-o", f"size={DISK}", "laya-faults", self.folder)
            self.works = True

    def fill(self) -> None:
        """Leave no room on it."""
        with open(f"{self.folder}/junk", "wb", buffering=0) as file, contextlib.suppress(OSError):
            for size in (1 << 20, 4096):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"\0" * size)

    def free(self) -> None:
        """Make room again; logs that have grown are cut."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.folder}/junk")
        for log in Path(self.folder).glob("*.log"):
            if log.stat().st_blocks * 512 > DISK // 16:
                os.truncate(log, 0)

    def close(self) -> None:
        """Unmount it."""
        if self.works:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                run("umount", "-l", self.folder)


class Clock:
    """A library that moves the time of day of those that are started with ``env``; ``works`` needs a C compiler."""

    def __init__(self, folder: str) -> None:
        self._file = f"{folder}/clock"
        self._library = f"{folder}/clock.so"
        self.set(0)
        self.works = shutil.which("gcc") is not None
        if self.works:
            source = Path(f"{folder}/clock.c")
            source.write_text(_SHIM)
            run("gcc", "-O2", "-shared", "-fPIC", "-o", self._library, str(source))

    def env(self, name: str) -> dict[str, str]:
        """What a member's environment needs."""
        if not self.works or name not in CLOCKED:
            return {}
        return {"LD_PRELOAD": self._library, "LAYA_TEST_CLOCK": self._file}

    def set(self, seconds: int) -> None:
        """So many seconds off from now on."""
        raw = struct.pack("l", seconds)
        with open(self._file, "r+b" if os.path.exists(self._file) else "w+b") as file:
            file.write(raw)


def deny_files(pid: int) -> None:
    """A process may open no more files than it has open."""
    _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")), most))


def allow_files(pid: int) -> None:
    """It may again."""
    with contextlib.suppress(ProcessLookupError):
        _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))


def memory_works() -> bool:
    """Whether control groups can limit memory here."""
    probe = _MEMORY / f"laya-faults-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
        return True
    except OSError:
        return False


def limit_memory(pid: int, more: int) -> None:
    """A process may take so many bytes more than it has; past that the kernel kills it."""
    group = _MEMORY / f"laya-faults-{pid}"
    group.mkdir(exist_ok=True)
    (group / "memory.limit_in_bytes").write_text(str(more))
    (group / "cgroup.procs").write_text(str(pid))


def memory_reached(pid: int) -> bool:
    """Whether a process that was limited has come to its limit."""
    return int((_MEMORY / f"laya-faults-{pid}" / "memory.failcnt").read_text()) > 0


def release_memory(pid: int) -> None:
    """No limit any more, for it or for what is left of one that was killed."""
    group = _MEMORY / f"laya-faults-{pid}"
    if group.is_dir():
        with contextlib.suppress(OSError):
            (_MEMORY / "cgroup.procs").write_text(str(pid))
        with contextlib.suppress(OSError):
            group.rmdir()
