"""The route table: which names lead to which nodes."""

from router_node.routes.table import RouteTable

__all__ = ["RouteTable"]
