"""What a request would cost on a node: expected seconds to its first token.

    cost = (pending + reserved + WORK_WEIGHT * uncached) / prefill_rate + step + barrier(k) + corrections

* ``pending``: prompt tokens not yet prefilled, as the node last reported them, less the share that its cache has saved
  it of late (``prefix_hit_rate``): a node learns what a prompt finds in its cache only when it starts it.
* ``reserved``: prompt tokens this router has sent it that no report has counted.
* ``uncached``: tokens of this request's prompt that the node's prefix cache likely lacks. They count twice: who sends
  this request waits for them, and then those who come after it do.
* ``prefill_rate``: tokens a second, as reported; where a node has none, the mean of its pool; else ``DEFAULT_RATE``.
* ``step``: seconds of a decode step with the sequences that run now, for nobody begins in the middle of one: running
  sequences over the decode rate as reported. It also spreads the decoding, and so shortens the time between tokens.
* ``k``: share of the KV capacity in use once the request is in: (capacity - headroom + reserved + its own) / capacity.
* ``barrier``: with x = k / (1 - k), ``BARRIER_LINEAR * x + BARRIER_CUBIC * x**3`` seconds. Smooth, and near
  ``0.03 k`` on an empty node, where it only breaks ties towards the emptier one; 0.03 s at half full, so that a cache
  is not left for an emptier node; 1.7 s at 90 %; 14 s at 95 %; without bound as k -> 1. The cubic part is what keeps
  several routers with old reports off a nearly full node: there, no saving in prefill is worth it.
* corrections: see ``staleness`` and ``penalty``; zero for a node with a fresh report and no recent refusal.
"""

from __future__ import annotations

from math import log2
from typing import Final

from router_node.dispatch.types import NodeState

WORK_WEIGHT: Final = 2.0
"""What a request must compute, in terms of what it must wait for."""
BARRIER_LINEAR: Final = 0.03
"""Seconds per unit of k / (1 - k)."""
BARRIER_CUBIC: Final = 0.002
"""Seconds per unit of (k / (1 - k)) cubed."""
LONGEST_STEP: Final = 0.25
"""Seconds that a decode step counts for at most, whatever rate a node reports."""
DEFAULT_RATE: Final = 2000.0
"""Prefill tokens a second taken for a node when nothing in its pool has reported any."""
STALE_AFTER: Final = 1.5
"""Seconds after which a report counts for less; a healthy node sends one a second at least."""
STALE_SURCHARGE: Final = 0.1
"""Seconds added, at most, to a node whose report is old."""
LEVELS: Final = 384
"""Load levels: 24 octaves from a millisecond, 16 levels each."""

_LEAST_SHARE: Final = 1e-6
_NOMINAL_PROMPT: Final = 512
_FLOOR: Final = 1e-3


def barrier(k: float) -> float:
    """The barrier in seconds for a KV share ``k``; about 1e15 at ``k`` >= 1, where a request only just fits."""
    left = 1.0 - k
    x = k / (left if left > _LEAST_SHARE else _LEAST_SHARE)
    return x * (BARRIER_LINEAR + BARRIER_CUBIC * x * x)


def score(node: NodeState, need: int, uncached: float, now: float) -> float:
    """Cost in seconds of a request that takes ``need`` KV tokens and ``uncached`` prompt tokens on ``node``."""
    k = (node.used + need) / node.capacity
    left = 1.0 - k
    x = k / (left if left > _LEAST_SHARE else _LEAST_SHARE)  # barrier(), without the call
    cost = (
        (node.backlog + WORK_WEIGHT * uncached) * node.inv_rate
        + node.step
        + x * (BARRIER_LINEAR + BARRIER_CUBIC * x * x)
    )
    if node.plain_from <= now <= node.plain_until:
        return cost
    return corrected(node, cost, now)


def corrected(node: NodeState, cost: float, now: float) -> float:
    """``cost`` with the terms that pass with time, in seconds."""
    cost += staleness(node, now) + penalty(node, now)
    return cost if cost > 0.0 else 0.0


def staleness(node: NodeState, now: float) -> float:
    """Seconds to add for an old report, or to take away.

    A report older than ``STALE_AFTER`` counts for less and less: the queue it told of is blended towards the pool's
    mean, so that a silent idle node attracts nothing special and a silent busy one is not shunned for ever; a small
    surcharge prefers those that speak. A pool that is silent as a whole keeps serving.
    """
    age = now - node.reported_at
    if age <= STALE_AFTER or node.pool is None:
        return 0.0
    doubt = 1.0 - STALE_AFTER / age
    return doubt * (node.pool.mean_wait - node.pending * node.inv_rate + STALE_SURCHARGE)


def penalty(node: NodeState, now: float) -> float:
    """Seconds to add for a refusal of late; falls off linearly."""
    if now >= node.penalty_until:
        return 0.0
    return node.penalty * min(1.0, (node.penalty_until - now) / node.penalty_span)


def load_level(node: NodeState, quickest: float) -> int:
    """The bucket of a node by what it would cost whoever comes next: 0 (idle) to LEVELS - 1, 4.4 % a level.

    ``quickest`` is the pool's least seconds per prompt token: a node clearly slower than that carries the difference
    for a prompt of nominal length, so that among idle nodes the fast ones are drawn first.
    """
    rate = node.inv_rate
    k = node.used / node.capacity
    left = 1.0 - k
    x = k / (left if left > _LEAST_SHARE else _LEAST_SHARE)  # barrier(), without the call
    wait = node.backlog * rate + node.step + x * (BARRIER_LINEAR + BARRIER_CUBIC * x * x) + _FLOOR
    slower = rate - 1.1 * quickest
    if slower > 0.0:
        wait += slower * _NOMINAL_PROMPT
    level = int(log2(wait) * 16.0 + 160.0)
    return level if level < LEVELS else LEVELS - 1
