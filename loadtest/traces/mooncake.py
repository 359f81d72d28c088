"""Mooncake's JSON lines as requests: a block id is always the same 512 tokens of text, so prefixes are shared."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from loadtest.sim.mooncake import BadTrace, Row, row_of
from loadtest.traces.items import Clock, Item, Loaded, Notes, Rules, clamp
from loadtest.users.call import Call
from loadtest.users.scenarios import Scenario
from loadtest.users.text import BLOCK_TOKENS, prompt


def items(lines: Iterable[str], name: str, rules: Rules) -> Loaded:
    """The requests of these lines. Raises BadTrace for the first malformed one, unless the rules are lenient."""
    notes = Notes()
    clock = Clock(rules, notes)
    out: list[Item] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if len(out) >= rules.count:
            notes.add("not sent", f"only the first {rules.count} requests are sent (--requests)")
            break
        where = f"{name}, line {number}"
        try:
            row = row_of(line, where)
        except BadTrace as error:
            if not rules.lenient:
                raise BadTrace(f"{error}; mend the file, or pass --lenient to leave such lines out") from None
            notes.add("malformed", f"{error}; left out")
            continue
        out.append(_item(row, clock.at(row[0], where), where, rules, notes, number))
    if not out:
        raise BadTrace(f"{name}: there is no request in it")
    return Loaded(name, "mooncake", out, notes)


def _item(row: Row, at: float, where: str, rules: Rules, notes: Notes, number: int) -> Item:
    _, wanted, output, hashes = row
    tokens, output = clamp(wanted, output, rules, where, notes)
    blocks = hashes[: -(-tokens // BLOCK_TOKENS)]
    return Item(at, partial(_play, blocks, tokens, output, number, rules.timeout), tokens, output, blocks)


def _play(blocks: tuple[int, ...], tokens: int, output: int, number: int, timeout: float) -> Scenario:
    yield Call(
        name="trace",
        prompt=prompt(blocks, tokens, f"own {number}"),
        max_tokens=output,
        ignore_eos=True,
        timeout=timeout,
    )
