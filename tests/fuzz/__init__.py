"""Fuzzing of the glue over both parsers and the protobuf scanner: ``python -m tests.fuzz --seconds 60``."""
