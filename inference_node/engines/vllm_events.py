"""Follows vLLM's KV cache events: which request put a block into the prefix cache, and when it leaves it.

The engine core publishes them on a Unix socket in a folder that only this user can enter. A request's session id, as
vLLM calls it, is the router's dispatch id; so what was evicted can be told to the router that had sent it there.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from inference_node.memory.cached import CachedPrompts
from shared import logging as logs

_KEEPS_ALL = ("full_attention", "mla_attention", "sink_full_attention")
_HIGH_WATER = 10_000  # batches that may wait to be read
_MAX_PATH = 80  # bytes of the folder: a Unix socket's path holds 107

log = logs.get("engine")


class BlockStored(msgspec.Struct, tag=True):
    """vLLM's event of this name; what is of no use here is not read."""

    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    block_size: int
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    session_id: str | None = None


class BlockRemoved(msgspec.Struct, tag=True):
    """vLLM's event of this name."""

    block_hashes: list[bytes | int]
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    """vLLM's event of this name."""


class Batch(msgspec.Struct, array_like=True):
    """The events of one step."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


class CacheEvents:
    """One engine's events, from the socket to ``CachedPrompts``. ``close`` it."""

    def __init__(self, given: Mapping[str, Any] | None) -> None:
        """``given`` is the user's own ``kv_events_config``; without one, a socket is made up."""
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if given is None:
            self._folder = _folder()
            given = {"enable_kv_cache_events": True, "endpoint": f"ipc://{self._folder.name}/events.sock"}
        self.config: dict[str, Any] = dict(given)
        self.prompts: CachedPrompts | None = None
        self._group: int | None = None  # the group of layers that keep everything
        self._next = 0  # number of the next batch
        self._task: asyncio.Task[None] | None = None

    def follow(self, evicted: Callable[[str, int], None], blocks: int) -> None:
        """Begin to listen. ``blocks`` is the size of the engine's pool."""
        self.prompts = CachedPrompts(evicted, 2 * blocks + 1024)
        self._task = asyncio.get_running_loop().create_task(self._listen(), name="kv-events")

    async def close(self) -> None:
        """Stop listening and remove the socket."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._folder is not None:
            self._folder.cleanup()

    async def _listen(self) -> None:
        import zmq
        import zmq.asyncio

        decoder = msgspec.msgpack.Decoder(Batch)
        with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as socket:
            socket.set_hwm(_HIGH_WATER)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt_string(zmq.SUBSCRIBE, str(self.config.get("topic", "")))
            socket.connect(self.config["endpoint"])
            told = False
            while True:
                _topic, number, payload = await socket.recv_multipart()
                try:
                    self.batch(int.from_bytes(number, "big"), decoder.decode(payload))
                except (msgspec.MsgspecError, ValueError) as e:
                    if not told:  # another version of vLLM says it in another way
                        told = True
                        logs.event(log, logging.WARNING, "kv_events_unreadable", why=str(e)[:200])

    def batch(self, number: int, batch: Batch) -> None:
        """Take in the events of one step. A step that was missed makes all that is known doubtful."""
        prompts = self.prompts
        if prompts is None:
            return
        if number != self._next:
            prompts.forget()
        self._next = number + 1
        for event in batch.events:
            if isinstance(event, BlockStored):
                if self._mine(event):
                    owner = event.session_id or ""
                    prompts.stored(event.block_hashes, event.parent_block_hash, event.block_size, owner)
            elif isinstance(event, BlockRemoved):
                if self._group is not None and (event.group_idx or 0) == self._group:
                    prompts.removed(event.block_hashes)
            else:
                prompts.cleared()

    def _mine(self, event: BlockStored) -> bool:
        """Whether it is about the layers that keep everything: the first such group. Windows lose blocks anyway."""
        group = event.group_idx or 0
        if self._group is None and (event.kv_cache_spec_kind or "full_attention") in _KEEPS_ALL:
            self._group = group
        return group == self._group


def _folder() -> tempfile.TemporaryDirectory[str]:
    made = tempfile.TemporaryDirectory(prefix="laya-kv-", ignore_cleanup_errors=True)
    if len(made.name.encode()) <= _MAX_PATH:
        return made
    made.cleanup()
    return tempfile.TemporaryDirectory(prefix="laya-kv-", dir="/tmp", ignore_cleanup_errors=True)
