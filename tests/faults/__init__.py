"""Real processes on hosts of their own, broken in every way we know, under a load whose every answer is checked."""

import os

# Processes are started while gRPC runs in this one; see tests/conftest.py. Read when grpc is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
