"""API keys: who gets in, what is kept, and that two writers lose nothing."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
from pathlib import Path

import pytest

from router_node.middleware.keys import ANY_PRIORITY, KEY_LENGTH, Authorizer, KeyFileError, KeyStore
from shared.errors import Code, LayaError


@pytest.fixture
def store(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path / "keys.json")


def refusal(authorizer: Authorizer, value: bytes | None) -> LayaError:
    with pytest.raises(LayaError) as caught:
        authorizer.authorize(value)
    assert caught.value.code is Code.UNAUTHENTICATED
    return caught.value


def test_a_key_lets_its_tenant_in(store: KeyStore) -> None:
    record, secret = store.add("acme", best_priority=-5, note="ci")
    caller = Authorizer(store.list()).authorize(b"Bearer " + secret.encode())
    assert (caller.tenant, caller.tenant_bytes, caller.best_priority) == ("acme", b"acme", -5)
    assert caller.key_id == record.id


def test_the_scheme_is_case_insensitive(store: KeyStore) -> None:
    secret = store.add("acme")[1]
    assert Authorizer(store.list()).authorize(b"bearer " + secret.encode()).tenant == "acme"


def test_a_key_is_kept_only_as_its_hash(store: KeyStore) -> None:
    record, secret = store.add("acme")
    text = store.path.read_text()
    assert secret not in text
    assert len(secret) == KEY_LENGTH and secret.startswith("laya-")
    assert record.hash == hashlib.sha256(secret.encode()).hexdigest()
    assert json.loads(text)["keys"][0]["hash"] == record.hash


def test_the_file_is_its_owners_alone(store: KeyStore) -> None:
    store.add("acme")
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600


def test_a_file_stays_readable_for_the_router_that_reads_it(store: KeyStore) -> None:
    store.add("acme")
    store.path.chmod(0o640)
    if os.geteuid() == 0:  # as `laya keys` is run beside a service with a user of its own
        os.chown(store.path, 4242, 4343)
    before = store.path.stat()
    record, _ = store.add("acme")
    store.revoke(record.id)
    after = store.path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_a_missing_key_says_what_to_send(store: KeyStore) -> None:
    store.add("acme")
    authorizer = Authorizer(store.list())
    for value in (None, b""):
        error = refusal(authorizer, value)
        assert error.reason == "KEY_MISSING" and "Bearer" in error.message and error.http_status == 401
    assert authorizer.refused == 2


def test_a_wrong_key_is_invalid_and_is_not_repeated(store: KeyStore) -> None:
    secret = store.add("acme")[1]
    authorizer = Authorizer(store.list())
    wrong = [
        b"Bearer " + secret[:-1].encode() + (b"A" if secret[-1] != "A" else b"B"),
        b"Bearer " + secret.encode() + b"x",
        b"Basic " + secret.encode() + b"x",
        secret.encode(),
        b"Bearer",
        b"Bearer \xff\xfe",
        b"x" * 100_000,
    ]
    for value in wrong:
        error = refusal(authorizer, value)
        assert error.reason == "KEY_INVALID"
        assert secret[5:-1] not in str(error)


def test_an_openai_client_reads_the_refusal(store: KeyStore) -> None:
    store.add("acme")
    body = json.loads(refusal(Authorizer(store.list()), b"Bearer x").openai_body())
    assert body["error"]["type"] == "authentication_error" and body["error"]["code"] == "key_invalid"


def test_without_a_key_file_everyone_is_let_in() -> None:
    authorizer = Authorizer(None)
    assert authorizer.open
    assert authorizer.authorize(None).best_priority == ANY_PRIORITY
    assert authorizer.authorize(b"Bearer whatever").tenant == ""


def test_a_key_file_without_keys_lets_nobody_in(store: KeyStore) -> None:
    record, secret = store.add("acme")
    store.revoke(record.id)
    assert refusal(Authorizer(store.list()), b"Bearer " + secret.encode()).reason == "KEY_INVALID"


def test_a_revoked_key_is_refused_from_the_next_load(store: KeyStore) -> None:
    first, secret = store.add("acme")
    second = store.add("beta")[0]
    authorizer = Authorizer(store.list())
    store.revoke(first.id)
    authorizer.replace(store.list())
    refusal(authorizer, b"Bearer " + secret.encode())
    assert [key.id for key in store.list()] == [second.id]


def test_revoking_an_unknown_key_names_it(store: KeyStore) -> None:
    store.add("acme")
    with pytest.raises(KeyFileError, match="no key 'nope'"):
        store.revoke("nope")


def test_two_writers_lose_no_key(store: KeyStore) -> None:
    def add() -> None:
        for _ in range(5):
            KeyStore(store.path).add("acme")

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({key.id for key in store.list()}) == 20


@pytest.mark.parametrize("tenant", ["", "a\nb", " a", "é", "x" * 65])
def test_a_tenant_that_cannot_travel_as_metadata_is_refused(store: KeyStore, tenant: str) -> None:
    with pytest.raises(KeyFileError, match="tenant"):
        store.add(tenant)
    assert not store.path.exists()


def test_a_missing_file_says_how_to_make_it(store: KeyStore) -> None:
    with pytest.raises(KeyFileError, match="does not exist; make it with: laya keys add"):
        store.list()


@pytest.mark.parametrize("text", ["", "{", '{"keys": 3}', '{"keys": [{"id": "a", "hash": "zz", "tenant": "t"}]}'])
def test_a_broken_file_is_refused_by_name(store: KeyStore, text: str) -> None:
    store.path.write_text(text)
    with pytest.raises(KeyFileError, match=r"keys\.json"):
        store.list()


def test_a_file_that_anyone_can_write_is_refused(store: KeyStore) -> None:
    store.add("acme")
    os.chmod(store.path, 0o666)
    with pytest.raises(KeyFileError, match="chmod 600"):
        store.list()


def test_a_failed_write_leaves_the_old_file_and_no_litter(store: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add("acme")
    before = store.path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyFileError, match="No space left"):
        store.add("beta")
    assert store.path.read_bytes() == before
    assert sorted(p.name for p in store.path.parent.iterdir()) == ["keys.json", "keys.json.lock"]
