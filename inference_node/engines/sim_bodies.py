"""What of an OpenAI body the simulator cannot honour."""

from __future__ import annotations

from inference_node.engines import openai_bodies
from inference_node.engines.base import BadRequest, Sampling
from inference_node.engines.openai_bodies import CommonBody, Structured


def sampling_of(body: CommonBody, max_tokens: int, logprobs: int | None) -> Sampling:
    """The sampling parameters of a body. Raises BadRequest for what the simulator cannot do."""
    if body.use_beam_search:
        raise BadRequest("the sim engine has no beam search", "use_beam_search")
    if body.logit_bias or body.allowed_token_ids or body.bad_words:
        raise BadRequest("the sim engine generates canned text and cannot steer it", "logit_bias")
    if body.response_format is not None and body.response_format.type != "text":
        raise BadRequest(
            f"the sim engine generates canned text, not {body.response_format.type}; ask a real engine",
            "response_format",
        )
    form = body.structured_outputs or Structured()
    if form.json is not None or form.json_object or form.regex or form.grammar:
        raise BadRequest("of structured outputs the sim engine can do choice alone", "structured_outputs")
    return openai_bodies.sampling_of(body, max_tokens, logprobs)
