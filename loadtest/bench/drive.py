"""Sends a round when it is due, whatever becomes of it: a server that is slow does not slow the load down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from loadtest.bench.client import Answer, Client
from loadtest.bench.plan import Plan
from loadtest.bench.report import Row
from loadtest.bench.stats import quantile
from loadtest.bench.work import Asked, body
from shared.tasks import cancel_all


@dataclass(slots=True)
class Driven:
    """What a round brought. ``gaps`` are all times between pieces, ``lag`` the p99 of how late requests were sent."""

    rows: list[Row] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    lag: float = 0.0
    seconds: float = 0.0
    """Of the round's planned length, as far as it came."""
    cut: bool = False
    """The deadline came first."""
    interrupted: bool = False


async def drive(client: Client, asked: Sequence[Asked], plan: Plan, model: str, deadline: float) -> Driven:
    """Send a round; ``deadline`` (``time.perf_counter``) ends it early. What is then under way is ``unfinished``.

    A cancellation ends the round early too, and is told by ``interrupted``.
    """
    sent: list[tuple[Asked, asyncio.Task[Answer] | None]] = []
    open_now: set[asyncio.Task[Answer]] = set()
    lags: list[float] = []
    begun = time.perf_counter()
    cut = interrupted = False
    try:
        for one in asked:
            if begun + one.at > deadline:
                cut = True
                break
            await asyncio.sleep(max(0.0, begun + one.at - time.perf_counter()))
            lags.append(time.perf_counter() - begun - one.at)
            if len(open_now) >= plan.most_in_flight:
                sent.append((one, None))
                continue
            task = asyncio.create_task(
                client.ask(
                    body(one, model),
                    due=begun + one.at,
                    limit=plan.patience,
                    session=one.session,
                    cancel_after=one.cancel_after,
                )
            )
            open_now.add(task)
            task.add_done_callback(open_now.discard)
            sent.append((one, task))
        if not cut and time.perf_counter() < begun + plan.seconds:
            cut = begun + plan.seconds > deadline
            await asyncio.sleep(max(0.0, min(begun + plan.seconds, deadline) - time.perf_counter()))
        seconds = min(time.perf_counter() - begun, plan.seconds)
        if open_now:
            _, late = await asyncio.wait(set(open_now), timeout=max(0.0, deadline - time.perf_counter()))
            cut = cut or bool(late)
    except asyncio.CancelledError:  # Ctrl-C: what there is by now is kept
        interrupted = cut = True
        seconds = min(time.perf_counter() - begun, plan.seconds)
    finally:
        await cancel_all([task for _, task in sent if task is not None])
    driven = Driven(lag=quantile(lags, 0.99) if lags else 0.0, seconds=seconds, cut=cut, interrupted=interrupted)
    for one, sending in sent:
        answer = _outcome(sending)
        driven.rows.append(row(one, answer))
        driven.gaps += _gaps(answer)
    return driven


def _outcome(sending: asyncio.Task[Answer] | None) -> Answer:
    if sending is None:
        return Answer(error="not sent")
    return Answer(error="unfinished") if sending.cancelled() else sending.result()


def row(asked: Asked, answer: Answer) -> Row:
    """One request of the report."""
    gaps = _gaps(answer)
    error = answer.error
    if not error and not answer.cancelled and not answer.served:
        error = "the stream ended before its answer did"
    return Row(
        round(asked.at, 6),
        asked.kind,
        answer.status,
        round(answer.first, 6),
        round(answer.total, 6),
        round(sum(gaps) / len(gaps), 6) if gaps else 0.0,
        answer.tokens or len(answer.pieces),
        answer.prompt,
        answer.cached,
        answer.node,
        error,
        answer.cancelled,
    )


def _gaps(answer: Answer) -> list[float]:
    return [b - a for a, b in pairwise(answer.pieces)]
