"""What routers tell each other of sessions: only those that are not where the ring has them."""
