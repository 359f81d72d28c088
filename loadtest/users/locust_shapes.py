"""Our shapes as locust has them."""

from __future__ import annotations

from typing import Any

from locust import LoadTestShape

from loadtest.users.shapes import SHAPES, USERS, Shape, start_rate


class TimedShape(LoadTestShape):
    """One of the shapes; --users is its height, --run-time its length."""

    abstract = True  # locust must not take it by itself
    use_common_options = True

    def __init__(self, shape: Shape, environment: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shape, self._environment = shape, environment
        self._before = 0

    def reset_time(self) -> None:
        """A new test begins."""
        super().reset_time()  # type: ignore[no-untyped-call]
        self._before = 0

    def tick(self) -> tuple[int, float] | None:
        """Users now, and how fast to get there."""
        options = self._environment.parsed_options
        seconds = float(options.run_time or 0) or self._shape.seconds
        passed: float = self.get_run_time()  # type: ignore[no-untyped-call]
        now = self._shape.users(passed, seconds, options.num_users or USERS)
        if now is None:
            return None
        rate = start_rate(now, self._before) if now != self._before else 1.0
        self._before = now
        return now, rate


def install(environment: Any, name: str) -> None:
    """Put a shape before locust; all of them can be picked on a web page with --class-picker."""
    there = {key: TimedShape(shape, environment) for key, shape in SHAPES.items()}
    environment.available_shape_classes = {**(environment.available_shape_classes or {}), **there}
    if name:
        environment.shape_class = there[name]
