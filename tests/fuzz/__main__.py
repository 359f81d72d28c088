"""Runs the targets under atheris: ``python -m tests.fuzz [TARGET …] --seconds 60 --seed 7``.

Without targets all of them take turns: the first byte of an input chooses. New inputs are kept in ``--corpus`` when it
is given. Exits with libFuzzer's code; an input that breaks a target is written to ``crash-…``.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["shared", "router_node", "inference_node"], enable_loader_override=False):
    from tests.fuzz.seeds import write_seeds
    from tests.fuzz.targets import TARGETS

MEMORY_MIB = 1024  # what the targets may take; they need about 70


def memory_limit() -> int:
    """libFuzzer's limit in MiB. It reads the peak, which Linux hands on from the process that started this one."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024 + MEMORY_MIB


def main() -> None:
    """Parse arguments and fuzz until the time is over."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="how long, in seconds; 0: until interrupted")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers; 0 takes the time")
    parser.add_argument("--corpus", type=Path, help="folder of inputs, kept and added to")
    args = parser.parse_args()
    chosen = [TARGETS[name] for name in args.targets] or list(TARGETS.values())

    def one(data: bytes) -> None:
        if data:
            chosen[data[0] % len(chosen)](data[1:])

    with tempfile.TemporaryDirectory(prefix="laya-fuzz-") as folder:
        seeds = Path(folder)
        write_seeds(seeds, [target.__name__ for target in chosen])
        folders = [str(args.corpus or seeds), *([str(seeds)] if args.corpus else [])]
        if args.corpus:
            args.corpus.mkdir(parents=True, exist_ok=True)
        limits = [f"-max_total_time={args.seconds}", f"-rss_limit_mb={memory_limit()}", "-max_len=8192", "-timeout=20"]
        atheris.Setup([sys.argv[0], *folders, *limits, f"-seed={args.seed}", "-print_final_stats=1"], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
