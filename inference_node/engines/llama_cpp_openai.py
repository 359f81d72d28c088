"""The OpenAI application of engine llama_cpp: what it cannot do is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inference_node.engines.base import BadRequest, GenerateCall
from inference_node.engines.openai_app import LocalOpenAI

if TYPE_CHECKING:
    from inference_node.engines.llama_cpp import LlamaCppEngine

# Keys that other servers take and that would change the answer; whoever sends one must not think that it was heard.
_NOT_HERE = (
    "add_special_tokens",
    "allowed_tokens",
    "audio",
    "chat_template",
    "continue_final_message",
    "documents",
    "dry_multiplier",
    "function_call",
    "functions",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "length_penalty",
    "logits_processors",
    "mirostat",
    "modalities",
    "prompt_embeds",
    "prompt_logprobs",
    "reasoning_effort",
    "return_token_ids",
    "truncate_prompt_tokens",
    "typical_p",
    "xtc_probability",
)


class LlamaOpenAI(LocalOpenAI):
    """The application; one per engine."""

    def __init__(self, engine: LlamaCppEngine) -> None:
        super().__init__(engine)
        self._llama = engine

    def check_body(self, body: dict[str, Any]) -> None:
        """Raise BadRequest for keys that would change the answer and that this engine does not have."""
        for name in _NOT_HERE:
            if body.get(name):
                raise BadRequest(f"the llama_cpp engine does not take {name}", name)
        if body.get("tools") and body.get("tool_choice") != "none":
            raise BadRequest("the llama_cpp engine calls no tools", "tools")
        if body.get("add_generation_prompt") is False:
            raise BadRequest("set add_generation_prompt in chat_template_kwargs", "add_generation_prompt")

    async def prepare(self, call: GenerateCall) -> None:
        """Read the grammar before the answer begins."""
        await self._llama.grammar(call.sampling)
