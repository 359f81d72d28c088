"""What this machine has, as far as ``laya up`` must know: cores and GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess


def gpus() -> list[str]:
    """Ids of the NVIDIA GPUs this process may use, in order; empty without a driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [part for part in visible.split(",") if part and part != "-1"]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    count = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    return [str(i) for i in range(count)] if listed.returncode == 0 else []


def share_cores(all_cores: list[int], nodes: int) -> list[str]:
    """Cores of each node, as "0-3" or "0,2": an even share each, at least one; more nodes than cores wrap around."""
    if nodes >= len(all_cores):
        return [str(all_cores[i % len(all_cores)]) for i in range(nodes)]
    share, rest = divmod(len(all_cores), nodes)
    out: list[str] = []
    at = 0
    for i in range(nodes):
        size = share + (1 if i < rest else 0)
        out.append(",".join(str(c) for c in all_cores[at : at + size]))
        at += size
    return out


def share_gpus(all_gpus: list[str], nodes: int) -> list[str]:
    """GPUs of each node, as a value for CUDA_VISIBLE_DEVICES; empty strings without GPUs."""
    if not all_gpus:
        return ["" for _ in range(nodes)]
    if nodes > len(all_gpus):
        raise ValueError(f"--nodes {nodes} needs a GPU for each node, and this machine has {len(all_gpus)}")
    share = len(all_gpus) // nodes
    return [",".join(all_gpus[i * share : (i + 1) * share]) for i in range(nodes)]
