"""vLLM's KV events, read from their wire form, and the socket they come by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from inference_node.engines.vllm_events import AllBlocksCleared, Batch, BlockRemoved, BlockStored, CacheEvents
from inference_node.memory.cached import CachedPrompts
from tests.support.ports import until


def stored(*hashes: bytes, parent: bytes | None = None, **how: Any) -> dict[str, Any]:
    """As vLLM writes it, with fields that are not read."""
    event = {"type": "BlockStored", "block_hashes": list(hashes), "parent_block_hash": parent, "block_size": 16}
    return event | {"token_ids": [1] * 16, "lora_id": None, "medium": "GPU", "lora_name": None} | how


def removed(*hashes: bytes, group: int = 0) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", "group_idx": group}


@pytest.fixture
def heard() -> tuple[CacheEvents, list[tuple[str, int]]]:
    told: list[tuple[str, int]] = []
    events = CacheEvents({"enable_kv_cache_events": True, "endpoint": "ipc:///nowhere"})
    events.prompts = CachedPrompts(lambda owner, kept: told.append((owner, kept)), 100)
    return events, told


def take(events: CacheEvents, number: int, *batch: dict[str, Any]) -> None:
    raw = msgspec.msgpack.encode([12.5, list(batch), 0])
    events.batch(number, msgspec.msgpack.decode(raw, type=Batch))


def test_a_request_hears_of_its_evicted_blocks(heard: tuple[CacheEvents, list[tuple[str, int]]]) -> None:
    events, told = heard
    take(events, 0, stored(b"a", b"b", session_id="w-1", group_idx=0, kv_cache_spec_kind="full_attention"))
    take(events, 1, removed(b"b"))
    assert told == [("w-1", 16)]
    take(events, 2, {"type": "AllBlocksCleared"})
    assert told == [("w-1", 16), ("w-1", 0)]


def test_only_the_layers_that_keep_everything_count(heard: tuple[CacheEvents, list[tuple[str, int]]]) -> None:
    events, told = heard
    take(
        events,
        0,
        removed(b"x", group=0),
        stored(b"x", session_id="w-1", group_idx=0, kv_cache_spec_kind="sliding_window"),
        stored(b"a", session_id="w-1", group_idx=1, kv_cache_spec_kind="full_attention"),
        stored(b"a", b"y", session_id="w-1", group_idx=2, kv_cache_spec_kind="full_attention"),
        removed(b"x", group=0),
        removed(b"y", group=2),
    )
    assert not told
    take(events, 1, removed(b"a", group=1))
    assert told == [("w-1", 0)]


def test_a_lost_step_makes_what_is_known_doubtful(heard: tuple[CacheEvents, list[tuple[str, int]]]) -> None:
    events, told = heard
    take(events, 0, stored(b"a", session_id="w-1"))
    take(events, 2, removed(b"a"))
    assert not told
    take(events, 3, stored(b"a", session_id="w-1"), removed(b"a"))
    assert told == [("w-1", 0)]


def test_vllm_s_own_types_are_read() -> None:
    kv_events = pytest.importorskip("vllm.distributed.kv_events")
    own = kv_events.KVEventBatch(
        ts=1.0,
        events=[
            kv_events.BlockStored([b"a"], None, [1, 2], 2, None, "GPU", None, session_id="w-1"),
            kv_events.BlockRemoved([b"a"], "GPU", 0),
            kv_events.AllBlocksCleared(),
        ],
    )
    batch = msgspec.msgpack.decode(msgspec.msgpack.encode(own), type=Batch)
    assert batch.events == [
        BlockStored([b"a"], None, 2, None, None, "w-1"),
        BlockRemoved([b"a"], 0),
        AllBlocksCleared(),
    ]


async def test_events_come_by_a_private_socket_which_is_gone_afterwards() -> None:
    zmq = pytest.importorskip("zmq")
    told: list[tuple[str, int]] = []
    events = CacheEvents(None)
    path = Path(events.config["endpoint"].removeprefix("ipc://"))
    assert path.parent.stat().st_mode & 0o077 == 0
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        publisher.setsockopt(zmq.LINGER, 0)
        publisher.bind(events.config["endpoint"])
        events.follow(lambda owner, kept: told.append((owner, kept)), 10)
        number = 0

        def published() -> bool:
            nonlocal number
            batch = [1.0, [stored(b"a", session_id="w-1"), removed(b"a")], 0]
            publisher.send_multipart([b"", number.to_bytes(8, "big"), b"\xc1"])  # what cannot be read is passed over
            publisher.send_multipart([b"", number.to_bytes(8, "big"), msgspec.msgpack.encode(batch)])
            number += 1
            return bool(told)

        try:
            await until(published, "an eviction is heard")
        finally:
            await events.close()
    assert told[0] == ("w-1", 0)
    assert not path.parent.exists()


async def test_a_long_temporary_folder_does_not_make_a_path_too_long_for_a_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = tmp_path / ("x" * 90)
    far.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(far))
    events = CacheEvents(None)
    assert len(events.config["endpoint"]) < 100
    await events.close()
    assert not list(far.iterdir())
