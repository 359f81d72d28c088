"""As many open files as clients need, and never all of them for clients."""

from __future__ import annotations

import resource

import pytest

from shared import open_files


class Limits:
    def __init__(self, soft: int, hard: int, allowed: bool = True) -> None:
        self.now = (soft, hard)
        self.allowed = allowed

    def get(self, what: int) -> tuple[int, int]:
        assert what == resource.RLIMIT_NOFILE
        return self.now

    def set(self, what: int, limits: tuple[int, int]) -> None:
        if not self.allowed:
            raise ValueError("not allowed")
        self.now = limits


def limits(patch: pytest.MonkeyPatch, soft: int, hard: int, allowed: bool = True) -> Limits:
    made = Limits(soft, hard, allowed)
    patch.setattr(open_files.resource, "getrlimit", made.get)
    patch.setattr(open_files.resource, "setrlimit", made.set)
    return made


def test_the_usual_limit_is_raised_for_all_clients_and_some_more(monkeypatch: pytest.MonkeyPatch):
    found = limits(monkeypatch, 1024, 1 << 20)
    open_files.raise_limit(20_000)
    assert found.now == (22_501, 1 << 20)
    assert open_files.room_for(20_000) == 22_501 - 22_501 // 8


def test_it_is_raised_no_further_than_this_user_may(monkeypatch: pytest.MonkeyPatch):
    found = limits(monkeypatch, 1024, 4096)
    open_files.raise_limit(20_000)
    assert found.now == (4096, 4096)
    assert open_files.room_for(20_000) == 4096 - 512


@pytest.mark.parametrize(("soft", "allowed"), [(65_536, True), (resource.RLIM_INFINITY, True), (1024, False)])
def test_a_limit_that_is_enough_or_cannot_be_raised_stays(monkeypatch: pytest.MonkeyPatch, soft: int, allowed: bool):
    found = limits(monkeypatch, soft, 1 << 20, allowed)
    open_files.raise_limit(20_000)
    assert found.now == (soft, 1 << 20)


@pytest.mark.parametrize(("soft", "room"), [(1024, 896), (256, 192), (40, 16), (resource.RLIM_INFINITY, 20_000)])
def test_clients_never_get_all_of_them(monkeypatch: pytest.MonkeyPatch, soft: int, room: int):
    limits(monkeypatch, soft, 1 << 20)
    assert open_files.room_for(20_000) == room
