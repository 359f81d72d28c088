"""The methods that are dispatched to nodes, and how the first message of each is read when metadata is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from router_node.relay import scan
from router_node.relay.fields import Fields
from router_node.relay.settings import RelaySettings
from shared.errors import invalid

TUNNEL_PATH: Final = b"/laya.v1.OpenAI/Call"
LIST_MODELS_PATH: Final = b"/laya.v1.Inference/ListModels"

Reader = Callable[[bytes, Fields, RelaySettings], None]


class Method:
    """One dispatched method: its label in logs and metrics, and what reads its first message into Fields.

    ``streams``: its answers come token by token.
    """

    __slots__ = ("label", "read", "streams")

    def __init__(self, label: str, read: Reader, streams: bool = False) -> None:
        self.label = label
        self.read = read
        self.streams = streams


def check_caps(fields: Fields, settings: RelaySettings) -> None:
    """Refuse metadata that asks for more new tokens than n and max_tokens at their caps could give.

    Raises LayaError INVALID_ARGUMENT. The node holds each of the two to its cap.
    """
    most = settings.max_n * settings.max_max_tokens
    if fields.max_new_tokens > most:
        raise invalid(f"laya-max-tokens is {fields.max_new_tokens}: at most {most} are allowed.", "laya-max-tokens")


METHODS: Final[dict[bytes, Method]] = {
    b"/laya.v1.Inference/Generate": Method("Generate", scan.scan_generate, True),
    b"/laya.v1.Inference/Complete": Method("Complete", scan.scan_complete),
    b"/laya.v1.Inference/Chat": Method("Chat", scan.scan_chat, True),
    b"/laya.v1.Inference/Embed": Method("Embed", scan.scan_embed),
    TUNNEL_PATH: Method("OpenAI.Call", scan.scan_tunnel),
}
