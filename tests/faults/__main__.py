"""``python -m tests.faults``: break things for a while, and print what it cost.

python -m tests.faults --seconds 600 --seed 7     # every fault, then random pairs, for about ten minutes
python -m tests.faults --hours 12 --plot soak.csv # the same over and over, with memory, files and tasks on record
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from pathlib import Path

from tests.faults.hosts import possible
from tests.faults.record import Record
from tests.faults.suite import Suite
from tests.faults.tally import merged, table


def main() -> int:
    """Run the suite; the exit code is 1 when anything was found that must not be."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="how long, about (600)")
    parser.add_argument("--hours", type=float, default=0.0, help="as hours; overrides --seconds")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31), help="of the pairs")
    parser.add_argument("--clients", type=int, default=12, help="requests at once (12)")
    parser.add_argument("--pause", type=float, default=0.15, help="seconds between a client's requests, about (0.15)")
    parser.add_argument("--only", default="", help="faults whose name contains this")
    parser.add_argument("--plot", type=Path, help="write memory, files and tasks to this CSV and beside it as SVG")
    args = parser.parse_args()
    why = possible()
    if why:
        print(f"Faults need network namespaces: {why}.", file=sys.stderr)
        return 2
    seconds = args.hours * 3600 if args.hours else args.seconds
    suite = Suite(
        seconds,
        args.seed,
        args.clients,
        args.only,
        pause=args.pause,
        record=Record(args.plot),
        say=lambda line: print(line, flush=True),
    )
    print(f"seed {args.seed}", flush=True)
    asyncio.run(suite.run())
    print(table(merged(suite.tallies)))
    for problem in suite.problems:
        print(f"PROBLEM {problem}")
    return 1 if suite.problems else 0


if __name__ == "__main__":
    sys.exit(main())
