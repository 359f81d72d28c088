"""What nodes tell later of what they were sent: true counts, then evictions."""

from __future__ import annotations

import random
from typing import Any

import pytest

from router_node.dispatch import BLOCK_BYTES, Ask, Evicted, Report, Usage, hash_blocks
from router_node.dispatch.sent import AWAITED, Sent
from tests.unit.dispatch.support import MODEL, Bed

TEXT = random.Random(3).randbytes(16 * BLOCK_BYTES)


def told(bed: Bed, node: str, *usages: Usage) -> None:
    bed.report(node, usages=usages)


def learned(bed: Bed) -> Any:
    return bed.dispatcher.resolve(MODEL)[0].learned


def test_the_ratio_of_bytes_to_tokens_follows_the_counts_in_reports() -> None:
    bed = Bed()
    bed.node("a")
    for _ in range(120):
        got = bed.reserve(prompt_bytes=3000)
        got.end()
        told(bed, "a", Usage(got.id.decode(), 1500, 0))
    assert learned(bed).bytes_per_token == pytest.approx(2.0, rel=0.02)
    # And so a prompt is expected to be as long as it is.
    assert bed.reserve(prompt_bytes=3000).prompt_tokens == pytest.approx(1500, rel=0.02)


def test_a_cache_that_does_not_hold_what_was_expected_is_trusted_less() -> None:
    bed = Bed()
    node = bed.node("a")
    blocks = hash_blocks(TEXT)
    bed.reserve(prefix=blocks, prompt_bytes=len(TEXT)).end()
    for _ in range(40):
        got = bed.reserve(prefix=blocks, prompt_bytes=len(TEXT))
        got.end()
        told(bed, "a", Usage(got.id.decode(), 2048, 0))
    assert node.trust < 0.1
    for _ in range(40):
        got = bed.reserve(prefix=blocks, prompt_bytes=len(TEXT))
        got.end()
        told(bed, "a", Usage(got.id.decode(), 2048, 2048))
    assert node.trust > 0.9


def test_counts_are_believed_once_and_only_from_the_node_that_was_sent_the_request() -> None:
    bed = Bed()
    bed.nodes(2)
    got = bed.reserve(prompt_bytes=4000)
    other = "n1" if got.node.id == "n0" else "n0"
    before = learned(bed).bytes_per_token
    told(bed, other, Usage(got.id.decode(), 4000, 0))
    assert learned(bed).bytes_per_token == before
    again = bed.reserve(prompt_bytes=4000)
    told(bed, again.node.id, Usage(again.id.decode(), 2000, 0), Usage(again.id.decode(), 2000, 0))
    once = learned(bed).bytes_per_token
    assert once == pytest.approx(before + (2.0 - before) * 0.05)
    told(bed, again.node.id, Usage(again.id.decode(), 2000, 0), Usage("nobody-1", 1, 1), Usage("é", 1, 0))
    assert learned(bed).bytes_per_token == once


def test_counts_of_a_late_report_still_teach() -> None:
    bed = Bed()
    bed.node("a")
    got = bed.reserve(prompt_bytes=4000)
    before = learned(bed).bytes_per_token
    bed.dispatcher.on_report("a", Report(0, "boot", 16_384, 16_384, usages=[Usage(got.id.decode(), 4000, 0)]))
    assert learned(bed).bytes_per_token < before


def test_a_refused_request_is_not_waited_for() -> None:
    bed = Bed()
    bed.node("a")
    got = bed.reserve(prompt_bytes=4000)
    bed.dispatcher.on_refused(got, 0.1)
    before = learned(bed).bytes_per_token
    told(bed, "a", Usage(got.id.decode(), 4000, 0))
    assert learned(bed).bytes_per_token == before


def test_what_is_remembered_is_bounded_and_the_latest_is() -> None:
    bed = Bed()
    bed.node("a", capacity=1 << 30)
    sent = Sent()
    made = []
    for _ in range(3 * AWAITED):
        made.append(bed.reserve(prompt_bytes=400))
        made[-1].end()
        sent.granted(made[-1])
        assert len(sent) <= AWAITED
    before = learned(bed).bytes_per_token
    sent.used(made[-1].node, [Usage(made[0].id.decode(), 400, 0)])
    assert learned(bed).bytes_per_token == before
    sent.used(made[-1].node, [Usage(made[-1].id.decode(), 400, 0)])
    assert learned(bed).bytes_per_token < before


def ask_for(blocks: tuple[int, ...]) -> Ask:

    return Ask(MODEL, prefix=blocks, prompt_bytes=len(TEXT), max_new_tokens=60)


def evict(bed: Bed, kept: int, **spec: Any) -> tuple[tuple[int, ...], int]:
    """A prompt of 16 blocks and 4,096 tokens, of which ``kept`` tokens are still there; what is then computed anew."""
    blocks = hash_blocks(TEXT)
    got = bed.reserve(prefix=blocks, prompt_bytes=len(TEXT))
    got.end()
    told(bed, "a", Usage(got.id.decode(), 4096, 0))
    learned(bed).bytes_per_token, learned(bed).block_tokens = 2.0, 256.0
    bed.report("a", evictions=[Evicted(got.id.decode(), kept)], **spec)
    (first,) = bed.dispatcher.explain(ask_for(blocks)).candidates
    return blocks, first.uncached_prompt_tokens


def test_evicted_blocks_are_no_longer_expected_there() -> None:
    bed = Bed()
    bed.node("a", tells_evictions=True)
    _, uncached = evict(bed, kept=1100)  # four of sixteen blocks, and a bit
    assert uncached == pytest.approx(4096 - 4 * 256, abs=2)


def test_all_may_be_evicted() -> None:
    bed = Bed()
    bed.node("a", tells_evictions=True)
    assert evict(bed, kept=0)[1] >= 4096


def test_a_node_that_tells_no_evictions_costs_no_memory_of_prompts() -> None:
    bed = Bed()
    bed.node("a")
    assert evict(bed, kept=0)[1] <= 2


def test_an_eviction_of_another_process_is_nothing() -> None:
    bed = Bed()
    bed.node("a", tells_evictions=True)
    blocks = hash_blocks(TEXT)
    got = bed.reserve(prefix=blocks, prompt_bytes=len(TEXT))
    got.end()
    told(bed, "a", Usage(got.id.decode(), 4096, 0))
    bed.report("a", boot_id="another", full=True)
    bed.reserve(prefix=blocks, prompt_bytes=len(TEXT)).end()  # the new process holds it now
    learned(bed).bytes_per_token, learned(bed).block_tokens = 2.0, 256.0
    bed.report("a", boot_id="another", evictions=[Evicted(got.id.decode(), 0)])
    (first,) = bed.dispatcher.explain(ask_for(blocks)).candidates
    assert first.uncached_prompt_tokens <= 2


def test_another_node_keeps_what_it_holds() -> None:
    bed = Bed()
    bed.node("a", tells_evictions=True)
    evict(bed, kept=0)
    bed.node("b", tells_evictions=True)
    blocks = hash_blocks(TEXT)
    got = bed.dispatcher.retry(bed.reserve(prefix=blocks, prompt_bytes=len(TEXT)), {"a"})
    assert got is not None and got.node.id == "b"
    bed.report("a", evictions=[Evicted(got.id.decode(), 0)])
    assert bed.dispatcher.explain(ask_for(blocks)).node_id in ("a", "b")
    assert bed.reserve(prefix=blocks, prompt_bytes=len(TEXT)).expected_cached > 0
