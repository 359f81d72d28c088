"""The command line, ``laya``."""
