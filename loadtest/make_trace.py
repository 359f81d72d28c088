"""Makes a trace from a seed, with length distributions that others have published, in Mooncake's format.

    python loadtest/make_trace.py azure --requests 500 --rate 4 --seed 7 --out azure.jsonl

Kinds: azure (conversations of 2023: 1,020 tokens in and 129 out at the median), sharegpt (161 and 338 at the mean, in
turns), heavy (Pareto tails), shared (system prompts of 2,048 tokens, asked for by Zipf's law), mooncake (6.9 k in, 350
out, 37 % of the tokens seen before). The same arguments give the same file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtest.sim.traces import KINDS, Ask, make
from loadtest.users.text import BLOCK_TOKENS


def rows(kind: str, count: int, rate: float, burstiness: float, longest: int, seed: int) -> Iterator[dict[str, object]]:
    """The trace's lines: ``count`` requests, ``rate`` a second."""
    trace = make(kind, Ask(count=count, burstiness=burstiness, longest=longest), seed)
    stretch = count / rate / trace.seconds
    # An id stands for all the text before it too, so of smaller blocks every so-manyeth is a block of Mooncake's.
    step = BLOCK_TOKENS // trace.block_tokens
    fresh = 1 << 40  # ids for what is shared with nobody, as real traces have them
    for job in trace.jobs:
        ids = list(job.blocks[step - 1 :: step])
        while len(ids) < -(-job.prompt // BLOCK_TOKENS):
            ids.append(fresh)
            fresh += 1
        yield {
            "timestamp": round(job.arrived * stretch * 1e3),
            "input_length": job.prompt,
            "output_length": job.output,
            "hash_ids": ids,
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Write it; 2 for bad options."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("kind", choices=sorted(KINDS))
    p.add_argument("--requests", type=int, default=1000, help="how many (1000)")
    p.add_argument("--rate", type=float, default=4.0, help="a second, on average (4)")
    p.add_argument("--burstiness", type=float, default=1.0, help="1 is Poisson, more comes in bursts (1)")
    p.add_argument("--longest", type=int, default=32_768, help="tokens of prompt and answer at most (32768)")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--out", metavar="FILE", help="file to write (standard output)")
    options = p.parse_args(argv)
    if not (
        0 < options.requests <= 10_000_000
        and options.rate > 0
        and 0 < options.burstiness <= 100
        and options.longest >= 16
    ):
        p.error("--requests, --rate and --burstiness must be above 0, and --longest 16 or more")
    try:
        with contextlib.ExitStack() as stack:
            out = stack.enter_context(open(options.out, "w")) if options.out else sys.stdout
            asked = (options.requests, options.rate, options.burstiness, options.longest, options.seed)
            for row in rows(options.kind, *asked):
                out.write(json.dumps(row, separators=(",", ":")) + "\n")
    except OSError as e:
        print(f"make_trace: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
