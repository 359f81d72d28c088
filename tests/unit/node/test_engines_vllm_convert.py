"""Between the seam's data and vLLM's objects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inference_node.engines import vllm_convert
from inference_node.engines.base import BadRequest, EngineError, GenerateCall, Logprob, Position, Prompt, Sampling


class Flat(SimpleNamespace):
    """vLLM's flat log-probabilities, one list of (id, text, logprob, rank) per position."""

    def __init__(self, *rows: list[tuple[int, str, float, int]]) -> None:
        entries = [entry for row in rows for entry in row]
        ends = [sum(len(row) for row in rows[: i + 1]) for i in range(len(rows))]
        super().__init__(
            start_indices=[end - len(row) for end, row in zip(ends, rows, strict=True)],
            end_indices=ends,
            token_ids=[e[0] for e in entries],
            decoded_tokens=[e[1] for e in entries],
            logprobs=[e[2] for e in entries],
            ranks=[e[3] for e in entries],
        )

    def __len__(self) -> int:
        return len(self.start_indices)


def call(**sampling: Any) -> GenerateCall:
    return GenerateCall("r", Prompt([7, 8]), Sampling(4, **sampling))


def output(*parts: SimpleNamespace, **values: Any) -> SimpleNamespace:
    return SimpleNamespace(**({"outputs": parts, "num_cached_tokens": None, "prompt_logprobs": None} | values))


def part(**values: Any) -> SimpleNamespace:
    base = {"index": 0, "text": "", "token_ids": [], "logprobs": None, "finish_reason": None, "stop_reason": None}
    return SimpleNamespace(**(base | values))


def test_each_completion_of_an_output_is_a_delta() -> None:
    first, second = vllm_convert.deltas(
        output(
            part(text="a", token_ids=[1]),
            part(index=1, text="b", token_ids=[2], finish_reason="stop", stop_reason=42),
            num_cached_tokens=128,
        ),
        call(n=2),
    )
    assert (first.index, first.text, first.token_ids, first.finish_reason, first.stop_reason) == (0, "a", [1], "", "")
    assert (second.index, second.finish_reason, second.stop_reason, second.cached_tokens) == (1, "stop", "42", 128)


def test_chosen_token_is_not_among_its_alternatives() -> None:
    flat = Flat([(5, "x", -0.1, 1), (5, "x", -0.1, 1), (6, "y", -2.0, 2), (7, "z", -3.0, 3)])
    (position,) = vllm_convert.positions(flat, [5], 2)
    assert position.chosen == Logprob(5, "x", -0.1, 1)
    assert [top.token_id for top in position.top] == [6, 7]


def test_unlikely_choice_still_has_the_asked_number_of_alternatives() -> None:
    flat = Flat([(9, "q", -9.0, 50), (5, "x", -0.1, 1), (6, "y", -2.0, 2), (7, "z", -3.0, 3)])
    (position,) = vllm_convert.positions(flat, [9], 2)
    assert position.chosen.rank == 50
    assert [top.rank for top in position.top] == [1, 2]


def test_first_prompt_token_has_nothing_before_it() -> None:
    delta = vllm_convert.deltas(
        output(part(), prompt_logprobs=Flat([], [(8, "b", -1.0, 2), (3, "c", -0.5, 1)])), call(prompt_logprobs=1)
    )[0]
    assert delta.prompt_logprobs == [
        Position(Logprob(7, "", 0.0, 0)),
        Position(Logprob(8, "b", -1.0, 2), [Logprob(3, "c", -0.5, 1)]),
    ]


