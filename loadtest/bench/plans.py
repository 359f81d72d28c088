"""The plans that come along; each suits two shared cores and simulated nodes. ``laya bench plans`` lists them."""

from __future__ import annotations

from pathlib import Path

from loadtest.bench.plan import BadPlan, Nodes, Peak, Plan, Work, check, read

# Slower than the simulator's default, so that a machine of two cores carries nodes, router and clients at once.
_NODE = {"prefill_tokens_per_second": 4000.0, "decode_base_ms": 20.0, "decode_per_sequence_ms": 1.0}


def _sim(**more: float) -> Nodes:
    return Nodes(**{**_NODE, **more})  # type: ignore[arg-type]


_ALL = (
    Plan(
        "smoke",
        (Work("fixed", prompt=64, output=8),),
        rate=20.0,
        about="A few seconds of short requests: does everything work?",
        seconds=1.0,
        rounds=3,
        warm_up=0.3,
        patience=10.0,
    ),
    Plan(
        "chat",
        (Work("sharegpt", prompt=2048, output=128, sessions=True, cancel=0.03),),
        rate=6.0,
        about="Conversations of several turns with growing prompts; a few clients go away.",
        rounds=5,
        nodes=_sim(),
    ),
    Plan(
        "burst",
        (Work("fixed", prompt=512, output=32),),
        rate=4.0,
        about="A steady load that is six times as high for three seconds.",
        seconds=12.0,
        rounds=5,
        peaks=(Peak(4.0, 3.0, 6.0),),
        slo_ttft=1.0,
        nodes=_sim(count=4),
    ),
    Plan(
        "prefix",
        (Work("shared", prompt=2560, output=24),),
        rate=20.0,
        about="System prompts of 2,048 tokens that many requests share: is a prompt sent where it is cached?",
        seconds=12.0,
        rounds=5,
        slo_ttft=1.0,
        nodes=_sim(count=4, kv_tokens=49_152, prefill_tokens_per_second=16_000.0),
    ),
    Plan(
        "slow-node",
        (Work("fixed", prompt=512, output=32),),
        rate=16.0,
        about="One node of four is four times slower than the others.",
        seconds=12.0,
        rounds=5,
        slo_ttft=1.0,
        nodes=_sim(count=4, slow=1),
    ),
    Plan(
        "dying-node",
        (Work("fixed", prompt=512, output=32),),
        rate=10.0,
        about="One node of four dies in the middle of each round, and comes back.",
        seconds=12.0,
        rounds=5,
        slo_ttft=1.0,
        nodes=_sim(count=4, kill=4.0, back=3.0),
    ),
    Plan(
        "overload",
        (Work("fixed", 0.8, prompt=256, output=64), Work("fixed", 0.2, prompt=2048, output=64, priority=1)),
        rate=30.0,
        about="About three times what two nodes can carry: who is refused, and how are the others served?",
        rounds=3,
        slo_itl=0.3,
        nodes=_sim(kv_tokens=32_768),
    ),
    Plan(
        "overhead",
        (Work("fixed", prompt=64, output=16),),
        rate=200.0,
        about="Canned nodes that answer at once: what the way through the router takes by itself.",
        seconds=5.0,
        rounds=5,
        arrivals="constant",
        slo_ttft=0.1,
        nodes=Nodes(engine="canned"),
    ),
    Plan(
        "soak",
        (Work("sharegpt", 0.7, prompt=1024, output=48, sessions=True, cancel=0.1), Work("fixed", 0.3)),
        rate=6.0,
        about="Mixed requests, a tenth of them given up; what `make soak` sends for hours.",
        seconds=20.0,
        rounds=3,
        nodes=_sim(),
    ),
)
PLANS = {plan.name: check(plan) for plan in _ALL}


def find(name: str) -> Plan:
    """A plan by its name, or from a YAML file. Raises BadPlan."""
    if name in PLANS:
        return PLANS[name]
    if not name.endswith((".yaml", ".yml")):
        raise BadPlan(f"there is no plan {name!r}; there are {', '.join(PLANS)}, or name a YAML file")
    try:
        return read(Path(name))
    except OSError as error:
        raise BadPlan(f"{name}: cannot be read ({error.strerror})") from None
