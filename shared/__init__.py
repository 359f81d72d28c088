"""What the router, the node and the command line have in common."""

from shared.compiled import settle as _settle

_settle()
