"""Plain counts and their names."""

from __future__ import annotations

from shared.net.counters import NetCounters


def test_totals_are_all_counters_but_the_reasons():
    counters = NetCounters()
    counters.streams_opened = 3
    counters.count("flood")
    counters.count("flood")
    totals = counters.totals()
    names = {name for name in dir(counters) if not name.startswith("_") and not callable(getattr(counters, name))}
    assert set(totals) == names - {"reasons"}
    assert totals["streams_opened"] == 3
    assert counters.reasons == {"flood": 2}
