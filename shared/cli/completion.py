"""``laya completion``: the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for SHELL.

    For bash: laya completion bash > ~/.local/share/bash-completion/completions/laya
    """
    from shared.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "laya", "_LAYA_COMPLETE").source())
