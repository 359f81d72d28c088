"""The simulator's OpenAI application: it refuses what canned text cannot honour, so nobody takes it for a model."""

from __future__ import annotations

from inference_node.engines import sim_bodies
from inference_node.engines.base import Sampling
from inference_node.engines.openai_app import LocalOpenAI
from inference_node.engines.openai_bodies import CommonBody


class SimOpenAI(LocalOpenAI):
    """The application; one per engine."""

    def sampling(self, body: CommonBody, max_tokens: int, logprobs: int | None) -> Sampling:
        """The sampling parameters of a body. Raises BadRequest for what the simulator cannot do."""
        return sim_bodies.sampling_of(body, max_tokens, logprobs)
