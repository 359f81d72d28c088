"""Conversations as ShareGPT has them, turn by turn: each prompt is all the turns before it, with the answers given now.

A file is a JSON list, or JSON lines, of {"conversations": [{"from": "human", "value": ...}, {"from": "gpt", ...}]} or
{"messages": [{"role": "user", "content": ...}, ...]}. An answer is as long as the recorded one. A "timestamp" in
milliseconds says when a conversation begins; where there is none, they begin at a rate.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from loadtest.sim.mooncake import BadTrace, parsed
from loadtest.traces.items import Clock, Item, Loaded, Notes, Rules
from loadtest.users.call import Call
from loadtest.users.scenarios import Scenario

_BYTES = 4
"""Of a token, about."""
_ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant",
    "bing": "assistant", "bard": "assistant", "system": "system",
}  # fmt: skip
Turns = tuple[tuple[str, str], ...]


def rows(text: str, name: str) -> Iterator[tuple[str, Any]]:
    """The conversations of a file, each with a name for it in errors. Raises BadTrace."""
    if text.lstrip().startswith("["):
        try:
            found = parsed(text)
        except ValueError as error:
            raise BadTrace(f"{name}: not JSON ({error})") from None
        for number, row in enumerate(found, 1):
            yield f"{name}, entry {number}", row
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            where = f"{name}, line {number}"
            try:
                yield where, parsed(line)
            except ValueError as error:
                yield where, BadTrace(f"{where}: not JSON ({error}); each line must be one object")


def items(found: Iterable[tuple[str, Any]], name: str, rules: Rules) -> Loaded:
    """Its conversations. Raises BadTrace for the first malformed one, unless the rules are lenient."""
    notes = Notes()
    clock = Clock(rules, notes)
    rng = random.Random(rules.seed)
    out: list[Item] = []
    due = 0.0
    for where, row in found:
        if len(out) >= rules.count:
            notes.add("not sent", f"only the first {rules.count} conversations are sent (--requests)")
            break
        try:
            turns, stamp = turns_of(row, where)
        except BadTrace as error:
            if not rules.lenient:
                raise BadTrace(f"{error}; mend the file, or pass --lenient to leave such entries out") from None
            notes.add("malformed", f"{error}; left out")
            continue
        turns = _cut(turns, rules, where, notes)
        at = clock.at(stamp / 1e3, where) if stamp is not None else due
        due += rng.expovariate(rules.rate * rules.speed)
        asked = sum(len(text) for role, text in turns if role != "assistant") // _BYTES
        answered = sum(_tokens(text) for role, text in turns if role == "assistant")
        seed = rng.getrandbits(64)
        out.append(Item(at, partial(play, turns, f"talk-{seed:016x}", seed, rules), asked, answered))
    if not out:
        raise BadTrace(f"{name}: there is no conversation in it")
    return Loaded(name, "sharegpt", sorted(out, key=lambda item: item.at), notes)


def turns_of(row: Any, where: str) -> tuple[Turns, float | None]:
    """Roles and texts of a conversation, and its time in milliseconds. Raises BadTrace."""
    if isinstance(row, BadTrace):
        raise row
    given = row.get("conversations", row.get("messages")) if isinstance(row, dict) else None
    if not isinstance(given, list):
        raise BadTrace(f'{where}: has no list of "conversations" or "messages"')
    stamp = row.get("timestamp")
    if stamp is not None and (isinstance(stamp, bool) or not isinstance(stamp, int | float) or not 0 <= stamp < 1e15):
        raise BadTrace(f"{where}: timestamp must be milliseconds, 0 or more, not {stamp!r}")
    turns = []
    for i, turn in enumerate(given):
        role = _ROLES.get(str(turn.get("from", turn.get("role", "")))) if isinstance(turn, dict) else None
        text = turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
        if role is None or not isinstance(text, str):
            raise BadTrace(f"{where}: turn {i + 1} has no known speaker, or no text")
        turns.append((role, text))
    first = next((i for i, (role, _) in enumerate(turns) if role == "user"), None)
    if first is None:
        raise BadTrace(f"{where}: nobody asks anything in it")
    # Some begin with an answer to something that is not there.
    return tuple(t for t in turns[:first] if t[0] == "system") + tuple(turns[first:]), stamp


def _cut(turns: Turns, rules: Rules, where: str, notes: Notes) -> Turns:
    """As many turns as the context takes, the first question at least."""
    if not rules.context:
        return turns
    kept: list[tuple[str, str]] = []
    room = rules.context * 3 // 4
    for role, text in turns:
        size = _tokens(text) + 8
        if room < size:
            if not any(r == "user" for r, _ in kept):
                kept.append((role, text[: max(1, room - 8) * 3]))
            notes.add("longer than the context", f"{where}: cut to {len(kept)} of {len(turns)} turns")
            break
        room -= size
        kept.append((role, text))
    return tuple(kept)


def _tokens(text: str) -> int:
    return max(1, len(text.encode()) // _BYTES)


def play(turns: Turns, session: str, seed: int, rules: Rules) -> Scenario:
    """Ask turn by turn; a turn that fails ends the conversation."""
    rng = random.Random(seed)
    said: list[tuple[str, str]] = []
    pause = 0.0
    for i, (role, text) in enumerate(turns):
        if role == "assistant":
            continue
        said.append((role, text))
        if role != "user":
            continue
        recorded = turns[i + 1][1] if i + 1 < len(turns) and turns[i + 1][0] == "assistant" else ""
        out = yield Call(
            name="turn",
            messages=tuple(said),
            max_tokens=min(rules.longest_output, _tokens(recorded)) if recorded else 64,
            ignore_eos=bool(recorded),
            session=session,
            pause=pause,
            keep_text=True,
            timeout=rules.timeout,
        )
        if not out.ok:
            return
        said.append(("assistant", out.text or recorded or "Yes."))
        pause = rng.expovariate(1 / rules.think) / rules.speed if rules.think else 0.0
