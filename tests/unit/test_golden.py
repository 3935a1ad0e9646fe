"""The wire is a promise: what an earlier version wrote is read by every later one.

One file per kind and version: `<kind>.v<version>.json` with the bytes in hex and the value
as its repr. A file is never changed; a new version of a kind gets a new one, written by
`python -m tests.unit.write_golden`. When a kind, or a value inside of it, gets a new last
field, its file is renamed to `<kind>.v<version>-<what>.json`, after what it held until then.
"""

import json
import re
from pathlib import Path

import pytest
from msgspec import Struct

from schemas import records, usage
from schemas.codec import decode_bytes, encode
from schemas.records import VERSION
from tests.support.record_samples import SAMPLES, kind_of, kinds_in_schema

GOLDEN = Path(__file__).parent / "golden"
FILES = sorted(GOLDEN.glob("*.json"))
#: How a repr shows a member of an enum.
ENUM = re.compile(r"<(\w+\.\w+): '\w+'>")
KINDS: dict[str, type[Struct]] = {kind_of(sample): type(sample) for sample in SAMPLES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_was_written_once_is_read_for_ever(path: Path) -> None:
    golden = json.loads(path.read_text())
    kind, _, version = path.stem.partition(".v")
    record = decode_bytes(bytes.fromhex(golden["hex"]), KINDS[kind], path.name)
    assert record == value_of(golden["repr"])
    assert repr(record) == golden["repr"] or "-" in version
    assert int(version.partition("-")[0]) <= VERSION


def value_of(shown: str) -> Struct:
    """The value that a repr shows; a field that it doesn't show has its default."""
    names = {**vars(records), **vars(usage)}
    value = eval(ENUM.sub(r"\1", shown), names)  # noqa: S307 - files of our own
    assert isinstance(value, Struct)
    return value


@pytest.mark.parametrize("sample", SAMPLES, ids=kind_of)
def test_what_is_written_now_is_what_the_golden_file_holds(sample: Struct) -> None:
    golden = json.loads((GOLDEN / f"{kind_of(sample)}.v{VERSION}.json").read_text())
    assert encode(sample).hex() == golden["hex"]


def test_every_kind_has_a_sample_and_a_golden_file_of_this_version() -> None:
    here = {path.stem.partition(".v")[0] for path in FILES if path.stem.endswith(f".v{VERSION}")}
    assert kinds_in_schema() == set(KINDS) == here


def test_samples_leave_no_field_at_its_default() -> None:
    """A field that a golden file doesn't show could change unseen."""
    for sample in SAMPLES:
        for name, default in zip(
            reversed(sample.__struct_fields__), reversed(sample.__struct_defaults__), strict=False
        ):
            assert getattr(sample, name) != default, f"{kind_of(sample)}.{name}"


def test_every_step_of_a_decision_stands_in_its_sample() -> None:
    (decision,) = (s for s in SAMPLES if isinstance(s, records.Decision))
    steps = {type(step) for step in decision.steps}
    assert steps == set(records.Step.__args__)
