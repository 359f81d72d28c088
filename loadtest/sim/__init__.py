"""A cluster on virtual time: the real dispatch, admission, ledger and reports around nodes that only keep time.

``events`` is the clock, ``engine`` and ``cache`` what a node computes, ``cluster`` the node around it, ``routers`` who
sends requests to it, ``policies`` the ways of choosing to compare with, ``traces`` and ``mooncake`` the requests,
``record`` and ``report`` what came of it. ``python -m loadtest.simulate`` runs it.
"""
