"""The ramp after a start, and where the bounds come from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_node.engines.base import EngineInfo
from inference_node.limits import AdmissionSettings, Ramp
from shared.config.schema import InferenceConfig


def test_the_ramp_goes_from_a_quarter_to_all():
    ramp = Ramp(10.0, 100.0)
    assert ramp.share(100.0) == 0.25
    assert ramp.share(105.0) == pytest.approx(0.625)
    assert ramp.share(110.0) == 1.0 and ramp.done
    assert ramp.share(100.0) == 1.0  # what has been given is not taken back


def test_without_a_ramp_all_is_given_at_once():
    ramp = Ramp(0.0, 100.0)
    assert ramp.done and ramp.of(7, 100.0) == 7 and ramp.next_step(100.0) is None


def test_a_share_is_never_nothing():
    assert Ramp(10.0, 0.0).of(2, 0.0) == 1


@given(st.floats(0.001, 3600), st.floats(0, 1e6), st.integers(1, 100_000))
def test_following_the_steps_ends_at_all_and_never_goes_back(seconds, began, total):
    ramp, now, given_before, steps = Ramp(seconds, began), began, 0, 0
    while (at := ramp.next_step(now)) is not None:
        assert at > now
        now, steps = at, steps + 1
        assert ramp.of(total, now) >= given_before
        given_before = ramp.of(total, now)
        assert steps <= 45
    assert ramp.of(total, now) == total and now <= began + seconds * 1.2


def test_long_prompts_have_half_of_the_prefill_budget():
    info = EngineInfo("sim", "m", "", 1000, "", 16, 100, 8, 256)
    settings = AdmissionSettings.of(InferenceConfig(ramp_seconds=9.0, priority_ageing_seconds=4.0), info)
    assert (settings.max_prefill_tokens, settings.long_share) == (512, 256)
    assert (settings.ramp_seconds, settings.ageing, settings.queue_prefill_seconds) == (9.0, 4.0, 2.0)
