"""API keys: who is calling, for which tenant, and how early they may ask to be served.

Only a key's SHA-256 is kept. A key is 256 random bits, so a plain hash is enough and a look-up costs about a
microsecond; a slow password hash would protect nothing more. The file is small JSON, replaced atomically and written
by ``laya keys``; the router reads it again when it changes and keeps the keys it has when the new file is broken.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from shared.errors import Code, LayaError

KEY_PREFIX: Final = "laya-"
KEY_LENGTH: Final = len(KEY_PREFIX) + 43
MAX_KEYS: Final = 100_000
MAX_FILE: Final = 64 << 20  # bytes
LOCK_SECONDS: Final = 5.0
ANY_PRIORITY: Final = -(2**31)  # no bound: lower is earlier


class KeyFileError(Exception):
    """The key file cannot be used: one sentence with the file and what to do."""


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it is kept. ``hash`` is the SHA-256 of the whole key in hex; ``created`` is seconds since the epoch.

    ``best_priority`` is the lowest, that is the earliest, priority that the key may ask for.
    """

    id: str
    hash: str
    tenant: str
    best_priority: int = 0
    created: float = 0.0
    note: str = ""


class _KeyFile(msgspec.Struct):
    keys: list[KeyRecord] = []


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, once its key was recognized."""

    tenant: str
    best_priority: int
    key_id: str = ""
    tenant_bytes: bytes = b""


OPEN_CALLER: Final = Caller("", ANY_PRIORITY)


class KeyStore:
    """The key file. Every call reads it afresh; writers hold a lock file, so that two of them cannot lose a key."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def list(self) -> Sequence[KeyRecord]:
        """All keys, oldest first. Raises KeyFileError when the file is missing, unsafe or broken."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_mode & stat.S_IWOTH:
                    raise KeyFileError(f"{self.path} can be written by anyone; run: chmod 600 {self.path}")
                raw = file.read(MAX_FILE + 1)
        except FileNotFoundError:
            raise KeyFileError(f"{self.path} does not exist; make it with: laya keys add --tenant NAME") from None
        except OSError as error:
            raise KeyFileError(f"{self.path} cannot be read: {error.strerror}") from None
        return _parse(raw, self.path)

    def add(self, tenant: str, best_priority: int = 0, note: str = "") -> tuple[KeyRecord, str]:
        """Make a key; the second value is the key itself, which is shown once and kept nowhere."""
        _check_tenant(tenant)
        secret = KEY_PREFIX + secrets.token_urlsafe(32)
        with self._locked():
            keys = list(self.list()) if self.path.exists() else []
            if len(keys) >= MAX_KEYS:
                raise KeyFileError(f"{self.path} holds {len(keys)} keys, the most there may be; revoke some")
            taken = {key.id for key in keys}
            key_id = next(name for name in iter(lambda: secrets.token_hex(4), "") if name not in taken)
            record = KeyRecord(
                id=key_id,
                hash=hashlib.sha256(secret.encode()).hexdigest(),
                tenant=tenant,
                best_priority=best_priority,
                created=time.time(),
                note=note[:256],
            )
            self._replace([*keys, record])
        return record, secret

    def revoke(self, key_id: str) -> KeyRecord:
        """Take a key out by its id. Raises KeyFileError naming the id when there is none such."""
        with self._locked():
            keys = self.list()
            found = next((key for key in keys if key.id == key_id), None)
            if found is None:
                raise KeyFileError(f"{self.path} has no key {key_id!r}; see: laya keys list")
            self._replace([key for key in keys if key.id != key_id])
        return found

    def _replace(self, keys: Sequence[KeyRecord]) -> None:
        raw = msgspec.json.format(msgspec.json.encode(_KeyFile(list(keys))), indent=2) + b"\n"
        handle, name = tempfile.mkstemp(prefix=".keys-", dir=self.path.parent)  # made with mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                self._keep_access(file.fileno())
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    def _keep_access(self, handle: int) -> None:
        """Leave owner and mode as they were: a router that is another user has to read what root wrote."""
        try:
            before = os.stat(self.path)
        except FileNotFoundError:
            return
        if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
            try:
                os.fchown(handle, before.st_uid, before.st_gid)
            except PermissionError:
                return  # then it is the writer's alone
        os.fchmod(handle, stat.S_IMODE(before.st_mode))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock file beside the keys; it stays, since removing it would let two writers in."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(f"{self.path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise KeyFileError(f"{self.path} cannot be written: {error.strerror}") from None
        try:
            deadline = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise KeyFileError(f"{self.path} is being written by another process; try again") from None
                    time.sleep(0.02)
            yield
        except OSError as error:
            raise KeyFileError(f"{self.path} cannot be written: {error.strerror}") from None
        finally:
            os.close(handle)


def _parse(raw: bytes, path: Path) -> list[KeyRecord]:
    if len(raw) > MAX_FILE:
        raise KeyFileError(f"{path} is over {MAX_FILE >> 20} MiB; it is not a key file")
    try:
        keys = msgspec.json.decode(raw, type=_KeyFile).keys
    except (msgspec.DecodeError, RecursionError) as error:
        raise KeyFileError(f"{path} is not a key file: {error}") from None
    for key in keys:
        if len(key.hash) != 64 or not all(c in "0123456789abcdef" for c in key.hash):
            raise KeyFileError(f"{path}: the hash of key {key.id!r} is not a SHA-256 in hex")
        _check_tenant(key.tenant)
    return keys


def _check_tenant(tenant: str) -> None:
    # The tenant travels to nodes as metadata and labels logs: plain, short and without surrounding space.
    if not (0 < len(tenant) <= 64 and tenant.isascii() and tenant.isprintable() and tenant == tenant.strip()):
        raise KeyFileError(f"tenant {tenant[:80]!r} must be 1 to 64 printable ASCII characters")


class Authorizer:
    """Tells callers apart by the keys it was last given; ``open`` lets everyone in, where no key file is configured."""

    __slots__ = ("_callers", "open", "refused")

    def __init__(self, keys: Sequence[KeyRecord] | None) -> None:
        self.open = keys is None
        self.refused = 0
        self._callers: dict[bytes, Caller] = {}
        if keys is not None:
            self.replace(keys)

    def __len__(self) -> int:
        return len(self._callers)

    def replace(self, keys: Sequence[KeyRecord]) -> None:
        """Use these keys and no others from now on."""
        self._callers = {
            bytes.fromhex(key.hash): Caller(key.tenant, key.best_priority, key.id, key.tenant.encode()) for key in keys
        }

    def authorize(self, authorization: bytes | None) -> Caller:
        """The caller behind an ``authorization`` header's value.

        Raises LayaError UNAUTHENTICATED with KEY_MISSING or KEY_INVALID. Looking up a digest leaks nothing by its
        timing: whoever can choose the digest already knows the key.
        """
        if self.open:
            return OPEN_CALLER
        if authorization:
            if len(authorization) == 7 + KEY_LENGTH and authorization[:7].lower() == b"bearer ":
                caller = self._callers.get(hashlib.sha256(authorization[7:]).digest())
                if caller is not None:
                    return caller
            self.refused += 1
            raise LayaError(
                Code.UNAUTHENTICATED,
                "KEY_INVALID",
                "The API key is not valid here; send `authorization: Bearer laya-...` with a key from `laya keys add`.",
            )
        self.refused += 1
        raise LayaError(
            Code.UNAUTHENTICATED,
            "KEY_MISSING",
            "This router needs an API key; send `authorization: Bearer laya-...` with a key from `laya keys add`.",
        )
