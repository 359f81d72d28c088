"""What a report does to the router's view of a node. Nothing a node says can break that view.

Order within one watch is by ``sequence``; a new watch begins with a full report. A report that comes late gives its
dispatch ids (they were counted, and later numbers include them) but not its numbers. A number that makes no sense is
left out, and the one before stays.
"""

from __future__ import annotations

import math
from typing import Final

from router_node.dispatch import reservations
from router_node.dispatch.told import ReportLike, Verdict
from router_node.dispatch.types import UNLIMITED, NodeState

MAX_TOKENS: Final = 1 << 40
"""No node holds or queues more tokens than this; a larger number is an error of the node."""
MAX_RATE: Final = 1e8
"""No node prefills or decodes faster than this, in tokens a second."""

_RATE_GAIN: Final = 0.3
_BOOTS_KEPT: Final = 8


def watch_reset(node: NodeState) -> None:
    """A new watch of ``node`` begins: sequences start anew, with a full report."""
    node.sequence = -1
    node.awaiting_full = True


def apply(node: NodeState, report: ReportLike, now: float) -> tuple[Verdict, bool]:
    """Take in a report at ``now``. Returns the verdict, and whether the node is another process than before."""
    boot = report.boot_id
    reborn = False
    if boot != node.boot_id:
        if boot in node.past_boots:
            return Verdict.STALE, False
        if not report.full:
            return Verdict.WAITING_FULL, False
        if node.boot_id:
            node.past_boots = (*node.past_boots[1 - _BOOTS_KEPT :], node.boot_id)
            reborn = True
        node.boot_id = boot
        watch_reset(node)
    if node.awaiting_full:
        if not report.full:
            return Verdict.WAITING_FULL, reborn
        verdict = Verdict.ACCEPTED
        node.awaiting_full = False
    elif report.sequence <= node.sequence:
        reservations.count(node, report.counted_dispatches)
        return Verdict.STALE, reborn
    else:
        whole = report.full or report.sequence == node.sequence + 1
        verdict = Verdict.ACCEPTED if whole else Verdict.GAP
    node.sequence = report.sequence
    if node.uncounted and reservations.count(node, report.counted_dispatches):
        node.refusals = 0  # it takes what it is sent
    _numbers(node, report, now)
    return verdict, reborn


def _numbers(node: NodeState, report: ReportLike, now: float) -> None:
    bad = False
    capacity = report.kv_capacity_tokens
    headroom = report.headroom_tokens
    if _count(capacity) and capacity >= node.block and _count(headroom):
        capacity -= capacity % node.block
        if headroom > capacity:
            bad = headroom > report.kv_capacity_tokens
            headroom = capacity
        node.capacity = capacity
        node.headroom = headroom
    else:
        bad = True
    if _count(report.queued_prefill_tokens):
        node.queued = report.queued_prefill_tokens
    else:
        bad = True
    if _count(report.running) and _count(report.waiting):
        node.running = report.running
        node.waiting = report.waiting
        seats = node.spec.max_num_seqs
        # One in eight more than can run, so that a sequence that ends is followed at once, not after the next report.
        node.seats = seats + (seats + 7) // 8 - node.running - node.waiting if seats else UNLIMITED
    else:
        bad = True
    rate = report.prefill_tokens_per_second
    if _rate(rate):
        if rate > 0:
            node.prefill_rate += (rate - node.prefill_rate) * (_RATE_GAIN if node.prefill_rate else 1.0)
    else:
        bad = True
    if _rate(report.decode_tokens_per_second):
        node.decode_rate = report.decode_tokens_per_second
    else:
        bad = True
    if 0.0 <= report.prefix_hit_rate <= 1.0:
        node.hit_rate = report.prefix_hit_rate
    else:
        bad = True
    node.draining = report.draining
    node.ready = report.ready
    node.closed_reason = report.closed_reason
    if node.capacity > 0:
        node.reported_at = now
    if bad:
        node.bad_reports += 1


def _count(value: float) -> bool:
    # Also false for NaN.
    return 0 <= value <= MAX_TOKENS


def _rate(value: float) -> bool:
    return not math.isnan(value) and 0.0 <= value <= MAX_RATE
