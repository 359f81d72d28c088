"""The page ``docs/configuration.md``, made from the schema: every key, its default, and the comment beside it."""

from __future__ import annotations

import inspect
import io
import tokenize
from typing import Any

import msgspec

from shared.config.schema import Config

_HEAD = """# Configuration

One YAML file with four sections, `LAYA_SECTION__KEY` from the environment over it, flags over that:

```
LAYA_ROUTER__TIMEOUT_MS=500 laya-router --config laya.yaml --port 9000
```

Bare keys at the top of a file (`max_seq_len: 4096`) belong to `inference`. Unknown keys are errors that name the
nearest known one. `laya config check FILE` says what is wrong, `laya config show FILE` prints every setting in force,
secrets left out. Times are seconds and sizes are bytes unless the name says otherwise. A small machine needs no file.

A text key may come from a file, the way orchestrators hand out secrets:
`LAYA_SERVER__CLUSTER_TOKEN_FILE=/run/secrets/token`.

```yaml
server: {host: 127.0.0.1, port: 8000, redis: "redis://127.0.0.1:6379/0"}
router: {timeout_ms: 5000}
inference: {model: /models/qwen2.5-7b-awq, max_seq_len: 8192, gpu_memory_utilization: 0.85}
```

This page is printed by `laya config reference`.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for field in msgspec.structs.fields(Config):
        parts += _section(field.encode_name, field.type)
    return "\n".join(parts)


def _section(path: str, kind: Any) -> list[str]:
    """A table of one struct, and those of the structs inside it after it."""
    notes = comments(kind)
    title = (inspect.getdoc(kind) or "").splitlines()[0]
    rows = [f"## `{path}`", "", title, "", "| key | default | meaning |", "|---|---|---|"]
    inner: list[str] = []
    for field in msgspec.structs.fields(kind):
        name = f"{path}.{field.encode_name}"
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            rows.append(f"| `{field.encode_name}` | see below | {notes.get(field.name, '')} |")
            inner += _section(name, field.type)
        else:
            rows.append(f"| `{field.encode_name}` | {_default(field)} | {notes.get(field.name, '')} |")
    return [*rows, "", *inner]


def _default(field: msgspec.structs.FieldInfo) -> str:
    value = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else None
    if value == "" or value is None:
        return "none"
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{shown}`"


def comments(kind: Any) -> dict[str, str]:
    """The comment that stands behind each field, or above it where the line was too long."""
    found: dict[str, str] = {}
    above: list[str] = []
    name = ""
    for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(kind)).readline):
        if token.type == tokenize.NAME and not token.line[: token.start[1]].strip():
            name = token.string
            if above:
                found[name] = " ".join(above)
                above = []
        elif token.type == tokenize.COMMENT:
            text = token.string.lstrip("# ").replace("|", "\\|")
            if token.line.lstrip().startswith("#"):
                above.append(text)
            elif name:
                found[name] = text
    return found
