"""Benchmarks and load: canned nodes, the router's own cost, locust users."""
