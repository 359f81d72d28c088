"""The node as its parts see it: who it is, what its engine found, and whether it serves.

``main`` makes one and hands it to every part. Until the engine has started there is neither ``info`` nor
``admission``, and ``serving`` refuses what comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from inference_node.admission import Admission
from inference_node.config import model_names
from inference_node.engines.base import Engine, EngineError, EngineInfo
from shared.config.schema import Config
from shared.errors import Code, LayaError, unavailable
from shared.ids import boot_id

if TYPE_CHECKING:
    from inference_node.keeper import Keeper

DRAINING = "drain"
_DRAINING_SENTENCE = "this node is draining"


class Serving:
    """What a request needs once the engine runs."""

    __slots__ = ("admission", "engine", "info", "keeper")

    def __init__(self, engine: Engine, info: EngineInfo, admission: Admission, keeper: Keeper | None = None) -> None:
        self.engine = engine
        self.info = info
        self.admission = admission
        self.keeper = keeper


class NodeState:
    """See the module's docstring. ``on_change`` runs when ready or draining changed."""

    def __init__(self, config: Config, node_id: str = "") -> None:
        self.config = config
        self.node_id = node_id
        self.boot_id = boot_id()
        self.names = model_names(config.inference)
        self.on_change: list[Callable[[], None]] = []
        self.failed = asyncio.Event()
        self.failure = ""
        self._serving: Serving | None = None
        self._draining = False

    @property
    def serving(self) -> Serving:
        """Engine and admission. Raises UNAVAILABLE while the engine is not up."""
        found = self._serving
        if found is None:
            raise unavailable("This node is still loading its model; try again in a moment.", "NOT_READY", 1.0)
        return found

    @property
    def serving_or_none(self) -> Serving | None:
        """Engine and admission once the engine is up."""
        return self._serving

    @property
    def draining(self) -> bool:
        """Whether nothing new is taken because of a drain."""
        return self._draining

    @property
    def ready(self) -> bool:
        """Whether requests are served now."""
        return self._serving is not None and not self._draining and not self.failed.is_set()

    def start_serving(self, serving: Serving) -> None:
        """The engine is up and warm."""
        self._serving = serving
        if self._draining:
            serving.admission.close(DRAINING, _DRAINING_SENTENCE)
        self._changed()

    def drain(self, undo: bool = False) -> None:
        """Take nothing new, or take requests again."""
        self._draining = not undo
        if self._serving is not None:
            if undo:
                self._serving.admission.reopen(DRAINING)
            else:
                self._serving.admission.close(DRAINING, _DRAINING_SENTENCE)
        self._changed()

    def fail(self, error: EngineError) -> None:
        """The engine is dead: the node answers nothing more and its process ends."""
        if not self.failed.is_set():
            self.failure = str(error)
            self.failed.set()
            if self._serving is not None:
                self._serving.admission.close("engine", "the engine has failed")
            self._changed()

    def engine_error(self, error: EngineError) -> LayaError:
        """What the client is told of an engine's failure; a fatal one ends the node."""
        if error.fatal:
            self.fail(error)
        return LayaError(Code.INTERNAL, "ENGINE_FAILED", f"The engine failed: {error}.")

    def check_model(self, name: str) -> str:
        """The model's own name for a name or alias, empty meaning the only one. Raises NOT_FOUND."""
        names = self.names
        if name and name not in names:
            raise LayaError(
                Code.NOT_FOUND,
                "MODEL_NOT_FOUND",
                f"There is no model {name[:128]!r} on this node; it serves {', '.join(names)}.",
                param="model",
            )
        return names[0]

    def _changed(self) -> None:
        for listener in self.on_change:
            listener()
