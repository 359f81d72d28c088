"""The options that the locust file adds to locust's own; each can be set by the environment as well."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.users.arrivals import KINDS
from loadtest.users.record import Slo
from loadtest.users.scenarios import MIX, SCENARIOS, BadMix, Sizes, keys_of
from loadtest.users.shapes import SHAPES


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for."""

    owned: frozenset[str]
    model: str
    keys: tuple[str, ...]
    scenarios: str
    priorities: str
    sizes: Sizes
    structured: str
    arrivals: str
    rate: float
    most_in_flight: int
    trace: str
    speed: float
    shape: str
    slo: Slo
    think: float
    timeout: float
    grpc_processes: int
    ca_file: str
    seed: int


def add(parser: ArgumentParser) -> None:
    """Add them. ``parser`` is locust's, which takes ``env_var`` and whether the web page shows the option."""
    add_argument: Any = parser.add_argument

    def option(flag: str, env: str, about: str, **more: Any) -> None:
        add_argument(flag, env_var=env, help=about, **more)

    option(
        "--i-own-this-host", "LAYA_I_OWN_THIS_HOST", "host beyond loopback that may be loaded; a comma between several",
        default="", metavar="HOST", include_in_web_ui=False,
    )  # fmt: skip
    option("--model", "LAYA_MODEL", "model to ask for; empty takes the only one", default="")
    option(
        "--api-keys", "LAYA_API_KEYS", "file of API keys, one a line; users take turns, so each key is a tenant",
        default="", metavar="FILE", include_in_web_ui=False,
    )  # fmt: skip
    option("--api-key", "LAYA_API_KEY", "one API key for all", default="", include_in_web_ui=False)
    option("--scenarios", "LAYA_SCENARIOS", f"what users do, by weight, of {', '.join(SCENARIOS)}", default=MIX)
    option("--priorities", "LAYA_PRIORITIES", "priorities by weight, as 0=8,5=2; lower is earlier", default="0")
    option("--prompt-scale", "LAYA_PROMPT_SCALE", "factor of the length of prompts", type=float, default=1.0)
    option("--max-tokens", "LAYA_MAX_TOKENS", "most tokens of an answer; 0: no limit of ours", type=int, default=0)
    option(
        "--structured", "LAYA_STRUCTURED", "extraction by JSON schema: auto tries it once",
        choices=("auto", "on", "off"), default="auto",
    )  # fmt: skip
    option(
        "--arrivals", "LAYA_ARRIVALS", "closed: each user waits for its answer; the others come by the clock",
        choices=KINDS, default="closed",
    )  # fmt: skip
    option("--rate", "LAYA_RATE", "arrivals a second of each user (poisson, constant)", type=float, default=1.0)
    option(
        "--max-in-flight", "LAYA_MAX_IN_FLIGHT", "calls in flight of each process past which arrivals are dropped",
        type=int, default=1000,
    )  # fmt: skip
    option("--trace", "LAYA_TRACE", "trace to replay (arrivals: trace), Mooncake's JSONL or ShareGPT's", default="")
    option("--speed", "LAYA_SPEED", "speed of the trace; 2 is twice as fast", type=float, default=1.0)
    option("--shape", "LAYA_SHAPE", "number of users over time", choices=("", *SHAPES), default="")
    option("--slo-ttft-ms", "LAYA_SLO_TTFT_MS", "time to the first token of a good answer", type=float, default=1000.0)
    option("--slo-itl-ms", "LAYA_SLO_ITL_MS", "time between two tokens of a good answer", type=float, default=100.0)
    option("--think-s", "LAYA_THINK_S", "mean pause of a user between two calls, seconds", type=float, default=0.2)
    option("--call-timeout-s", "LAYA_CALL_TIMEOUT_S", "limit of a call, seconds", type=float, default=120.0)
    option("--grpc-processes", "LAYA_GRPC_PROCESSES", "processes that make gRPC calls", type=int, default=1)
    option("--ca-file", "LAYA_CA_FILE", "certificates to trust, where the host is https://", default="")
    option("--seed", "LAYA_SEED", "seed of what users ask and when", type=int, default=1)


def read(args: Namespace, context: int = 0, schema: bool = False) -> Options:
    """What locust parsed, checked. Raises BadMix, ValueError or OSError: one sentence."""
    keys = keys_of(Path(args.api_keys).read_text().splitlines()) if args.api_keys else []
    if args.api_keys and not keys:
        raise BadMix(f"--api-keys: there is no key in {args.api_keys}")
    for flag, value, least, most in (
        ("--prompt-scale", args.prompt_scale, 1e-3, 1e3),
        ("--max-tokens", args.max_tokens, 0, 1 << 24),
        ("--rate", args.rate, 1e-6, 1e5),
        ("--max-in-flight", args.max_in_flight, 1, 8000),
        ("--speed", args.speed, 1e-3, 1e6),
        ("--slo-ttft-ms", args.slo_ttft_ms, 1e-3, 1e9),
        ("--slo-itl-ms", args.slo_itl_ms, 1e-3, 1e9),
        ("--think-s", args.think_s, 0, 3600),
        ("--call-timeout-s", args.call_timeout_s, 0.1, 86_400),
        ("--grpc-processes", args.grpc_processes, 1, 64),
    ):
        if not least <= value <= most:
            raise BadMix(f"{flag}: {value:g} is not between {least:g} and {most:g}")
    if (args.arrivals == "trace") != bool(args.trace):
        raise BadMix("--trace and --arrivals trace belong together: set both or neither")
    return Options(
        owned=frozenset(filter(None, (h.strip() for h in args.i_own_this_host.split(",")))),
        model=args.model,
        keys=tuple(keys or ([args.api_key] if args.api_key else [])),
        scenarios=args.scenarios,
        priorities=args.priorities,
        sizes=Sizes(context, args.prompt_scale, args.max_tokens, args.think_s, schema),
        structured=args.structured,
        arrivals=args.arrivals,
        rate=args.rate,
        most_in_flight=args.max_in_flight,
        trace=args.trace,
        speed=args.speed,
        shape=args.shape,
        slo=Slo(args.slo_ttft_ms / 1e3, args.slo_itl_ms / 1e3),
        think=args.think_s,
        timeout=args.call_timeout_s,
        grpc_processes=args.grpc_processes,
        ca_file=args.ca_file,
        seed=args.seed,
    )
