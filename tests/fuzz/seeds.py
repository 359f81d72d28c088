"""Inputs to begin with: what real clients sent (``corpus/``, captured on the wire), and messages of our protocol."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from router_node.gateway.tunnel import request_message, request_opening
from shared.errors import exhausted
from shared.net.grpc_wire import frame
from shared.pb.laya.v1 import inference_pb2 as pb
from shared.pb.laya.v1 import openai_pb2

CORPUS = Path(__file__).parent / "corpus"


def seeds() -> dict[str, list[bytes]]:
    """Inputs by target."""
    captured = {path.name: path.read_bytes() for path in sorted(CORPUS.iterdir())}
    http1 = [raw for name, raw in captured.items() if name.startswith("http1-")]
    http2 = [raw for name, raw in captured.items() if name.startswith("http2-")]
    generate = pb.GenerateRequest(model="sim", text="Hello")
    generate.sampling.max_tokens = 9
    chat = pb.ChatRequest(model="sim", messages=[pb.ChatMessage(role="user", content="hi")], priority=-3)
    body = json.dumps(
        {"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "n": 2}
    ).encode()
    head = openai_pb2.HttpResponseHead(
        status=200, headers=[openai_pb2.HttpHeader(name="content-type", value="text/event-stream")]
    )
    parts = [openai_pb2.HttpResponse(head=head), openai_pb2.HttpResponse(body=b"data: 1\n\n")]
    status = [value for _, value in exhausted("Full.", "QUEUE_FULL", 1.0).grpc_trailers()]
    packed = gzip.compress(generate.SerializeToString())
    return {
        "http1_parser": http1,
        "http1": http1,
        "http2": http2,
        "http2_pure": http2,
        "node": [raw for name, raw in captured.items() if name.startswith("node-")],
        "tunnel": [b"".join(frame(part.SerializeToString()) for part in parts)],
        "grpc": [frame(generate.SerializeToString()), frame(packed, True), b"\0".join(status), b"100m"],
        "message": [
            generate.SerializeToString(),
            pb.CompleteRequest(request=generate).SerializeToString(),
            chat.SerializeToString(),
            request_message(request_opening(b"POST", b"/v1/chat/completions", b""), body)[5:] + body,
            body,
        ],
        "metadata": [b"sim\n512\n5\n0123456789abcdef\n-1\nsession", b'{"max_n":4,"temperature":{"min":0.1}}'],
    }


def write_seeds(folder: Path, targets: list[str]) -> None:
    """One file for each input; its first byte chooses the target."""
    found = seeds()
    for i, target in enumerate(targets):
        for n, raw in enumerate(found[target]):
            (folder / f"{target}-{n}").write_bytes(bytes((i,)) + raw)
