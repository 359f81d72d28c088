"""The key file is read again when it changes, and a broken one changes nothing."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from router_node.middleware.key_watch import KeyWatch
from router_node.middleware.keys import Authorizer, KeyStore
from shared.errors import LayaError
from tests.support.ports import until


@pytest.fixture
def store(tmp_path: Path) -> KeyStore:
    store = KeyStore(tmp_path / "keys.json")
    store.add("acme")
    return store


@pytest.fixture
async def watched(store: KeyStore) -> AsyncIterator[tuple[Authorizer, KeyWatch]]:
    authorizer = Authorizer(store.list())
    watch = KeyWatch(store, authorizer, interval=0.01)
    watch.start()
    try:
        yield authorizer, watch
    finally:
        await watch.close()


async def test_a_new_key_is_valid_without_a_restart(store: KeyStore, watched: tuple[Authorizer, KeyWatch]) -> None:
    authorizer, _ = watched
    secret = store.add("beta")[1]
    await until(lambda: len(authorizer) == 2, "the new key is known")
    assert authorizer.authorize(b"Bearer " + secret.encode()).tenant == "beta"


async def test_a_broken_file_keeps_the_keys_and_is_logged_once(
    store: KeyStore, watched: tuple[Authorizer, KeyWatch], caplog: pytest.LogCaptureFixture
) -> None:
    authorizer, watch = watched
    caplog.set_level(logging.ERROR, "laya.keys")
    good = store.path.read_bytes()
    store.path.write_text("{")
    await until(lambda: watch.errors == 1, "the broken file was seen")
    assert len(authorizer) == 1
    store.path.write_bytes(good)
    secret = store.add("beta")[1]
    await until(lambda: len(authorizer) == 2, "the repaired file was read")
    assert authorizer.authorize(b"Bearer " + secret.encode()).tenant == "beta"
    assert [record.message for record in caplog.records] == ["keys_not_reloaded"]


async def test_a_removed_file_keeps_the_keys(store: KeyStore, watched: tuple[Authorizer, KeyWatch]) -> None:
    authorizer, watch = watched
    store.path.unlink()
    await until(lambda: watch.errors == 1, "the loss was seen")
    assert len(authorizer) == 1
    with pytest.raises(LayaError):
        authorizer.authorize(None)
