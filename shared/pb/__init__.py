"""Generated from protos/laya/v1 by protos/generate.py; do not edit."""
