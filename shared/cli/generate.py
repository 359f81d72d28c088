"""``laya generate``: complete one prompt, streamed."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from shared.cli import state, talk
from shared.cli.secure import Secure


@click.command("generate")
@click.argument("prompt", required=False)
@click.option("--model", default="", help="Model or alias; default: the only one there is.")
@click.option("--max-tokens", type=click.IntRange(1), default=None, help="New tokens at most.")
@click.option("--temperature", type=float, default=None)
@click.option("--top-p", type=float, default=None)
@click.option("--seed", type=int, default=None)
@click.option("--stop", multiple=True, help="End at this string; repeatable.")
@click.option("--session", default="", help="Conversation whose cache should be found again.")
@click.option("--priority", type=int, default=0, help="Lower is earlier.")
@click.option("--timeout", type=float, default=600.0, help="Deadline in seconds.")
@click.option("--raw", is_flag=True, help="Complete the text itself instead of asking it as a chat turn.")
@click.option("--timing", is_flag=True, help="Say where the time went: route, queue, prefill, decode, serialise.")
@talk.server_options
@talk.json_option
def command(
    prompt: str | None,
    model: str,
    max_tokens: int | None,
    temperature: float | None,
    top_p: float | None,
    seed: int | None,
    stop: tuple[str, ...],
    session: str,
    priority: int,
    timeout: float,
    raw: bool,
    timing: bool,
    address: str | None,
    key: str | None,
    secure: Secure,
    as_json: bool,
) -> None:
    """Complete PROMPT (or standard input) and print the text as it comes."""
    if prompt is None:
        if sys.stdin.isatty():
            raise click.UsageError("give a PROMPT, or pipe one in")
        prompt = sys.stdin.read()
    if not prompt:
        raise click.UsageError("the prompt is empty")
    sampling: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
        "stop": list(stop) or None,
    }
    where = state.address(address)
    work = _generate(where, key, secure, prompt, raw, timing, as_json, timeout, model, session, priority, sampling)
    talk.run(work, where)


async def _generate(
    address: str,
    key: str | None,
    secure: Secure,
    prompt: str,
    raw: bool,
    timing: bool,
    as_json: bool,
    timeout: float,
    model: str,
    session: str,
    priority: int,
    sampling: dict[str, Any],
) -> None:
    from shared import timing as stages
    from shared.client import LayaClient

    text: list[str] = []
    last = None
    began = time.perf_counter()
    asked = stages.ASK if timing else None
    async with LayaClient(address, key, timeout=timeout, metadata=asked, **secure.client()) as client:
        ask = client.generate if raw else client.chat
        async for token in ask(prompt, model=model, session=session, priority=priority, **sampling):
            last = token
            text.append(token.text)
            if not as_json:
                click.echo(token.text, nl=False)
    seconds = time.perf_counter() - began
    usage, timings = (last.usage, last.timings) if last else (None, None)
    found = stages.breakdown(timings, seconds) if timing and timings else None
    if not as_json:
        click.echo()
        for line in stages.lines(found) if found else ():
            click.echo(line, err=True)
        return
    out: dict[str, Any] = {
        "text": "".join(text),
        "finish_reason": last.finish_reason if last else "",
        "usage": {s: getattr(usage, s) for s in usage.__slots__} if usage else None,
        "timings": {f"{s}_seconds": getattr(timings, s) for s in timings.__slots__} if timings else None,
    }
    if found:
        out["stages"] = {f"{s}_seconds": getattr(found, s) for s in (*stages.STAGES, "total")}
    talk.print_json(out)
