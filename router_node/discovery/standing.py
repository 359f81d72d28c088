"""How reading a source goes, and the two log lines about it: one when it fails, one when it works again."""

from __future__ import annotations

import logging

from router_node.discovery.base import SourceHealth
from shared.logging import event


class Standing:
    """Starts as not read yet; the first failure is told as well as the first after a success."""

    __slots__ = ("_facts", "_log", "_told", "_what", "health")

    def __init__(self, log: logging.Logger, what: str, unread: str, **facts: str) -> None:
        """``what`` begins the events' names, ``unread`` is the sentence before a first read; ``facts`` go with "up"."""
        self.health = SourceHealth(up=False, detail=unread)
        self._log = log
        self._what = what
        self._facts = facts
        self._told = False

    def failed(self, sentence: str, /, **facts: str) -> None:
        """It cannot be read; operators see the sentence, ``facts`` are what the log says."""
        if not self._told:
            self._told = True
            event(self._log, logging.WARNING, f"{self._what}_down", **facts)
        self.health = SourceHealth(up=False, detail=sentence)

    def succeeded(self) -> None:
        """It was read."""
        if not self.health.up:
            self._told = False
            event(self._log, logging.INFO, f"{self._what}_up", **self._facts)
            self.health = SourceHealth(up=True)
