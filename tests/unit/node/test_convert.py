"""Between protocol messages and engine types."""

from __future__ import annotations

from inference_node import convert
from inference_node.clamps import NONE, parse
from inference_node.engines.base import Delta, Logprob, Position
from shared.pb.laya.v1 import inference_pb2 as pb


def test_unset_fields_take_the_models_own_defaults():
    out = convert.sampling(pb.SamplingParams(), None, NONE)
    assert (out.n, out.temperature, out.top_k, out.seed, out.logprobs) == (1, None, None, None, None)
    assert out.skip_special_tokens and out.spaces_between_special_tokens
    assert convert.wanted_tokens(pb.SamplingParams(), NONE) is None


def test_set_fields_pass_zero_too():
    params = pb.SamplingParams(
        max_tokens=7,
        temperature=0,
        top_k=0,
        seed=-5,
        n=2,
        stop=["a"],
        stop_token_ids=[3],
        logprobs=0,
        min_tokens=2,
        logit_bias={4: 1.5},
        allowed_token_ids=[9],
        bad_words=["b"],
        ignore_eos=True,
        skip_special_tokens=False,
        include_stop_str_in_output=True,
    )
    out = convert.sampling(params, None, NONE)
    assert (out.temperature, out.top_k, out.seed, out.n, out.logprobs, out.min_tokens) == (0, 0, -5, 2, 0, 2)
    assert (out.stop, out.stop_token_ids, out.bad_words) == (["a"], [3], ["b"])
    assert (out.logit_bias, out.allowed_token_ids) == ({4: 1.5}, [9])
    assert out.ignore_eos and out.include_stop_str_in_output and not out.skip_special_tokens
    assert convert.wanted_tokens(params, NONE) == 7
    assert convert.wanted_tokens(params, parse(b'{"max_tokens":{"max":3}}')) == 3


def test_each_form_of_structured_output_is_carried():
    forms = {
        "json_schema": pb.StructuredOutput(json_schema="{}"),
        "json_object": pb.StructuredOutput(json_object=True),
        "regex": pb.StructuredOutput(regex="a+"),
        "grammar": pb.StructuredOutput(grammar="root ::= x"),
        "choice": pb.StructuredOutput(choice=pb.Choices(options=["a", "b"])),
    }
    for name, form in forms.items():
        out = convert.sampling(pb.SamplingParams(), form, NONE)
        given = [n for n in forms if getattr(out, n)]
        assert given == [name]


def test_deltas_become_messages():
    position = Position(Logprob(5, "a", -0.5, 1), [Logprob(6, "b", -1.0, 2)])
    delta = Delta(1, "text", [5], [position], "stop", "END", 3, [position])
    message = convert.generate_response(delta)
    assert (message.index, message.text, list(message.token_ids)) == (1, "text", [5])
    assert (message.finish_reason, message.stop_reason) == (pb.FINISH_REASON_STOP, "END")
    assert message.logprobs[0].top[0].rank == 2 and message.prompt_logprobs[0].chosen.token == "a"
    chat = convert.chat_response(delta, True)
    assert (chat.role, chat.content) == ("assistant", "text")
    assert convert.chat_response(delta, False).role == ""


def test_an_unknown_finish_reason_is_a_stop():
    assert convert.finish("repetition") == pb.FINISH_REASON_STOP
    assert convert.finish("length") == pb.FINISH_REASON_LENGTH
