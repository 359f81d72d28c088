"""Reading the configuration: YAML file, then environment, then flags, then checks.

``LAYA_ROUTER__TIMEOUT_MS=50`` sets ``router.timeout_ms``; deeper keys go on with ``__``. Values from the environment
are read as YAML, so numbers, booleans and lists keep their types. ``LAYA_SERVER__CLUSTER_TOKEN_FILE=/run/token`` takes
the text from a file, as orchestrators hand out secrets. Bare keys at the top of a file (``max_seq_len``,
``quantization``, …) belong to ``inference``. Every message names the offending key and where it came from.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from shared.config.schema import Config, ConfigError, InferenceConfig
from shared.logging import is_secret

_SECTIONS = ("server", "router", "inference", "tracing")
_PREFIX = "LAYA_"
# Environment variables of that prefix which are not configuration.
_NOT_CONFIG = frozenset(("LAYA_API_KEY", "LAYA_ADDRESS", "LAYA_CONFIG", "LAYA_ADMIN"))
_MAX_FILE = 4 << 20
_MAX_SECRET = 8192
_PASSWORD = re.compile(r"(://[^:/@]*:)[^@]*@")
_NAMED_PASSWORD = re.compile(r"(password=)[^&\s]*")

Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(
    path: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """The configuration from a file, the environment and flags, in rising order of weight.

    ``overrides`` maps dotted keys to values, ``{"server.port": 8000}``; a value of None is left out. Raises
    ConfigError with one sentence.
    """
    tree: dict[str, Any] = {}
    if path is not None:
        tree = _read_file(Path(path))
    for key, text in _from_environ(os.environ if environ is None else environ):
        value = text if _is_text(key) else _yaml_value(text, _env_name(key))
        _put(tree, key, value, f"environment variable {_env_name(key)}")
    for dotted, value in (overrides or {}).items():
        if value is not None:
            _put(tree, tuple(dotted.split(".")), value, f"flag for {dotted}")
    config = _convert(tree)
    config.validate()
    return config


def to_yaml(config: Config) -> str:
    """The whole configuration as YAML with every default written out, secrets left out."""
    tree = msgspec.to_builtins(config)
    if tree["server"]["cluster_token"]:
        tree["server"]["cluster_token"] = "***"
    if tree["server"]["consul"]["token"]:
        tree["server"]["consul"]["token"] = "***"
    tree["server"]["redis"] = redact_url(tree["server"]["redis"])
    return yaml.safe_dump(tree, sort_keys=False)


def redact_url(url: str) -> str:
    """The URL without its password, for logs and people."""
    return _NAMED_PASSWORD.sub(r"\1***", _PASSWORD.sub(r"\1***@", url))


def _read_file(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_FILE:
            raise ConfigError(f"{path}: larger than {_MAX_FILE} bytes; this is not a Laya configuration")
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read ({e.strerror}); check the path given to --config") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None
    try:
        raw = yaml.load(text, Loader)
    except (yaml.YAMLError, RecursionError) as e:
        mark = getattr(e, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{where}: not valid YAML: {getattr(e, 'problem', None) or e}") from None
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: must hold keys and values at the top (server, router, inference, tracing)")
    return _fold_bare_keys(raw, str(path))


def _fold_bare_keys(raw: dict[Any, Any], where: str) -> dict[str, Any]:
    known = {field.encode_name for field in msgspec.structs.fields(InferenceConfig)}
    tree: dict[str, Any] = {}
    bare: dict[str, Any] = {}
    for key, value in raw.items():
        if key in _SECTIONS:
            if value is None:
                value = {}
            if not isinstance(value, dict):
                raise ConfigError(f"{where}: {key} must hold keys and values, not {type(value).__name__}")
            tree[key] = dict(value)
        elif key in known:
            bare[key] = value
        else:
            raise ConfigError(f"{where}: unknown key {key!r}{_nearest(str(key), [*_SECTIONS, *known])}")
    for key, value in bare.items():
        section = tree.setdefault("inference", {})
        if key in section:
            raise ConfigError(f"{where}: {key} stands both at the top and in inference; keep one")
        section[key] = value
    return tree


def _from_environ(environ: Mapping[str, str]) -> Iterable[tuple[tuple[str, ...], str]]:
    for name in sorted(environ):
        if not name.startswith(_PREFIX) or name in _NOT_CONFIG or "__" not in name:
            continue
        key = tuple(part.lower() for part in name[len(_PREFIX) :].split("__"))
        if key[0] not in _SECTIONS or not all(key):
            raise ConfigError(
                f"environment variable {name}: no such section; use LAYA_SERVER__, LAYA_ROUTER__, "
                "LAYA_INFERENCE__ or LAYA_TRACING__"
            )
        bare = (*key[:-1], key[-1].removesuffix("_file"))
        if bare != key and not _is_text(key) and _is_text(bare):
            if _env_name(bare) in environ:
                raise ConfigError(f"environment variables {_env_name(bare)} and {name}: both are set; keep one")
            yield bare, _secret(name, environ[name])
        else:
            yield key, environ[name]


def _secret(name: str, path: str) -> str:
    """The text in a file that an environment variable names, without the line's end."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_SECRET + 1).rstrip("\r\n")
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"environment variable {name}: {path[:200]} cannot be read ({why})") from None
    if not text or len(text) > _MAX_SECRET or "\n" in text:
        raise ConfigError(f"environment variable {name}: {path[:200]} must hold one line of text")
    return text


