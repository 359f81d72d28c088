"""Generated code is what the protos say, documented, and never breaks a client of an earlier version."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

ROOT = Path(__file__).resolve().parents[3]
COMMITTED = ROOT / "shared" / "pb"
RELEASED = ROOT / "protos" / "released.binpb"


def _generate(out: Path) -> None:
    spec = importlib.util.spec_from_file_location("laya_generate", ROOT / "protos" / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.generate(out)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pb")
    _generate(out)
    return out


def test_committed_code_is_what_the_protos_generate(fresh: Path) -> None:
    names = {p.relative_to(fresh) for p in fresh.rglob("*") if p.is_file()}
    assert names == {
        p.relative_to(COMMITTED) for p in COMMITTED.rglob("*") if p.is_file() and "__pycache__" not in p.parts
    }
    for name in names:
        assert (fresh / name).read_bytes() == (COMMITTED / name).read_bytes(), f"run make proto: {name} is out of date"


def _fields(path: Path) -> dict[str, tuple[int, int, int, str]]:
    """Every field, enum value and method by full name, with what must not change about it."""
    out: dict[str, tuple[int, int, int, str]] = {}

    def walk(prefix: str, message: descriptor_pb2.DescriptorProto) -> None:
        name = f"{prefix}.{message.name}"
        for f in message.field:
            out[f"{name}.{f.name}"] = (f.number, f.type, f.label, f.type_name)
        for nested in message.nested_type:
            walk(name, nested)

    for file in descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file:
        if not file.name.startswith("laya/"):
            continue
        for message in file.message_type:
            walk(file.package, message)
        for enum in file.enum_type:
            for value in enum.value:
                out[f"{file.package}.{enum.name}.{value.name}"] = (value.number, 0, 0, "")
        for service in file.service:
            for m in service.method:
                kind = int(m.client_streaming) * 2 + int(m.server_streaming)
                out[f"{file.package}.{service.name}/{m.name}"] = (kind, 0, 0, f"{m.input_type}>{m.output_type}")
    return out


def test_nothing_released_is_removed_or_changed(fresh: Path) -> None:
    released, now = _fields(RELEASED), _fields(fresh / "laya.binpb")
    assert released, "the released descriptor is empty"
    broken = {name: (was, now.get(name)) for name, was in released.items() if now.get(name) != was}
    assert not broken, f"these break clients of an earlier version: {broken}"


def test_a_renumbered_field_would_be_noticed(fresh: Path, tmp_path: Path) -> None:
    files = descriptor_pb2.FileDescriptorSet.FromString((fresh / "laya.binpb").read_bytes())
    inference = next(f for f in files.file if f.name == "laya/v1/inference.proto")
    inference.message_type[0].field[0].number = 99
    changed = tmp_path / "changed.binpb"
    changed.write_bytes(files.SerializeToString())
    assert _fields(changed) != _fields(RELEASED)


@pytest.mark.parametrize("proto", sorted((ROOT / "protos" / "laya" / "v1").glob("*.proto")), ids=lambda p: p.name)
def test_every_field_method_and_message_has_a_comment(proto: Path) -> None:
    thing = re.compile(
        r"^\s*(message|service|enum|rpc|oneof|optional|repeated|map<|[A-Za-z][\w.]* \w+ = \d+;|[A-Z_]+ = \d+;)"
    )
    lines = proto.read_text().splitlines()
    bare = [
        f"{proto.name}:{i + 1}"
        for i, line in enumerate(lines)
        if thing.match(line) and not lines[i - 1].lstrip().startswith("//")
    ]
    assert not bare
