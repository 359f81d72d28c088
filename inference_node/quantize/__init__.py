"""Checkpoints in fewer bits: GGUF or safetensors in, compressed-tensors out, by round-to-nearest.

Importing this package is cheap; torch comes in when ``convert.quantize`` or ``demo.prepare`` runs.
"""

from __future__ import annotations

from inference_node.quantize.schemes import SCHEMES, Progress, QuantizeError, Scheme, find

__all__ = ["SCHEMES", "Progress", "QuantizeError", "Scheme", "find"]