@pytest.mark.parametrize(
    ("method", "settings", "label"),
    [
        (None, {}, ""),
        ("awq", {"bits": 4}, "awq"),
        ("compressed-tensors", {"config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}}}}, "w8a16"),
        (
            "compressed-tensors",
            {"config_groups": {"g": {"weights": {"num_bits": 8}, "input_activations": {"num_bits": 8}}}},
            "w8a8",
        ),
        ("compressed-tensors", {"config_groups": {"g": {"weights": {"num_bits": 4}}}}, "w4a16"),
        ("compressed-tensors", {"config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}}}, "fp8"),
        ("compressed-tensors", {"config_groups": {}}, "compressed-tensors"),
        ("compressed-tensors", {"config_groups": {"g": {}}}, "compressed-tensors"),
    ],
)
def test_quantization_has_the_name_people_use(method: str | None, settings: dict[str, Any], label: str) -> None:
    assert vllm_convert.quantization_label(method, settings) == label


@pytest.fixture(scope="module")
def vllm() -> None:
    pytest.importorskip("vllm")


@pytest.mark.usefixtures("vllm")
class TestWithVllm:
    """What needs vLLM's own classes."""

    def test_none_takes_the_models_own_default(self) -> None:
        params = vllm_convert.sampling_params(Sampling(5, top_p=0.5), {"temperature": 0.2, "top_p": 0.9, "top_k": 3})
        assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0.2, 0.5, 3, 5)
        assert vllm_convert.sampling_params(Sampling(5), {}).temperature == 1.0

    def test_every_field_reaches_vllm(self) -> None:
        sampling = Sampling(
            9,
            n=2,
            temperature=0.5,
            min_p=0.1,
            presence_penalty=0.1,
            frequency_penalty=0.2,
            repetition_penalty=1.2,
            seed=7,
            stop=("a",),
            stop_token_ids=(3,),
            include_stop_str_in_output=True,
            ignore_eos=True,
            min_tokens=1,
            logprobs=0,
            prompt_logprobs=2,
            logit_bias={5: 1.0},
            allowed_token_ids=(5, 6),
            bad_words=("b",),
            skip_special_tokens=False,
            spaces_between_special_tokens=False,
        )
        params = vllm_convert.sampling_params(sampling, {})
        for name in (
            "n",
            "temperature",
            "min_p",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "seed",
        ):
            assert getattr(params, name) == getattr(sampling, name), name
        for name in ("include_stop_str_in_output", "ignore_eos", "min_tokens", "logit_bias", "skip_special_tokens"):
            assert getattr(params, name) == getattr(sampling, name), name
        for name in ("stop", "stop_token_ids", "allowed_token_ids", "bad_words"):
            assert getattr(params, name) == list(getattr(sampling, name)), name
        assert (params.logprobs, params.prompt_logprobs) == (0, 3)
        assert params.skip_special_tokens is params.spaces_between_special_tokens is False

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("json_schema", '{"type":"object"}'),
            ("json_object", True),
            ("regex", "a+"),
            ("grammar", 'root ::= "a"'),
            ("choice", ("a", "b")),
        ],
    )
    def test_each_constraint_has_its_place(self, field: str, value: Any) -> None:
        made = vllm_convert.structured_outputs(Sampling(1, **{field: value}))
        there = getattr(made, {"json_schema": "json"}.get(field, field))
        assert there == (list(value) if isinstance(value, tuple) else value)

    def test_no_constraint_is_none(self) -> None:
        assert vllm_convert.structured_outputs(Sampling(1)) is None

    @pytest.mark.parametrize(
        ("values", "param"),
        [({"temperature": 9.0}, "temperature"), ({"top_p": 0.0}, "top_p"), ({"min_tokens": 9}, None)],
    )
    def test_what_vllm_refuses_is_the_clients_fault(self, values: dict[str, Any], param: str | None) -> None:
        with pytest.raises(BadRequest) as caught:
            vllm_convert.sampling_params(Sampling(1, **values), {})
        assert caught.value.param == param
        assert "(parameter=" not in str(caught.value)

    def test_dead_core_is_fatal_and_a_failed_request_is_not(self) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        dead = vllm_convert.client_error(EngineDeadError())
        assert isinstance(dead, EngineError)
        assert dead.fatal
        failed = EngineGenerateError()
        failed.__cause__ = KeyError("x")
        error = vllm_convert.client_error(failed)
        assert isinstance(error, EngineError)
        assert not error.fatal
        failed.__cause__ = ValueError("too long")
        assert isinstance(vllm_convert.client_error(failed), BadRequest)

    def test_vllms_own_admission_would_be_our_failure(self) -> None:
        from vllm.exceptions import QueueOverflowError

        assert isinstance(vllm_convert.client_error(QueueOverflowError()), EngineError)

    def test_errors_of_the_seam_pass(self) -> None:
        for error in (BadRequest("x"), EngineError("x")):
            assert vllm_convert.client_error(error) is error
        assert isinstance(vllm_convert.client_error(RuntimeError("x")), EngineError)
