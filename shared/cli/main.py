"""``laya``: the command line. Commands are imported when they are called, so that each starts at once.

Exit codes: 0 ok, 1 failed, 2 bad usage or configuration, 3 something is not installed, 4 cannot be reached,
5 refused by the server.
"""

from __future__ import annotations

import importlib
import sys

import click

from shared.compiled import compiled
from shared.config import ConfigError
from shared.version import __version__

# command: (module, one-line help)
COMMANDS = {
    "up": ("shared.cli.up", "Run a store, a router and nodes on this machine."),
    "chat": ("shared.cli.chat", "Talk to a model in the terminal."),
    "generate": ("shared.cli.generate", "Complete one prompt."),
    "nodes": ("shared.cli.nodes", "Show the nodes a router knows."),
    "explain": ("shared.cli.explain", "Say which node a request would go to, and why."),
    "routes": ("shared.cli.routes", "Show and change the rules that lead requests to pools."),
    "models": ("shared.cli.models", "Show the models that can be asked for."),
    "health": ("shared.cli.health", "Ask a router or a node whether it takes requests."),
    "quantize": ("shared.cli.quantize", "Quantize a checkpoint to W8A8 or W4A16."),
    "plan": ("shared.cli.plan", "Show what a model takes of a memory."),
    "keys": ("shared.cli.keys", "Add, list and revoke API keys."),
    "config": ("shared.cli.config", "Check and show the configuration."),
    "bench": ("shared.cli.bench", "Put a cluster under load, write a report, compare two."),
    "drain": ("shared.cli.drain", "Take a node out of service, or back in."),
    "completion": ("shared.cli.completion", "Print the completion script of a shell."),
}


class LazyGroup(click.Group):
    """A group whose commands are modules with a ``command`` object each."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order people meet them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command, None for an unknown one."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = importlib.import_module(entry[0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry[1]) for name, entry in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(
    __version__, prog_name="laya", message=f"%(prog)s, version %(version)s ({'compiled' if compiled() else 'plain'})"
)
def cli() -> None:
    """Laya serves quantized language models from your own machines."""


def main() -> None:
    """Entry point of ``laya``."""
    try:
        cli(prog_name="laya")
    except ConfigError as e:
        click.echo(f"laya: {e}", err=True)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


if __name__ == "__main__":
    main()
