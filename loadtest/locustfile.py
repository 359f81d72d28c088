"""Locust users for Laya: ``GrpcUser`` (typed streams) and ``HttpUser`` (OpenAI API over SSE).

    locust -f loadtest/locustfile.py --headless -u 8 -r 8 -t 20s --host http://127.0.0.1:8000
    locust -f loadtest/locustfile.py --headless -u 8 --shape overload -t 90s --host http://127.0.0.1:8000 GrpcUser
    locust -f loadtest/locustfile.py --headless -u 4 -t 60s --arrivals poisson --rate 2 --host http://127.0.0.1:8000

docs/loadtest.md explains the options. Load stays on loopback unless --i-own-this-host names the host. Exit codes: 0;
1 where calls failed (--exit-code-on-error); 2 for bad options; 3 for a target that cannot be used.
"""

from __future__ import annotations

import sys
from pathlib import Path

from locust import events, stats

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtest.users.people import GrpcPerson, HttpPerson, Person
from loadtest.users.record import bucket
from loadtest.users.site import Site


class GrpcUser(GrpcPerson):
    """Streams over gRPC; the calls are made in a process of their own, without gevent."""


class HttpUser(HttpPerson):
    """Streams over the OpenAI API."""


stats.bucket_response_time = bucket  # type: ignore[assignment]
Site(Person).listen(events)
