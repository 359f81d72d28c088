"""The stateless front: relays each request to the node that should run it."""
