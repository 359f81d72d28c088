"""Who may talk to a node: routers and operators that know the cluster token.

With a token, every call must carry it, as metadata ``laya-cluster-token`` or as ``authorization: Bearer TOKEN``.
Without one the node is on loopback (or was told to be insecure), and everybody is trusted. What only a router may say
(``laya-dispatch``, ``laya-salt``, …) is therefore never read from a caller that was not let in first.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from shared import headers as names
from shared.errors import Code, LayaError

_BEARER = b"bearer "


class ClusterAuth:
    """Checks the cluster token in constant time."""

    __slots__ = ("_token",)

    def __init__(self, token: str) -> None:
        """An empty token lets everybody in."""
        self._token = token.encode()

    @property
    def required(self) -> bool:
        """Whether callers must show a token."""
        return bool(self._token)

    def check(self, metadata: Mapping[bytes, bytes]) -> None:
        """Raise LayaError UNAUTHENTICATED unless the caller knows the token."""
        token = self._token
        if not token:
            return
        shown = metadata.get(names.CLUSTER_TOKEN)
        if shown is None:
            header = metadata.get(b"authorization", b"")
            if header[: len(_BEARER)].lower() == _BEARER:
                shown = header[len(_BEARER) :].strip()
        if shown is None:
            raise LayaError(
                Code.UNAUTHENTICATED,
                "CLUSTER_TOKEN_INVALID",
                "This node needs the cluster token: send it as laya-cluster-token, or call a router instead.",
            )
        if not hmac.compare_digest(shown, token):
            raise LayaError(
                Code.UNAUTHENTICATED,
                "CLUSTER_TOKEN_INVALID",
                "The cluster token is wrong: set the same server.cluster_token on routers and nodes.",
            )
