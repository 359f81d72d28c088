"""Paths of the gRPC methods that a node serves on its port, and their handlers."""

from __future__ import annotations

from inference_node.node_service import NodeService
from inference_node.service import InferenceService
from inference_node.tunnel import Tunnel
from shared.net.grpc_server import Method
from shared.pb.laya.v1 import inference_pb2, node_pb2, openai_pb2


def routes(inference: InferenceService, tunnel: Tunnel, node: NodeService) -> dict[bytes, Method]:
    """The routes for ``GrpcServer``; its ``check`` must demand the cluster token for all of them."""
    return {
        b"/laya.v1.Inference/Generate": Method(inference.generate, inference_pb2.GenerateRequest, stream=True),
        b"/laya.v1.Inference/Complete": Method(inference.complete, inference_pb2.CompleteRequest),
        b"/laya.v1.Inference/Chat": Method(inference.chat, inference_pb2.ChatRequest, stream=True),
        b"/laya.v1.Inference/Embed": Method(inference.embed, inference_pb2.EmbedRequest),
        b"/laya.v1.Inference/ListModels": Method(inference.list_models, inference_pb2.ListModelsRequest),
        b"/laya.v1.OpenAI/Call": Method(tunnel.call, openai_pb2.HttpRequest, stream=True),
        b"/laya.v1.Node/Describe": Method(node.describe, node_pb2.DescribeRequest),
        b"/laya.v1.Node/Watch": Method(node.watch, node_pb2.WatchRequest, stream=True),
        b"/laya.v1.Node/Drain": Method(node.drain, node_pb2.DrainRequest),
    }
