"""``laya config``: check and show the configuration."""

from __future__ import annotations

import click

from shared.cli import talk
from shared.config import ConfigError, load, to_yaml


@click.group("config")
def command() -> None:
    """Check and show the configuration."""


@command.command("check")
@click.argument("file", type=click.Path(dir_okay=False), required=False)
@talk.json_option
def check(file: str | None, as_json: bool) -> None:
    """Check FILE with the environment over it; exit code 2 and one sentence if it cannot be used."""
    from router_node.config import check as check_router

    config = load(file)
    warnings = warnings_of(config.inference.swap_space)
    try:
        warnings += check_router(config)
    except ConfigError as e:
        # Flags may still mend it, so the file itself is not to blame.
        warnings.append(f"laya-router refuses this as it stands: {e}")
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    if as_json:
        talk.print_json({"ok": True, "warnings": warnings})
    else:
        click.echo(f"{file or 'the defaults'}: good")


@command.command("show")
@click.argument("file", type=click.Path(dir_okay=False), required=False)
def show(file: str | None) -> None:
    """Print every setting in force, secrets left out."""
    click.echo(to_yaml(load(file)), nl=False)


@command.command("reference")
def reference() -> None:
    """Print every key with its default and meaning (the page docs/configuration.md)."""
    from shared.config.reference import page

    click.echo(page(), nl=False)


def warnings_of(swap_space: float | None) -> list[str]:
    """What is accepted but changes nothing."""
    if swap_space is not None:
        return ["inference.swap_space does nothing: vLLM has no swap space any more; remove the key"]
    return []
