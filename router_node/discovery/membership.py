"""Which nodes there are: the sources' views merged, one link for each address.

Sources propose, links dispose. An address that any source names has a link. When the last source stops naming it, the
link stays for as long as the node can be reached, because a store that was emptied, or a node that cannot reach the
store, is no reason to refuse requests that the node would serve; a node that means to leave says so in its reports
(``draining``) and then ends. A link that goes is drained: no new request, and those in flight finish.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from router_node.discovery.base import Candidate, Snapshot, Source
from router_node.discovery.link import Link, LinkOwner, PoolMaker
from router_node.dispatch import Dispatcher, KvGroup, NodeSpec, Verdict
from shared.logging import event, get
from shared.pb.laya.v1 import node_pb2

log = get("discovery")

MAX_GROUPS: Final = 64  # kinds of layers of one model
LINGER: Final = 5.0  # seconds that a node which no source names and which cannot be reached is kept
LINGER_SUDDEN: Final = 60.0  # the same where a source lost most of its nodes at once: it may well be wrong
FLOOR: Final = 3  # nodes of a source from which on that is looked at
_SWEEP_EVERY: Final = 0.5

_LEVELS: Final = {"mismatch": logging.ERROR, "dark": logging.WARNING, "starting": logging.DEBUG}


class Entry:
    """One address: its link, who names it, and since when nobody does (``time.monotonic``; 0 while somebody does)."""

    __slots__ = ("joined_at", "link", "orphaned_at", "shown", "sources", "suddenly")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.joined_at = time.monotonic()
        self.sources: dict[str, list[Candidate]] = {}
        self.orphaned_at = 0.0
        self.suddenly = False  # it was no longer named together with most of the others
        self.shown = ""  # state that was last logged

    @property
    def named_id(self) -> str:
        """The id that a source gave for the address, or ""."""
        return min((c.node_id for some in self.sources.values() for c in some if c.node_id), default="")

    def refusal(self, what: node_pb2.DescribeResponse) -> str:
        """Why a node that describes itself so is not the one that the sources mean, or ""."""
        named = [candidate for some in self.sources.values() for candidate in some]
        for candidate in named:
            if candidate.node_id:
                continue  # its model is that of one boot, see below
            for what_kind, wanted, found in (
                ("model", candidate.model, what.model.name),
                ("revision", candidate.revision, what.model.revision),
            ):
                if wanted and wanted != found:
                    return f"{what_kind} {wanted} is wanted of the nodes here, but {found or 'none'} is served"
        if not named or any(not candidate.node_id for candidate in named):
            return ""
        same = [candidate for candidate in named if candidate.node_id == what.node_id]
        if not same:
            wanted = " or ".join(sorted({candidate.node_id for candidate in named}))
            return f"node {wanted} is registered at this address, but {what.node_id} answers there"
        for candidate in same:
            if candidate.boot_id == what.boot_id and candidate.model and candidate.model != what.model.name:
                return f"the node registered model {candidate.model} but serves {what.model.name}"
            if candidate.boot_id == what.boot_id and candidate.revision not in ("", what.model.revision):
                return f"the node registered revision {candidate.revision} but serves {what.model.revision or 'none'}"
        return ""


class Membership(LinkOwner):
    """Owns sources and links, and keeps the dispatcher's nodes in step with them.

    ``drain`` is how long, in seconds, a link that goes may take to finish its requests. ``on_change`` is called after
    a node's state changed, joined or left.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        sources: Sequence[Source],
        make_pool: PoolMaker,
        *,
        watcher_id: str,
        token: str,
        drain: float,
    ) -> None:
        self.sources = sources
        self.on_change: list[Callable[[], None]] = []
        self._dispatcher = dispatcher
        self._make_pool = make_pool
        self._watcher_id = watcher_id
        self._token = token
        self._drain = drain
        self._entries: dict[str, Entry] = {}
        self._owners: dict[str, Link] = {}  # the link whose node the dispatcher knows under an id
        self._leaving: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._closing = False
        self._viewed: set[str] = set()  # sources that have said something

    async def start(self) -> None:
        """Start every source; their first views may come later."""
        self._sweeper = asyncio.create_task(self._sweep(), name="membership-sweep")
        for source in self.sources:
            await source.start(self._publisher(source))

    async def close(self, grace: float = 0.0) -> None:
        """Stop looking, then close every link within about ``grace`` seconds."""
        self._closing = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        await asyncio.gather(*(source.close() for source in self.sources), return_exceptions=True)
        await asyncio.gather(*(e.link.close(grace) for e in self._entries.values()), return_exceptions=True)
        for task in self._leaving:
            task.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def entries(self) -> Iterable[Entry]:
        """All addresses, by node id and address."""
        return sorted(self._entries.values(), key=lambda entry: (entry.link.node_id, entry.link.address))

    @property
    def known(self) -> int:
        """How many addresses there are."""
        return len(self._entries)

    @property
    def settled(self) -> bool:
        """Every source has spoken, and of every node it is known how it is, or that it cannot be reached."""
        if any(source.name not in self._viewed for source in self.sources):
            return False
        links = [entry.link for entry in self._entries.values()]
        return all(link.report is not None or link.state == "mismatch" or link.pool.last_error for link in links)

    def owner(self, node_id: str) -> Link | None:
        """The link behind a node that the dispatcher knows."""
        return self._owners.get(node_id)

    # What sources say

    def _publisher(self, source: Source) -> Callable[[Snapshot], None]:
        return lambda view: self._take(source.name, view)

    def _take(self, source: str, view: Snapshot) -> None:
        """Replace what a source says."""
        self._viewed.add(source)
        named: dict[str, list[Candidate]] = {}
        for candidate in view:
            named.setdefault(candidate.address, []).append(candidate)
        for address, candidates in named.items():
            entry = self._entries.get(address) or self._join(address, source)
            entry.orphaned_at = 0.0
            if entry.sources.get(source) != candidates:
                entry.sources[source] = candidates
                entry.link.recheck()
        known = [address for address, entry in self._entries.items() if source in entry.sources]
        lost = [address for address in known if address not in named]
        suddenly = len(known) >= FLOOR and len(lost) > len(known) / 2
        if suddenly:
            event(log, logging.WARNING, "source_shrank", source=source, lost=len(lost), of=len(known))
        for address in lost:
            entry = self._entries[address]
            del entry.sources[source]
            if not entry.sources:
                entry.orphaned_at = time.monotonic()
                entry.suddenly = suddenly
        self._remove_orphans()

    def _join(self, address: str, source: str) -> Entry:
        entry = self._entries[address] = Entry(
            Link(address, self, self._make_pool, watcher_id=self._watcher_id, token=self._token)
        )
        event(log, logging.INFO, "node_joined", address=address, source=source)
        entry.link.start()
        return entry

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_EVERY)
            self._remove_orphans()
            self._report_unreachable()

    def _report_unreachable(self) -> None:
        """A node that was never reached changes no state, so nothing else would speak of it."""
        late = time.monotonic() - LINGER
        for entry in self._entries.values():
            if not entry.shown and entry.joined_at < late:
                entry.shown = "dark"
                event(log, logging.WARNING, "node_dark", address=entry.link.address, **_said(entry.link))

    def _remove_orphans(self) -> None:
        now = time.monotonic()
        for entry in [e for e in self._entries.values() if e.orphaned_at]:
            link = entry.link
            if link.state == "mismatch" or (not link.connected and now - entry.orphaned_at > self._linger(entry)):
                self._leave(entry)

    def _linger(self, entry: Entry) -> float:
        if entry.shown in ("draining", "gone") or self._moved(entry.link):
            return 0.0
        return LINGER_SUDDEN if entry.suddenly else LINGER

    def _moved(self, link: Link) -> bool:
        """Whether the node was started again and serves at another address."""
        return self._owners.get(link.node_id, link) is not link

    def _leave(self, entry: Entry) -> None:
        link = entry.link
        del self._entries[link.address]
        self._disown(link)
        event(log, logging.INFO, "node_left", node=link.node_id, address=link.address)
        task = asyncio.create_task(link.close(self._drain), name=f"leave-{link.address}")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        self._changed()

    def _disown(self, link: Link) -> None:
        for node_id in [node_id for node_id, owner in self._owners.items() if owner is link]:
            del self._owners[node_id]
            self._dispatcher.remove_node(node_id)

    # What links say

    def link_described(self, link: Link, what: node_pb2.DescribeResponse) -> str:
        entry = self._entries.get(link.address)
        if entry is None or entry.link is not link:
            return "the node has left"
        node_id = what.node_id
        why = entry.refusal(what) or self._taken(link, node_id, what.boot_id)
        if why:
            self._disown(link)
            return why
        if self._owners.get(node_id) is not link:
            self._disown(link)  # another node answers at this address now
            self._owners[node_id] = link
            self._remove_orphans()  # where the node was before
        node = self._dispatcher.add_node(node_id, link.address, _spec(what))
        node.upstream = link.pool
        self._dispatcher.set_link(node_id, True)
        self._dispatcher.on_watch_reset(node_id)
        return ""

    def _taken(self, link: Link, node_id: str, boot_id: str) -> str:
        """Why another link keeps the node's id, or "". One that is dark, draining or unnamed gives it up."""
        other = self._owners.get(node_id)
        if other is None or other is link:
            return ""
        entry = self._entries.get(other.address)
        if entry is not None and entry.sources and other.connected and other.state != "draining":
            if other.what is not None and other.what.boot_id == boot_id:
                return f"this is node {node_id}, which is linked at {other.address} already"
            return f"node id {node_id} is already in use at {other.address}; give each node an id of its own"
        self._disown(other)
        return ""

    def link_report(self, link: Link, report: node_pb2.WatchResponse) -> bool:
        if self._owners.get(link.node_id) is not link:
            return False
        return self._dispatcher.on_report(link.node_id, report) not in (Verdict.GAP, Verdict.WAITING_FULL)

    def link_watch_ended(self, link: Link) -> None:
        if self._owners.get(link.node_id) is link:
            self._dispatcher.on_watch_reset(link.node_id)

    def link_health(self, link: Link, serving: bool) -> None:
        if self._owners.get(link.node_id) is link:
            self._dispatcher.set_serving(link.node_id, serving)

    def link_down(self, link: Link) -> None:
        if self._owners.get(link.node_id) is link:
            self._dispatcher.set_link(link.node_id, False)
        for source in self.sources:
            source.look_now()

    def link_changed(self, link: Link) -> None:
        entry = self._entries.get(link.address)
        if entry is None or entry.link is not link or self._closing:
            return
        if link.state != entry.shown and not (link.state == "dark" and entry.shown == ""):
            level = _LEVELS.get(link.state, logging.INFO)
            event(log, level, f"node_{link.state}", node=link.node_id, address=link.address, **_said(link))
        # A node that was draining when it was lost is gone; it is not waited for.
        entry.shown = "gone" if link.state == "dark" and entry.shown in ("draining", "gone") else link.state
        self._changed()

    def _changed(self) -> None:
        for callback in self.on_change:
            callback()


def _said(link: Link) -> dict[str, str]:
    if link.state == "ready" and link.what is not None:
        return {"model": link.what.model.name, "engine": link.what.model.engine}
    return {"detail": link.trouble} if link.trouble else {}


def _spec(what: node_pb2.DescribeResponse) -> NodeSpec:
    model = what.model
    return NodeSpec(
        model.name,
        aliases=tuple(model.aliases),
        revision=model.revision,
        max_seq_len=model.max_seq_len,
        kv_capacity_tokens=what.kv_capacity_tokens,
        kv_block_tokens=what.kv_block_tokens,
        max_num_seqs=what.max_num_seqs,
        default_max_tokens=what.default_max_tokens,
        boot_id=what.boot_id,
        quantization=model.quantization,
        engine=model.engine,
        kv_groups=[
            KvGroup(group.copies, group.block_tokens, group.most_blocks, group.extra_blocks)
            for group in what.kv_groups[:MAX_GROUPS]
        ],
        tells_evictions=what.tells_evictions,
    )
