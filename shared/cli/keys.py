"""``laya keys``: add, list and revoke API keys."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shared.cli import state, talk

if TYPE_CHECKING:
    from router_node.middleware.keys import KeyRecord, KeyStore

F = TypeVar("F", bound=Callable[..., Any])


def _file_options(f: F) -> F:
    f = click.option("--config", default=None, type=click.Path(), help="Configuration that names the key file.")(f)
    return click.option("--file", "path", default=None, type=click.Path(), help="Key file.")(f)


@click.group("keys")
def command() -> None:
    """Add, list and revoke API keys (a running router reads the file again by itself)."""


@command.command("add")
@click.option("--tenant", required=True, help="Whose key it is; tenants share the queue fairly.")
@click.option("--best-priority", type=int, default=0, show_default=True, help="Earliest priority it may ask for.")
@click.option("--note", default="", help="For people.")
@_file_options
@talk.json_option
def add(tenant: str, best_priority: int, note: str, path: str | None, config: str | None, as_json: bool) -> None:
    """Make a key. It is printed once and kept only as a hash."""
    store = _store(path, config)
    store.path.parent.mkdir(parents=True, exist_ok=True)
    record, secret = _guarded(lambda: store.add(tenant, best_priority, note))
    if as_json:
        talk.print_json({"id": record.id, "key": secret, "tenant": tenant, "file": str(store.path)})
        return
    click.echo(secret)
    click.echo(f"id {record.id}, tenant {tenant}, in {store.path}; it will not be shown again", err=True)


@command.command("list")
@_file_options
@talk.json_option
def list_keys(path: str | None, config: str | None, as_json: bool) -> None:
    """Show the keys there are, without the secrets."""
    records = _guarded(lambda: list(_store(path, config).list()))
    if as_json:
        talk.print_json([_plain(r) for r in records])
        return
    rows = [[r.id, r.tenant, str(r.best_priority), _day(r.created), r.note or "-"] for r in records]
    talk.table(["ID", "TENANT", "BEST PRIORITY", "CREATED", "NOTE"], rows)


@command.command("revoke")
@click.argument("key_id")
@_file_options
def revoke(key_id: str, path: str | None, config: str | None) -> None:
    """Take the key KEY_ID out."""
    record = _guarded(lambda: _store(path, config).revoke(key_id))
    click.echo(f"revoked {record.id} of tenant {record.tenant}")


def _store(path: str | None, config: str | None) -> KeyStore:
    from router_node.middleware.keys import KeyStore

    return KeyStore(state.keys_file(path, config))


def _guarded(work: Callable[[], Any]) -> Any:
    from router_node.middleware.keys import KeyFileError
    from shared.errors import LayaError

    try:
        return work()
    except (KeyFileError, LayaError, OSError) as e:
        click.echo(f"laya: {e}", err=True)
        sys.exit(1)


def _plain(record: KeyRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "tenant": record.tenant,
        "best_priority": record.best_priority,
        "created": record.created,
        "note": record.note,
    }


def _day(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M")
