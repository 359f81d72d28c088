"""``laya chat``: a conversation in the terminal."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from typing import TYPE_CHECKING

import click

from shared.cli import state, talk
from shared.cli.secure import Secure
from shared.errors import LayaError

if TYPE_CHECKING:
    from shared.client import LayaClient

_HELP = "/new starts over, /system TEXT sets the system prompt, /quit ends; Ctrl-C stops an answer"


@click.command("chat")
@click.option("--model", default="", help="Model or alias; default: the only one there is.")
@click.option("--system", default="", help="System prompt.")
@click.option("--max-tokens", type=click.IntRange(1), default=None, help="New tokens per answer at most.")
@click.option("--temperature", type=float, default=None)
@talk.server_options
def command(
    model: str,
    system: str,
    max_tokens: int | None,
    temperature: float | None,
    address: str | None,
    key: str | None,
    secure: Secure,
) -> None:
    """Talk to a model; answers stream, with their speed below."""
    where = state.address(address)
    talk.run(Conversation(model, system, max_tokens, temperature).run(where, key, secure), where)


class Conversation:
    """The turns so far and how the next one is asked."""

    def __init__(self, model: str, system: str, max_tokens: int | None, temperature: float | None) -> None:
        self._model = model
        self._system = system
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._turns: list[dict[str, str]] = []
        self._session = f"chat-{secrets.token_hex(6)}"
        self._colour = talk.colour()

    async def run(self, address: str, key: str | None, secure: Secure) -> None:
        """Read turns and answer them until the end of input or /quit."""
        from shared.client import LayaClient

        async with LayaClient(address, key, session=self._session, **secure.client()) as client:
            models = [m.name for m in await client.models()]
            if not self._model and len(models) > 1:
                click.echo(f"Models: {', '.join(models)}; talking to {models[0]} (--model to choose)", err=True)
                self._model = models[0]
            if sys.stdin.isatty():
                click.echo(self._dim(f"{self._model or ', '.join(models)} at {address}. {_HELP}"))
            while True:
                line = await self._read()
                if line is None or line.strip() in ("/quit", "/exit"):
                    return
                if line.startswith("/"):
                    self._command(line.strip())
                elif line.strip():
                    await self._answer(client, line.strip())

    async def _read(self) -> str | None:
        prompt = "\n> " if sys.stdin.isatty() else ""
        try:
            return await asyncio.to_thread(input, prompt)
        except EOFError:
            return None

    def _command(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "/new":
            self._turns.clear()
            self._session = f"chat-{secrets.token_hex(6)}"
        elif word == "/system":
            self._system = rest
        else:
            click.echo(self._dim(_HELP))

    async def _answer(self, client: LayaClient, text: str) -> None:
        self._turns.append({"role": "user", "content": text})
        head = [{"role": "system", "content": self._system}] if self._system else []
        began = time.perf_counter()
        first = 0.0
        pieces: list[str] = []
        last = None
        try:
            async for token in client.chat(
                head + self._turns,
                model=self._model,
                session=self._session,
                max_tokens=self._max_tokens,
                temperature=self._temperature,
            ):
                if token.text and not first:
                    first = time.perf_counter()
                pieces.append(token.text)
                click.echo(token.text, nl=False)
                last = token
        except LayaError as e:
            self._turns.pop()
            hint = f" (try again in {e.retry_after:.1f} s)" if e.retry_after else ""
            click.echo(f"{e.message}{hint}", err=True)
            return
        except asyncio.CancelledError:
            # Ctrl-C during an answer: leaving the loop cancelled it on the node.
            click.echo()
            raise KeyboardInterrupt from None
        self._turns.append({"role": "assistant", "content": "".join(pieces)})
        click.echo()
        if last is not None and last.usage is not None:
            self._speed(last.usage.completion_tokens, last.usage.cached_tokens, first - began, began)

    def _speed(self, tokens: int, cached: int, ttft: float, began: float) -> None:
        spent = time.perf_counter() - began - ttft
        rate = (tokens - 1) / spent if spent > 0 and tokens > 1 else 0.0
        note = f", {cached} prompt tokens from cache" if cached else ""
        click.echo(self._dim(f"[{tokens} tokens, {rate:.1f} tok/s, first after {ttft * 1000:.0f} ms{note}]"))

    def _dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self._colour else text
