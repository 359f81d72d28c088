"""Identifiers are unique, short and safe to log."""

from __future__ import annotations

from shared import ids


def test_request_ids_are_unique_and_sane() -> None:
    maker = ids.request_ids()
    made = [maker.next() for _ in range(1000)]
    assert len(set(made)) == 1000
    assert made == sorted(made)
    assert {len(i) for i in made} == {len("req-") + 12 + 8}
    assert all(ids.sane_request_id(i) for i in made)


def test_two_makers_do_not_collide() -> None:
    assert ids.request_ids().next() != ids.request_ids().next()


def test_request_ids_of_clients_are_checked() -> None:
    assert ids.sane_request_id(b"abc-123.x:y_z")
    for bad in (b"", b"a" * 129, b"a b", b"a\r\nset-cookie: x", "é".encode()):
        assert not ids.sane_request_id(bad)


def test_watchers_differ_by_worker_and_boot() -> None:
    assert ids.watcher_id(0) != ids.watcher_id(0)
    assert ids.watcher_id(1).endswith("w1")
