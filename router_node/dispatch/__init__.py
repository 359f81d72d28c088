"""Which node should run this request? Pure functions over plain data: no I/O, no event loop, no protobuf.

``Dispatcher`` is the whole of what the router calls; the other modules serve it.
"""

from router_node.dispatch.dispatcher import Dispatcher
from router_node.dispatch.explain import CandidateTerms, Explanation
from router_node.dispatch.kv import KvGroup
from router_node.dispatch.pool import Pool
from router_node.dispatch.prefix import BLOCK_BYTES, MAX_BLOCKS, hash_blocks
from router_node.dispatch.queue import Ticket
from router_node.dispatch.registry import ModelInfo
from router_node.dispatch.reservations import Reservation
from router_node.dispatch.settings import DispatchSettings
from router_node.dispatch.told import Evicted, Report, ReportLike, Usage, Verdict
from router_node.dispatch.types import Ask, NodeSpec, NodeState

__all__ = [
    "BLOCK_BYTES",
    "MAX_BLOCKS",
    "Ask",
    "CandidateTerms",
    "DispatchSettings",
    "Dispatcher",
    "Evicted",
    "Explanation",
    "KvGroup",
    "ModelInfo",
    "NodeSpec",
    "NodeState",
    "Pool",
    "Report",
    "ReportLike",
    "Reservation",
    "Ticket",
    "Usage",
    "Verdict",
    "hash_blocks",
]
