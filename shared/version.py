"""The version of Laya, and of the protocol between routers and nodes."""

__version__ = "0.1.0"
PROTOCOL = 1
