"""Quantizes one checkpoint: ``quantize(source, out, scheme)``.

Round-to-nearest needs no data and one pass: each weight is divided by its scale and rounded. The result is a folder
that vLLM loads as it is: weights in compressed-tensors form, config, tokenizer and chat template. It appears whole or
not at all: everything is written to a folder beside it, flushed, and renamed.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_node.quantize.meter import Meter, loading_progress
from inference_node.quantize.schemes import Progress, QuantizeError, Scheme, find
from inference_node.quantize.source import Source, locate

_SPARE_BYTES = 64 << 20  # kept free on the disk beyond what the result needs
_LOADED, _QUANTIZED = 0.55, 0.85  # where these stages end on the bar


@dataclass(frozen=True, slots=True)
class Result:
    """A finished quantization. ``layers`` is the number of linear layers converted; sizes are bytes of weights."""

    path: Path
    scheme: str
    layers: int
    source_bytes: int
    output_bytes: int
    seconds: float
    chat_template: bool
    """False when the checkpoint carried none: chat requests to such a model need a template of their own."""


def quantize(source: Path, out: Path, scheme: str, progress: Progress | None = None) -> Result:
    """Quantize the checkpoint at ``source`` into the new folder ``out``; blocks until it is complete.

    Raises QuantizeError with one sentence when it cannot be done; ``out`` does not exist then. ImportError means that
    torch, transformers or compressed-tensors is not installed.
    """
    began = time.monotonic()
    chosen = find(scheme)
    found = locate(source)
    meter = Meter(progress)
    with _folder_beside(out) as work:
        meter.at(0.01, f"reading {found.gguf or found.folder.name}")
        model = _load(found, meter.part(0.02, _LOADED))
        _check_space(work, _output_bytes(model, chosen), out)
        layers, config = _quantize_layers(model, chosen, meter.part(_LOADED, _QUANTIZED))
        chat_template = _save(model, config, found, work, meter.part(_QUANTIZED, 1.0))
        size = sum(p.stat().st_size for p in work.glob("*.safetensors"))
        _publish(work, out)
    meter.at(1.0, "done")
    return Result(out, chosen.name, layers, found.size, size, time.monotonic() - began, chat_template)


@contextmanager
def _folder_beside(out: Path) -> Iterator[Path]:
    """A work folder on the same file system as ``out``, removed whatever happens."""
    if out.exists() or out.is_symlink():
        raise QuantizeError(f"{out} exists already; remove it or name another folder")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        outer = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
    except OSError as e:
        raise QuantizeError(f"{out.parent} cannot be written ({e.strerror}); name another folder") from None
    try:
        work = outer / "model"  # a folder inside, since mkdtemp's own is for its owner alone
        work.mkdir()
        yield work
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise QuantizeError(f"the disk of {out.parent} is full; free some space and try again") from None
    finally:
        shutil.rmtree(outer, ignore_errors=True)


def _load(source: Source, meter: Meter) -> Any:
    """The model in 16 bits on the CPU."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM, GgufConfig

    where = str(source.folder)
    extra: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    if source.gguf:
        extra["gguf_file"] = source.gguf
    try:
        config = AutoConfig.from_pretrained(where, **extra)
        meter.at(0.2, "reading weights")
        # What vLLM runs in: 16-bit checkpoints stay as they are, wider ones become bfloat16.
        dtype = config.dtype if config.dtype in (torch.bfloat16, torch.float16) else torch.bfloat16
        if source.gguf:
            extra["quantization_config"] = GgufConfig(dequantize=True)
        with loading_progress(meter.part(0.2, 1.0)):
            model = AutoModelForCausalLM.from_pretrained(where, dtype=dtype, **extra)
    except (ValueError, OSError, KeyError, RuntimeError, NotImplementedError, SafetensorError) as e:
        first = (str(e).strip() or type(e).__name__).splitlines()[0][:300]
        raise QuantizeError(f"{source.label} cannot be read as a causal language model: {first}") from None
    return model.eval()


def _head_names(model: Any) -> list[str]:
    """Names of the output projection: it stays in 16 bits, since rounding it costs most and it is often tied."""
    head = model.get_output_embeddings()
    return [name for name, module in model.named_modules() if module is head] or ["lm_head"]


def _linear_layers(model: Any) -> list[tuple[str, Any]]:
    from torch.nn import Linear

    heads = _head_names(model)
    return [(name, module) for name, module in model.named_modules() if type(module) is Linear and name not in heads]


def _output_bytes(model: Any, scheme: Scheme) -> int:
    """Bytes that the stored weights will take."""
    layers = _linear_layers(model)
    inside = {id(module.weight) for _, module in layers}
    rest: int = sum(p.numel() * p.element_size() for p in model.parameters() if id(p) not in inside)
    return rest + sum(scheme.layer_bytes(*module.weight.shape) for _, module in layers)


