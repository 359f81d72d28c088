"""``laya bench``: named plans of load, their reports, and the comparison of two."""
