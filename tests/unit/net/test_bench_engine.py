"""The comparison of engines measures what it says."""

from __future__ import annotations

import pytest

from loadtest.bench_engine import ENGINES, Talk, cost, main


@pytest.mark.parametrize("name", ENGINES)
def test_a_talk_makes_whole_calls_and_streams(name: str):
    talk = Talk(name)
    talk.calls(3)
    talk.messages(5)
    assert (talk.client.gone, talk.server.gone) == (4, 4)


def test_cost_is_that_of_one_piece_of_work():
    done = 0

    def work(n: int) -> None:
        nonlocal done
        done += n
        for _ in range(n):
            sum(range(1000))

    assert 1.0 < cost(work, 0.01) < 10_000.0
    assert done > 50


def test_the_command_prints_a_line_for_each_engine(capsys: pytest.CaptureFixture[str]):
    main(["--seconds", "0.001"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["engine", *ENGINES]
