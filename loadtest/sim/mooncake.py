"""Reads traces in Mooncake's format: JSON lines of timestamp (ms), input_length, output_length and hash_ids.

A hash id stands for 512 tokens of prompt and all the text before them; the last one of a request may be of fewer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from loadtest.sim.jobs import Job, Trace
from loadtest.sim.traces import fit, work_of

BLOCK_TOKENS = 512
_MAX_TOKENS = 1 << 24


class BadTrace(ValueError):
    """A line that is no request; the message names file, line and what is wrong."""


def read(path: Path, count: int, nodes: int, load: float, longest: int, asked_ratio: float = 1.5) -> Trace:
    """The first ``count`` requests of a file. With a ``load`` the times between them are stretched or shrunk to it.

    Requests longer than ``longest`` are cut to it. Raises BadTrace or OSError.
    """
    rows = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for row in parse(lines, path.name):
            rows.append(row)
            if len(rows) == count:
                break
    if not rows:
        raise BadTrace(f"{path.name}: there is no request in it")
    first, last = rows[0][0], rows[-1][0]
    stretch = 1.0
    if load > 0.0 and last > first:
        work = sum(work_of(*fit(prompt, output, output, longest)[:2]) for _, prompt, output, _ in rows)
        stretch = work / (load * nodes) / (last - first)
    return Trace(
        path.stem, BLOCK_TOKENS, len(rows), (last - first) * stretch, _jobs(rows, first, stretch, longest, asked_ratio)
    )


def parsed(text: str) -> Any:
    """JSON that somebody else wrote. Raises ValueError, also for what is nested too deeply to read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


Row = tuple[float, int, int, tuple[int, ...]]
"""Seconds, input tokens, output tokens, hash ids."""


def parse(lines: Iterable[str], name: str) -> Iterator[Row]:
    """The requests of these lines; empty ones are passed over. Raises BadTrace."""
    before = 0.0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        row = row_of(line, where)
        if row[0] < before:
            raise BadTrace(f"{where}: timestamp {row[0] * 1e3:g} is earlier than the one before; sort the file by it")
        before = row[0]
        yield row


def row_of(line: str, where: str) -> Row:
    """The request of one line; ``where`` names it in errors. Raises BadTrace."""
    try:
        row = parsed(line)
    except ValueError as error:
        raise BadTrace(f"{where}: not JSON ({error}); each line must be one object") from None
    if not isinstance(row, dict):
        raise BadTrace(f"{where}: must be an object, not {type(row).__name__}")
    at = row.get("timestamp")
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < 1e15:
        raise BadTrace(f"{where}: timestamp must be milliseconds, 0 or more, not {at!r}")
    prompt = _tokens(row, "input_length", where, 1)
    output = _tokens(row, "output_length", where, 0)
    return at / 1000.0, prompt, output, _hashes(row, prompt, where)


def _tokens(row: dict[str, object], key: str, where: str, least: int) -> int:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MAX_TOKENS:
        raise BadTrace(f"{where}: {key} must be a whole number from {least} to {_MAX_TOKENS}, not {value!r}")
    return value


def _hashes(row: dict[str, object], prompt: int, where: str) -> tuple[int, ...]:
    value = row.get("hash_ids", [])
    if not isinstance(value, list) or any(isinstance(v, bool) or not isinstance(v, int) for v in value):
        raise BadTrace(f"{where}: hash_ids must be a list of whole numbers")
    if any(not 0 <= v < 1 << 62 for v in value):
        raise BadTrace(f"{where}: hash_ids must be 0 or more and below 2**62")
    if len(value) > -(-prompt // BLOCK_TOKENS):
        raise BadTrace(f"{where}: {len(value)} hash_ids are more than the blocks of {BLOCK_TOKENS} in {prompt} tokens")
    return tuple(value)


def _jobs(rows: list[Row], first: float, stretch: float, longest: int, asked_ratio: float) -> Iterator[Job]:
    for number, (at, prompt, output, hashes) in enumerate(rows):
        # max_tokens is not in the format: spread evenly about the ratio, by the request's number.
        spread = 1.0 + 2.0 * (asked_ratio - 1.0) * ((number * 0.618034) % 1.0)
        prompt, output, asked = fit(prompt, max(1, output), max(1, int(output * spread)), longest)
        yield Job(number, (at - first) * stretch, prompt, output, asked, hashes[: prompt // BLOCK_TOKENS], b"")
