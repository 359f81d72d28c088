"""Load users: what they ask, when, over which API, and the figures of what came back."""
