"""The models there are, as OpenAI's API lists them."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec

from router_node.routes.table import RouteTable
from shared.errors import Code, LayaError

MODELS: Final = b"/v1/models"


class _Cards(msgspec.Struct):
    data: list[msgspec.Raw]


class _Id(msgspec.Struct):
    id: str


class Models:
    """Answers ``GET /v1/models`` and what is below it."""

    __slots__ = ("_cards", "_cards_of", "_table")

    def __init__(self, table: RouteTable) -> None:
        self._table = table
        self._cards: dict[str, bytes] = {}
        self._cards_of = b""

    def answer(self, path: bytes) -> bytes:
        """The list of models, or one of them. Raises LayaError NOT_FOUND naming those there are."""
        whole = self._table.models_json()
        if path == MODELS:
            return whole
        if whole is not self._cards_of:
            cards = msgspec.json.decode(whole, type=_Cards).data
            self._cards = {msgspec.json.decode(card, type=_Id).id: bytes(card) for card in cards}
            self._cards_of = whole
        name = unquote_to_bytes(path[len(MODELS) + 1 :]).decode("utf-8", "replace")
        card = self._cards.get(name)
        if card is None:
            there = ", ".join(sorted(self._cards)[:32]) or "none yet"
            raise LayaError(
                Code.NOT_FOUND,
                "MODEL_NOT_FOUND",
                f"The model {name[:256]!r} does not exist: there are {there}.",
                param="model",
            )
        return card
