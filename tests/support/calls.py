"""Calls to a simulated model through grpcio, sync or aio."""

from __future__ import annotations

from typing import Any

from shared.pb.laya.v1 import inference_pb2 as pb
from shared.pb.laya.v1 import inference_pb2_grpc


def stub_of(channel: Any) -> Any:
    """The stub of Inference on a channel."""
    return inference_pb2_grpc.InferenceStub(channel)  # type: ignore[no-untyped-call]


def ask(tokens: int, text: str = "hi") -> pb.GenerateRequest:
    """A request for exactly so many tokens."""
    request = pb.GenerateRequest(model="sim", text=text)
    request.sampling.max_tokens = tokens
    request.sampling.ignore_eos = True
    return request
