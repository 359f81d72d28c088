"""The methods that are dispatched to nodes, and how the first message of each is read when metadata is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from router_node.dispatch import hash_blocks
from router_node.relay import scan, wire
from router_node.relay.fields import Fields, model
from router_node.relay.peek import Wanted, peek
from router_node.relay.settings import RelaySettings
from shared.errors import LayaError, invalid

TUNNEL_PATH: Final = b"/laya.v1.OpenAI/Call"
LIST_MODELS_PATH: Final = b"/laya.v1.Inference/ListModels"
HASH_FROM: Final = 512  # bytes: a shorter prompt has no whole block to hash

Reader = Callable[[bytes, Fields, RelaySettings], None]


class Method:
    """One dispatched method: its label in logs and metrics, and what reads its first message into Fields."""

    __slots__ = ("label", "read")

    def __init__(self, label: str, read: Reader) -> None:
        self.label = label
        self.read = read


def _typed(walk: Callable[[bytes], scan.Scan], sampling: str) -> Reader:
    """A reader of a typed request; ``sampling`` is where its sampling parameters are, for messages."""

    def read(message: bytes, into: Fields, settings: RelaySettings) -> None:
        try:
            found = walk(message)
        except wire.Malformed as error:
            raise _malformed(error) from None
        merge_scan(found, into, settings, sampling)

    return read


def _read_tunnel(message: bytes, into: Fields, settings: RelaySettings) -> None:
    try:
        _, _, body = scan.scan_http(message)
    except wire.Malformed as error:
        raise _malformed(error) from None
    merge_peek(peek(body, settings.max_n, settings.max_max_tokens), into)


def _malformed(error: wire.Malformed) -> LayaError:
    return invalid(f"The first message is not the protobuf message this method takes: {error}.")


def merge_scan(found: scan.Scan, into: Fields, settings: RelaySettings, sampling: str) -> None:
    """Complete the fields with what a typed message says; what metadata named stays.

    Raises LayaError INVALID_ARGUMENT for ``n`` or ``max_tokens`` of 0 or above the router's caps.
    """
    n, limit = found.n, found.max_tokens
    if n is not None and not 1 <= n <= settings.max_n:
        raise invalid(f"The field '{sampling}.n' is {n}: it must be 1 to {settings.max_n}.", f"{sampling}.n")
    if limit is not None and not 1 <= limit <= settings.max_max_tokens:
        most = settings.max_max_tokens
        raise invalid(
            f"The field '{sampling}.max_tokens' is {limit}: it must be 1 to {most}.", f"{sampling}.max_tokens"
        )
    if not into.model:
        into.model = model(found.model, "model")
    into.n = n or 1
    if not into.max_new_tokens and limit is not None:
        into.max_new_tokens = limit * into.n
    if not into.named:
        into.priority = found.priority
    if found.token_ids is not None:
        into.prompt_tokens = found.token_ids
        into.exact = True
    else:
        into.prompt_bytes = found.prompt_bytes
    if not into.prefix and found.prompt_bytes >= HASH_FROM:
        into.prefix = hash_blocks(found.prompt)


def merge_peek(found: Wanted, into: Fields) -> None:
    """Complete the fields with what an OpenAI request's JSON says; what metadata or headers named stays."""
    if not into.model:
        into.model = found.model
    into.n = found.n
    if not into.max_new_tokens and found.max_tokens is not None:
        into.max_new_tokens = found.max_tokens * found.n
    if not into.named and found.priority is not None:
        into.priority = found.priority
    into.prompt_bytes = found.prompt_bytes
    if not into.prefix and found.prompt_bytes >= HASH_FROM:
        into.prefix = hash_blocks(found.prompt)


def check_caps(fields: Fields, settings: RelaySettings) -> None:
    """Refuse metadata that asks for more new tokens than n and max_tokens at their caps could give.

    Raises LayaError INVALID_ARGUMENT. The node holds each of the two to its cap.
    """
    most = settings.max_n * settings.max_max_tokens
    if fields.max_new_tokens > most:
        raise invalid(f"laya-max-tokens is {fields.max_new_tokens}: at most {most} are allowed.", "laya-max-tokens")


METHODS: Final[dict[bytes, Method]] = {
    b"/laya.v1.Inference/Generate": Method("Generate", _typed(scan.scan_generate, "sampling")),
    b"/laya.v1.Inference/Complete": Method("Complete", _typed(scan.scan_complete, "request.sampling")),
    b"/laya.v1.Inference/Chat": Method("Chat", _typed(scan.scan_chat, "sampling")),
    b"/laya.v1.Inference/Embed": Method("Embed", _typed(scan.scan_embed, "sampling")),
    TUNNEL_PATH: Method("OpenAI.Call", _read_tunnel),
}
