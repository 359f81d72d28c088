"""Where the nodes are, and whether they work. Import the modules by name: a node needs only ``registration``."""
