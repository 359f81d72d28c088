"""What sources say and nodes answer, put together: who is the wrong node, and who stays though nobody names it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from router_node.discovery import membership as module
from router_node.discovery.base import Candidate, Publish, Source, SourceHealth
from router_node.discovery.membership import Membership
from router_node.dispatch import Dispatcher, DispatchSettings
from shared.pb.laya.v1 import node_pb2
from tests.support.ports import until


class Pool:
    """A pool that never connects."""

    last_error = ""
    streams = connections = 0

    def start(self) -> None:
        return None

    async def close(self, grace: float) -> None:
        return None


class Told(Source):
    """A source that says what the test says."""

    name = "told"

    async def start(self, publish: Publish) -> None:
        self.say = lambda *found: publish(tuple(found))

    async def close(self) -> None:
        return None

    def health(self) -> SourceHealth:
        return SourceHealth(up=True)

    say: Callable[..., None]


def make(source: Source) -> Membership:
    loop = asyncio.get_running_loop()
    dispatcher = Dispatcher("w", DispatchSettings(), loop.time)
    pool = Pool()
    return Membership(
        dispatcher,
        [source],
        lambda address, on_state: pool,  # type: ignore[arg-type,return-value]
        watcher_id="w",
        token="",
        drain=0.1,
    )


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        (Candidate("a:1", model="m"), ""),
        (Candidate("a:1", model="other"), "model other is wanted of the nodes here, but m is served"),
        (Candidate("a:1", model="m", revision="r2"), "revision r2 is wanted of the nodes here, but r1 is served"),
        (Candidate("a:1", "n1", "b1", "other"), "the node registered model other but serves m"),
        (Candidate("a:1", "n1", "b1", "m", "r2"), "the node registered revision r2 but serves r1"),
        (Candidate("a:1", "n1", "b0", "other"), ""),  # of an earlier life
        (Candidate("a:1", "n2"), "node n2 is registered at this address, but n1 answers there"),
    ],
)
async def test_a_node_must_be_what_its_source_says(candidate: Candidate, said: str) -> None:
    source = Told()
    members = make(source)
    await members.start()
    source.say(candidate)
    (entry,) = members.entries()
    model = node_pb2.ModelSpec(name="m", revision="r1")
    assert entry.refusal(node_pb2.DescribeResponse(node_id="n1", boot_id="b1", model=model)) == said
    await members.close()


async def test_a_source_that_loses_most_nodes_at_once_is_not_believed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER", 0.05)
    source = Told()
    members = make(source)
    await members.start()
    nodes = [Candidate(f"10.0.0.{i}:1") for i in range(4)]
    source.say(*nodes)
    source.say(*nodes[:3])
    await until(lambda: members.known == 3, "one that leaves alone goes")
    source.say()
    await asyncio.sleep(3 * module._SWEEP_EVERY)
    assert members.known == 3
    monkeypatch.setattr(module, "LINGER_SUDDEN", 0.05)
    await until(lambda: members.known == 0, "in the end they go too")
    await members.close()
