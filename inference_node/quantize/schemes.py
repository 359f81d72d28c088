"""The quantization schemes, as plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Progress = Callable[[float, str], None]
"""Called with how far the work is, 0 to 1, and at what. Any thread."""


class QuantizeError(Exception):
    """A refusal, as one sentence for a person: what, where, what to do."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the linear layers of a model are stored and run.

    ``group_size`` is the number of neighbouring inputs that share a scale; None means one scale for each output
    channel. ``activation_bits`` None leaves activations as they are; else they are quantized per token at run time.
    """

    name: str
    title: str
    weight_bits: int
    group_size: int | None
    activation_bits: int | None
    format: str

    def weights(self) -> dict[str, Any]:
        """The fields of compressed-tensors' ``QuantizationArgs`` for the weights."""
        fields: dict[str, Any] = {"num_bits": self.weight_bits, "type": "int", "symmetric": True, "dynamic": False}
        if self.group_size is None:
            return {**fields, "strategy": "channel"}
        return {**fields, "strategy": "group", "group_size": self.group_size}

    def activations(self) -> dict[str, Any] | None:
        """The same for the activations, None when they stay in 16 bits."""
        if self.activation_bits is None:
            return None
        bits = self.activation_bits
        return {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}

    def layer_bytes(self, outputs: int, inputs: int) -> int:
        """Bytes of one stored linear layer: packed weights, and a 16-bit scale for each group or channel."""
        groups = 1 if self.group_size is None else -(-inputs // self.group_size)
        return outputs * -(-inputs * self.weight_bits // 8) + outputs * groups * 2


SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme("w8a8", "8-bit weights per channel, 8-bit activations per token", 8, None, 8, "int-quantized"),
        Scheme("w4a16", "4-bit weights in groups of 64, 16-bit activations", 4, 64, None, "pack-quantized"),
    )
}


def find(name: str) -> Scheme:
    """The scheme of that name in any case; QuantizeError names those there are."""
    scheme = SCHEMES.get(name.strip().lower())
    if scheme is None:
        raise QuantizeError(f"scheme {name!r} is not known; choose one of {', '.join(SCHEMES)}")
    return scheme
