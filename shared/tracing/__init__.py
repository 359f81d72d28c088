"""Spans of sampled requests, told to an OpenTelemetry collector.

``context`` reads and writes W3C trace context and decides what is sampled; ``span`` is a finished span as plain data,
``trace`` makes those of one request; ``exporter`` keeps them in a bounded queue and sends them from a thread of its
own. Only that thread imports OpenTelemetry, so where no endpoint is configured nothing of it is ever loaded.
"""
