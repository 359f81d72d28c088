"""When and where a request that a node failed is tried again.

Only while no byte of an answer has gone to the client and all of the request is at hand, on a node that was not tried
yet, and within the pool's budget (``router_node.dispatch.budget``); what a node gave back without looking at it costs
none of that. The first time at once, later with back-off and jitter, or when the node said (``grpc-retry-pushback-ms``,
https://github.com/grpc/proposal/blob/master/A6-client-retries.md).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from shared.errors import LayaError
from shared.net.api import Headers

if TYPE_CHECKING:
    from router_node.relay.account import Account

PUSHBACK: Final = b"grpc-retry-pushback-ms"
LONGEST_PUSHBACK: Final = 5.0  # seconds; a client that is to wait longer does so itself
_GIVEN_BACK: Final = frozenset(("DRAINING", "NOT_READY"))


def pushback(headers: Headers) -> float:
    """Seconds that a node wants a retry to wait; negative when it wants none, as for what cannot be read."""
    for name, value in headers:
        if name == PUSHBACK:
            if value.isdigit() and len(value) < 10 and int(value) <= LONGEST_PUSHBACK * 1000:
                return int(value) / 1000.0
            return -1.0
    return 0.0


def is_free(error: LayaError) -> bool:
    """Whether a node gave the request back as it gives back every one: trying another costs no budget."""
    return error.reason in _GIVEN_BACK


def pause(account: Account) -> float:
    """Seconds until the next try of a request that nodes were lost with: none before the first, and none in vain."""
    settings = account.core.settings
    again, last = account.attempts - 2, account.reservation
    if again < 0 or last is None or not account.core.dispatcher.others(last, account.excluded or ()):
        return 0.0
    wait: float = min(settings.retry_backoff * (1 << min(again, 16)), settings.max_retry_backoff)
    return wait * (0.5 + random.random())


def later(account: Account, seconds: float, go: Callable[[], None]) -> None:
    """Call ``go`` in so many seconds, unless the request has ended by then. Its place at the last node is given up."""
    account.release()
    account.paused = account.core.loop.call_later(seconds, go)
