"""What sections of the configuration check their values with."""

from __future__ import annotations


class ConfigError(Exception):
    """A configuration that cannot be used: one sentence with the key and the fix."""


def need(ok: bool, key: str, why: str) -> None:
    if not ok:
        raise ConfigError(f"{key}: {why}")
