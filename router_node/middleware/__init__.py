"""What may accept, refuse or change a request before it is dispatched."""

from router_node.middleware.keys import Authorizer, Caller, KeyFileError, KeyRecord, KeyStore

__all__ = ["Authorizer", "Caller", "KeyFileError", "KeyRecord", "KeyStore"]