def _check_space(folder: Path, needed: int, out: Path) -> None:
    free = shutil.disk_usage(folder).free
    if needed + _SPARE_BYTES > free:
        raise QuantizeError(
            f"{out} needs {(needed + _SPARE_BYTES) / 2**20:.0f} MiB and its disk has {free / 2**20:.0f} MiB free;"
            " free some space or name a folder on another disk"
        )


def _check_layers(model: Any, layers: list[tuple[str, Any]], scheme: Scheme) -> None:
    for name, parameter in model.named_parameters():
        if parameter.ndim == 3 and "expert" in name:
            raise QuantizeError(
                f"{name} holds the weights of several experts in one tensor, which this quantizer cannot convert;"
                " use a checkpoint of this model that is quantized already"
            )
    if not layers:
        raise QuantizeError("the model has no linear layers to quantize")
    if scheme.group_size is not None:
        for name, module in layers:
            if module.in_features % scheme.group_size:
                raise QuantizeError(
                    f"{name} has {module.in_features} inputs, not a multiple of {scheme.name}'s group of"
                    f" {scheme.group_size}; use scheme w8a8"
                )


def _quantize_layers(model: Any, scheme: Scheme, meter: Meter) -> tuple[int, Any]:
    """Turn every linear layer into its stored form, one at a time, so that memory only falls.

    Returns their number, and the compressed-tensors configuration that describes them.
    """
    import torch
    from compressed_tensors.compressors import compress_module
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
        QuantizationStatus,
        apply_quantization_config,
    )
    from compressed_tensors.quantization.utils import calculate_qparams

    layers = _linear_layers(model)
    _check_layers(model, layers, scheme)
    weights = QuantizationArgs(**scheme.weights())
    activations = scheme.activations()
    group = QuantizationScheme(
        targets=["Linear"],
        weights=weights,
        input_activations=QuantizationArgs(**activations) if activations else None,
        format=scheme.format,
    )
    config = QuantizationConfig(config_groups={"group_0": group}, format=scheme.format, ignore=_head_names(model))
    apply_quantization_config(model, config)
    for done, (_, module) in enumerate(layers):
        meter.at(done / len(layers), "quantizing layers")
        with torch.no_grad():
            grouped = module.weight.unflatten(-1, (-1, scheme.group_size or module.in_features))
            scale, zero_point = calculate_qparams(grouped.amin(-1), grouped.amax(-1), weights)
            module.weight_zero_point.copy_(zero_point)
            # Divided in 32 bits: the quotient of two bfloat16 is itself rounded, by up to a quarter of a step.
            module.weight.data = module.weight.data.float()
            module.weight_scale.data = scale.float()
            compress_module(module)
            module.weight_scale.data = scale
    config.quantization_status = QuantizationStatus.COMPRESSED
    return len(layers), config


def _save(model: Any, config: Any, source: Source, work: Path, meter: Meter) -> bool:
    """Write weights, configuration and tokenizer; True when a chat template is among them."""
    from compressed_tensors.compressors import ModelCompressor

    meter.at(0.0, "writing weights")
    with loading_progress(meter.part(0.0, 0.8)):
        model.save_pretrained(work)
    ModelCompressor(quantization_config=config).update_config(str(work))
    meter.at(0.8, "writing the tokenizer")
    if source.gguf is None:
        for name in source.tokenizer_files:
            shutil.copyfile(source.folder / name, work / name)
    else:
        _save_gguf_tokenizer(source, work)
    return _has_chat_template(work)


def _save_gguf_tokenizer(source: Source, work: Path) -> None:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(source.folder), gguf_file=source.gguf, trust_remote_code=False)
    except (ValueError, KeyError, NotImplementedError) as e:
        first = (str(e).strip() or type(e).__name__).splitlines()[0][:300]
        raise QuantizeError(f"the tokenizer inside {source.label} cannot be read: {first}") from None
    tokenizer.save_pretrained(work)


def _has_chat_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    config = folder / "tokenizer_config.json"
    return config.is_file() and '"chat_template"' in config.read_text()


def _publish(work: Path, out: Path) -> None:
    """Make the finished folder appear at once, and survive a power cut."""
    mode = (work / "config.json").stat().st_mode
    for path in work.iterdir():
        path.chmod(mode)  # weights are written for their owner alone; let them follow the umask like the rest
        with path.open("rb") as file:
            os.fsync(file.fileno())
    try:
        work.rename(out)
    except OSError as e:
        raise QuantizeError(f"{out} appeared while the work went on ({e.strerror}); name another folder") from None
