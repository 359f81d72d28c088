"""Memory of a node: pure functions and plain state, no I/O.

``ledger`` counts the KV blocks promised to admitted requests.
"""

from inference_node.memory.ledger import Hold, Ledger, LedgerFull

__all__ = ["Hold", "Ledger", "LedgerFull"]
