"""The time limits of a request, by phase, and what a client is told when one is over.

======================  ===================================  =======================================
phase                   from, to                             set by
======================  ===================================  =======================================
``connect``             a node chosen, a connection to it    ``router.connect_timeout``
``admission``           arrival, a node with room            ``router.timeout_ms``
``first_token``         sent to a node, its first token      ``router.deadlines.first_token``
``between_tokens``      one token, the next                  ``router.deadlines.between_tokens``
``total``               arrival, the end                     ``router.deadlines.total``, the client's
======================  ===================================  =======================================

The client's own limit (``grpc-timeout``, or ``laya-timeout-ms`` over HTTP) can only shorten the last. An answer that
comes whole has neither of the two before it. Nothing is noted for a token: a stream is looked at four times in each
limit, and has stood still when so many looks saw no byte come; one whose client does not read is not its node's fault.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from shared.errors import Code, LayaError, invalid

if TYPE_CHECKING:
    from router_node.dispatch import Ask
    from router_node.relay.account import Account

BETWEEN_TOKENS: Final = "between_tokens"  # a phase's name, as errors have it
LOOKS: Final = 4  # without a byte, and a stream has stood still
_LONGEST: Final = 9  # digits of a limit in milliseconds


def begin(account: Account, ask: Ask, now: float) -> float:
    """A node has been sent the request, and streams its answer. Returns when to look first; inf for never."""
    settings = account.core.settings
    account.first_by = now + settings.first_token if settings.first_token else math.inf
    account.seen = account.idle = 0
    return _next(account, ask, now, True)


def overdue(account: Account, ask: Ask, moved: int, held_up: bool, now: float) -> LayaError | None:
    """The time that was last returned, or noted in ``look_at``, has come: the error, or None and a new ``look_at``.

    ``moved`` are the bytes that the node has answered so far; ``held_up`` says that the client has not taken them.
    """
    if ask.deadline is not None and now >= ask.deadline:
        return total(account, moved)
    if not moved and now >= account.first_by:
        limit = account.core.settings.first_token
        return _expired(account, "first_token", limit, f"sent no first token within {limit:g} s", not moved)
    if moved and account.first_by and account.core.settings.between_tokens:
        if moved != account.seen or held_up:
            account.seen = moved
            account.idle = 0
        else:
            account.idle += 1
            if account.idle >= LOOKS:
                limit = account.core.settings.between_tokens
                return _expired(account, BETWEEN_TOKENS, limit, f"sent no further token for {limit:g} s", False)
    account.look_at = _next(account, ask, now, not moved)
    return None


def total(account: Account, moved: int) -> LayaError:
    """The whole time is over, be it the client's, the route's or the router's own."""
    during = "admission" if account.ticket is not None else "between_tokens" if moved else "first_token"
    whose, plan, limit = "call's deadline", account.plan, account.limit
    if plan is not None and plan.timeout and (not limit or plan.timeout < limit):
        limit = plan.timeout
        whose = f"time limit of route {plan.route.name!r}"
    elif limit == account.core.settings.total:
        whose = "router's time limit"
    account.core.metrics.count("deadline_total")
    account.node_blameless()
    return LayaError(
        Code.DEADLINE_EXCEEDED,
        "DEADLINE",
        f"The {whose} of {limit:.3g} s passed before the answer was complete.",
        metadata=_said("total", during, limit, account.node_id),
    )


def no_message(limit: float) -> LayaError:
    """The first message of a call that must be read did not come within ``limit`` seconds."""
    what = f"The first message did not arrive within {limit:g} s: send it with the call."
    return LayaError(Code.DEADLINE_EXCEEDED, "DEADLINE", what, metadata={"phase": "request"})


def longest(account: Account, asked: float) -> float:
    """Seconds for the whole request: the client's ``asked``, or the router's own where shorter; inf for none."""
    most = account.core.settings.total
    account.limit = out = most if most and most < asked else asked
    return out


def client_limit(value: bytes) -> float:
    """Seconds of a ``laya-timeout-ms`` header. Raises LayaError INVALID_ARGUMENT."""
    if value.isdigit() and len(value) <= _LONGEST and int(value) > 0:
        return int(value) / 1000.0
    raise invalid("laya-timeout-ms must be a whole number of milliseconds, 1 or more.", "laya-timeout-ms")


def _next(account: Account, ask: Ask, now: float, waiting: bool) -> float:
    between = account.core.settings.between_tokens
    when = ask.deadline if ask.deadline is not None else math.inf
    if between and account.first_by:
        when = min(when, now + between / LOOKS)
    return min(when, account.first_by) if waiting and account.first_by else when


def _expired(account: Account, phase: str, limit: float, what: str, retry_safe: bool) -> LayaError:
    account.core.metrics.count(f"deadline_{phase}")
    account.node_failed()
    said = _said(phase, phase, limit, account.node_id)
    said["retry_safe"] = "true" if retry_safe else "false"
    return LayaError(
        Code.DEADLINE_EXCEEDED, "DEADLINE", f"Node {account.node_id} {what} (router.deadlines.{phase}).", metadata=said
    )


def _said(phase: str, during: str, limit: float, node: str) -> dict[str, str]:
    out = {"phase": phase, "during": during, "limit_seconds": f"{limit:.3g}"}
    if node:
        out["node"] = node
    return out
