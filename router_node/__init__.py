"""The stateless front: relays each request to the node that should run it."""

import shared  # noqa: F401 - it chooses the form of the hot path, before anything of it is imported
