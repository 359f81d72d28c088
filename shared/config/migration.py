"""Settings of streams that outlive their node."""

from __future__ import annotations

import msgspec

from shared.config.checks import need


class MigrationConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Streams go on elsewhere when their node is lost, or drains past its grace. Limits are a worker's."""

    enabled: bool = True  # keep journals of streams and move them
    max_request_bytes: int = 256 << 10  # a stream whose request is longer is not migratable
    max_tokens: int = 32_768  # new tokens; a stream that has been given more is not migratable any more
    memory: int = 256 << 20  # bytes of all journals together; a stream that finds no room is not migratable
    attempts: int = 3  # nodes that one stream may be moved to
    max_stall: float = 30.0  # seconds in which one stream may be without a node, all its moves together
    max_prefill_tokens: int = 262_144  # tokens that may be computed again for one stream, all its moves together
    share: float = 0.2  # of a pool's requests that may be moves
    burst: int = 2000  # moves beyond that share at once
    poison_seconds: float = 300.0  # a request that two nodes in a row died of is refused for so long

    def validate(self) -> None:
        """Raise ConfigError for a value that makes no sense."""
        for name, least, most in (
            ("max_request_bytes", 1024, 32 << 20),
            ("max_tokens", 1, 1 << 24),
            ("memory", 0, 1 << 40),
            ("attempts", 1, 16),
            ("max_stall", 0.1, 3600),
            ("max_prefill_tokens", 1, 1 << 30),
            ("share", 0, 1),
            ("burst", 0, 1_000_000),
            ("poison_seconds", 1, 86_400),
        ):
            value = getattr(self, name)
            need(least <= value <= most, f"router.migration.{name}", f"must be {least:g} to {most:g}, not {value}")
