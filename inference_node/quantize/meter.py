"""How far a long piece of work is, as parts of parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from inference_node.quantize.schemes import Progress


class Meter:
    """Maps the progress of one part of the work to its stretch of the whole, and reports that.

    ``at`` takes 0 to 1 within the part; values that would go backwards are held, so that a bar never does.
    """

    def __init__(self, report: Progress | None, low: float = 0.0, high: float = 1.0) -> None:
        self._report = report
        self._low = low
        self._high = high
        self._last = 0.0

    def at(self, fraction: float, text: str = "") -> None:
        """Say how far this part is, and at what."""
        self._last = max(self._last, min(1.0, fraction))
        if self._report is not None:
            self._report(self._low + (self._high - self._low) * self._last, text)

    def part(self, low: float, high: float) -> Meter:
        """A meter for the stretch from ``low`` to ``high`` of this one."""
        return Meter(self.at, low, high)


class _Counted:
    """Stands in for a tqdm bar: iterates or is updated, and tells a meter instead of drawing."""

    def __init__(self, meter: Meter, iterable: Iterable[Any] | None, total: float | None, text: str) -> None:
        self._meter = meter
        self._iterable = iterable
        self._total = total or 0
        self._text = text
        self._count = 0.0

    def update(self, n: float | None = 1) -> None:
        """One more step of the total."""
        self._count += 1 if n is None else n
        if self._total:
            self._meter.at(self._count / self._total, self._text)

    def __iter__(self) -> Iterator[Any]:
        for item in self._iterable or ():
            yield item
            self.update()

    def __enter__(self) -> _Counted:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def __getattr__(self, name: str) -> Callable[..., None]:
        # Whatever else a bar can do (set_description, close, refresh, ...) has nothing to say to a meter.
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


def counted(meter: Meter, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Counted:
    """The stand-in for the bar that ``tqdm(*args, **kwargs)`` would be."""
    iterable: Any = args[0] if args else kwargs.get("iterable")
    total = kwargs.get("total")
    if total is None and hasattr(iterable, "__len__"):
        total = len(iterable)
    return _Counted(meter, iterable, total, _plain(str(kwargs.get("desc") or "")))


@contextmanager
def loading_progress(meter: Meter) -> Iterator[None]:
    """While inside, the bars that transformers would draw on the terminal move the meter instead."""
    from transformers import modeling_gguf_pytorch_utils as gguf_loader
    from transformers.utils import logging

    previous = logging.set_tqdm_hook(lambda factory, args, kwargs: counted(meter, args, kwargs))
    drawn = gguf_loader.tqdm  # the one place that does not ask the hook
    gguf_loader.tqdm = lambda *args, **kwargs: counted(meter, args, kwargs)
    try:
        yield
    finally:
        gguf_loader.tqdm = drawn
        logging.set_tqdm_hook(previous)


def _plain(text: str) -> str:
    return text.rstrip(" .:").lower().replace("gguf", "GGUF")
