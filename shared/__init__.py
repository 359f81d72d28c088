"""What the router, the node and the command line have in common."""