def _env_name(key: tuple[str, ...]) -> str:
    return _PREFIX + "__".join(part.upper() for part in key)


def _is_text(key: tuple[str, ...]) -> bool:
    """Whether the key holds text, which stays as it is: a token of digits is not a number."""
    kinds = [f.type for f in msgspec.structs.fields(_kind_at(key[:-1])) if f.encode_name == key[-1]]
    return kinds == [str]


def _yaml_value(text: str, name: str) -> Any:
    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, RecursionError):
        shown = "" if is_secret(name) else f" ({text[:80]!r})"
        raise ConfigError(f"environment variable {name}: not a valid value{shown}") from None


def _put(tree: dict[str, Any], key: tuple[str, ...], value: Any, where: str) -> None:
    node = tree
    for part in key[:-1]:
        below = node.setdefault(part, {})
        if not isinstance(below, dict):
            raise ConfigError(f"{where}: {part} holds a single value, so nothing can be set below it")
        node = below
    node[key[-1]] = value


def _convert(tree: dict[str, Any]) -> Config:
    try:
        return msgspec.convert(tree, Config)
    except msgspec.ValidationError as e:
        raise ConfigError(_explain(str(e), tree)) from None


def _explain(message: str, tree: dict[str, Any]) -> str:
    """Turn msgspec's ``Expected `int`, got `str` - at `$.server.port``` into a sentence that begins with the key."""
    text, _, at = message.partition(" - at `$")
    path = at.rstrip("`").lstrip(".")
    if text.startswith("Object contains unknown field `"):
        field = text.split("`")[1]
        full = f"{path}.{field}" if path else field
        return f"{full}: unknown key{_nearest(field, _known_fields(path))}"
    value: Any = tree
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    hidden = value is None or isinstance(value, dict | list) or is_secret(path)
    got = "" if hidden else f" (it is {str(value)[:80]!r})"
    return f"{path}: {text[0].lower()}{text[1:]}{got}" if text else path


def _kind_at(path: Sequence[str]) -> type[msgspec.Struct]:
    """The struct that holds the keys below a path; an empty one where there is none."""
    kind: type[msgspec.Struct] = Config
    for part in path:
        found = [f.type for f in msgspec.structs.fields(kind) if f.encode_name == part]
        if not found or not isinstance(found[0], type) or not issubclass(found[0], msgspec.Struct):
            return _Nothing
        kind = found[0]
    return kind


class _Nothing(msgspec.Struct):
    """Has no keys."""


def _known_fields(path: str) -> list[str]:
    return [f.encode_name for f in msgspec.structs.fields(_kind_at(path.split(".") if path else []))]


def _nearest(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, 1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known keys are {', '.join(sorted(known))}" if known else ""
