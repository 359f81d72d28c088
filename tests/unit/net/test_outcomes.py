"""A relayed call comes to the same as a direct one, whatever it is: grpcio on both sides, the network layer between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from loadtest.splice_relay import SpliceRelay
from shared.net.settings import NetSettings
from tests.support.outcomes import CASES, UNLIMITED, Site, failing
from tests.support.ports import until


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site() as made:
        yield made


@pytest.fixture(params=["ngh2", "h2"])
async def relay(request: pytest.FixtureRequest, site: Site) -> AsyncIterator[SpliceRelay]:
    async with SpliceRelay(site.address, NetSettings(engine=request.param)) as made:
        yield made
        assert made.counters.reasons == {}


def channel_to(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=UNLIMITED)


@pytest.mark.parametrize("case", list(CASES))
async def test_a_relayed_call_comes_to_the_same(site: Site, relay: SpliceRelay, case: str):
    ask = CASES[case]
    async with channel_to(site.address) as straight, channel_to(relay.address) as relayed:
        direct = await ask(straight)
        cancelled = site.cancelled
        through = await ask(relayed)
        assert through == direct
        if cancelled:
            await until(lambda: site.cancelled == 2 * cancelled, "the server hears of the cancel as well")
        await until(lambda: relay.pool.streams == 0 and relay.listener.streams == 0, "nothing is left")


async def test_many_at_once_come_to_the_same(site: Site, relay: SpliceRelay):
    quick = [name for name in CASES if "MiB" not in name and name not in ("deadline", "cancel", "a slow reader")]
    async with channel_to(site.address) as straight, channel_to(relay.address) as relayed:
        direct = {name: await CASES[name](straight) for name in quick}
        for _ in range(3):
            through = await asyncio.gather(*(CASES[name](relayed) for name in quick))
            assert dict(zip(quick, through, strict=True)) == direct


async def test_space_at_the_end_of_a_foreign_nodes_message(site: Site, relay: SpliceRelay):
    """grpcio sends it as it is, which HTTP/2 forbids: with one engine the call's real code is lost."""
    ask = failing(5, "boom ")
    async with channel_to(site.address) as straight, channel_to(relay.address) as relayed:
        assert (await ask(straight))["code"] == "NOT_FOUND"
        through = await ask(relayed)
    lost = relay.pool.settings.engine == "ngh2"
    assert through["code"] == ("UNAVAILABLE" if lost else "NOT_FOUND")
