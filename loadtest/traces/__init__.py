"""Traces of real traffic, or like it: reading them, and sending them again."""
