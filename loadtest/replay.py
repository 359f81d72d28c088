"""Sends a trace to a running cluster, by the clock of the trace.

    python loadtest/replay.py TRACE.jsonl --speed 10 --out replay.jsonl
    python loadtest/replay.py sharegpt.json --api http --rate 2 --host http://127.0.0.1:8000

TRACE is Mooncake's format (timestamp in ms, input_length, output_length, hash_ids: one id is always the same 512 tokens
of text) or ShareGPT's conversations. ``--out`` gets a JSON line for each call as soon as it is over. Exit codes: 0 all
calls were answered; 1 some were not, or it ended early; 2 bad options or a bad trace; 3 the target cannot be used;
130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import IO

import msgspec
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtest.sim.mooncake import BadTrace
from loadtest.traces.figures import figures, text
from loadtest.traces.items import Loaded, Rules
from loadtest.traces.read import read
from loadtest.traces.send import Ask, Line, Sender, Sent
from loadtest.users.record import Slo
from loadtest.users.scenarios import BadMix, keys_of
from loadtest.users.target import Served, Target, TargetError, look, target

OK, FAILED, BAD, DOWN, INTERRUPTED = 0, 1, 2, 3, 130


@contextlib.asynccontextmanager
async def caller(api: str, at: Target, model: str, ca_file: str = "") -> AsyncIterator[Ask]:
    """What makes calls over one API."""
    if api == "http":
        from loadtest.users.aio_http import AioHttpCalls

        async with AioHttpCalls(at, model, ca_file) as http:
            yield http.ask
    else:
        from loadtest.users.grpc_calls import GrpcCalls

        async with GrpcCalls(at, model, ca_file) as grpc:
            yield grpc.ask


async def replay(
    loaded: Loaded, at: Target, served: Served, keys: Sequence[str], options: argparse.Namespace, out: IO[bytes] | None
) -> Sent:
    """Send it; Ctrl-C ends it with what there is."""
    encode = msgspec.json.Encoder().encode

    def tell(line: Line) -> None:
        if out is not None:
            out.write(encode(line) + b"\n")
            out.flush()

    async with caller(options.api, at, served.model, options.ca_file) as ask:
        sender = Sender(ask, lambda n: keys[n % len(keys)] if keys else "", options.max_in_flight, tell)
        task = asyncio.ensure_future(sender.run(loaded, options.budget, options.drain))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        return await task


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; see the module's docstring for the exit codes."""
    options = _parser().parse_args(argv)
    try:
        at = target(options.host, options.i_own_this_host)
        keys = _keys(options)
        _check(options)
    except (TargetError, BadMix, OSError) as e:
        return _fail(e, BAD)
    try:
        served = look(at, options.model, keys[0] if keys else "", ca_file=options.ca_file)
    except TargetError as e:
        return _fail(e, DOWN)
    try:
        loaded = read(Path(options.trace), _rules(options, served))
        out = open(options.out, "wb") if options.out else None  # noqa: SIM115 - closed below
    except (BadTrace, OSError) as e:
        return _fail(e, BAD)
    for note in loaded.notes.told():
        print(f"replay: {note}", file=sys.stderr)
    if loaded.seconds > options.budget:
        print(
            f"replay: the trace takes {loaded.seconds:.0f} s at this speed and the budget is {options.budget:g} s: "
            "what comes later is not sent (raise --budget or --speed)",
            file=sys.stderr,
        )
    slo = Slo(options.slo_ttft_ms / 1e3, options.slo_itl_ms / 1e3)
    try:
        sent = uvloop.run(replay(loaded, at, served, keys, options, out))
    finally:
        if out is not None:
            out.close()
    found = figures(sent, loaded, slo)
    print(json.dumps(found) if options.json else text(found, slo))
    if sent.ended == "interrupted":
        return INTERRUPTED
    return FAILED if sent.ended or found["rejected"] or sent.dropped or sent.cut else OK


def _fail(error: Exception, code: int) -> int:
    said = str(error)
    if isinstance(error, OSError) and error.filename and error.strerror:
        said = f"{error.filename}: {error.strerror}"
    print(f"replay: {said}", file=sys.stderr)
    return code


def _keys(options: argparse.Namespace) -> list[str]:
    if options.api_keys:
        return keys_of(Path(options.api_keys).read_text().splitlines())
    key = os.environ.get("LAYA_API_KEY", "")
    return [key] if key else []


def _check(options: argparse.Namespace) -> None:
    for flag in ("speed", "rate", "budget", "longest_gap", "call_timeout", "requests", "max_in_flight", "max_output"):
        if not 0 < getattr(options, flag) < 1e9:
            raise BadMix(f"--{flag.replace('_', '-')}: {getattr(options, flag):g} is not above 0")
    if options.think < 0 or options.drain < 0:
        raise BadMix("--think and --drain cannot be below 0")


def _rules(options: argparse.Namespace, served: Served) -> Rules:
    return Rules(
        speed=options.speed,
        context=served.context,
        longest_output=options.max_output,
        longest_gap=options.longest_gap,
        count=options.requests,
        lenient=options.lenient,
        rate=options.rate,
        think=options.think,
        timeout=options.call_timeout,
        seed=options.seed,
    )


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("trace", help="file to send")
    p.add_argument("--host", default="http://127.0.0.1:8000", help="router (http://127.0.0.1:8000)")
    owned = [h for h in os.environ.get("LAYA_I_OWN_THIS_HOST", "").split(",") if h]
    p.add_argument("--i-own-this-host", action="append", default=owned, help="host beyond loopback that may be loaded")
    p.add_argument("--api", choices=("grpc", "http"), default="grpc", help="what to speak (grpc)")
    p.add_argument("--model", default="", help="model to ask for (the only one)")
    p.add_argument("--api-keys", help="file of API keys, one a line; requests take turns")
    p.add_argument("--ca-file", default="", help="certificates to trust, for https://")
    p.add_argument("--speed", type=float, default=1.0, help="2 halves the times between requests (1)")
    p.add_argument("--requests", type=int, default=100_000, help="requests or conversations at most (100000)")
    p.add_argument("--rate", type=float, default=1.0, help="conversations a second, where the file has no times (1)")
    p.add_argument("--think", type=float, default=1.0, help="mean seconds before a further turn (1)")
    p.add_argument("--budget", type=float, default=3600.0, help="seconds of sending at most (3600)")
    p.add_argument("--drain", type=float, default=60.0, help="seconds for the last calls to end (60)")
    p.add_argument("--longest-gap", type=float, default=60.0, help="longer holes are shortened to it, seconds (60)")
    p.add_argument("--call-timeout", type=float, default=600.0, help="limit of one call, seconds (600)")
    p.add_argument("--max-in-flight", type=int, default=1000, help="past it requests are dropped, and counted (1000)")
    p.add_argument("--max-output", type=int, default=1 << 20, help="tokens of an answer at most")
    p.add_argument("--lenient", action="store_true", help="leave malformed lines out, and say so")
    p.add_argument("--slo-ttft-ms", type=float, default=1000.0, help="first token of a good answer (1000)")
    p.add_argument("--slo-itl-ms", type=float, default=100.0, help="between two tokens of a good answer (100)")
    p.add_argument("--seed", type=int, default=1, help="of what a file leaves open")
    p.add_argument("--out", metavar="FILE", help="a JSON line for each call")
    p.add_argument("--json", action="store_true", help="print figures for a script")
    return p


if __name__ == "__main__":
    sys.exit(main())
