"""Sources of `fairlane embed`: each format gives the same rows, bad ones with their reason."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fairlane.embed_source import LINE_BYTES_MAX, Columns, Row, open_source, tenants_of
from fairlane.errors import FairlaneError

TEXTS = ["plain", "grün", "日本語 \U0001f680", 'quo"te\\', "two  spaces"]


def lines(path: Path, *rows: Any) -> Path:
    path.write_bytes(
        b"".join(
            row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows
        )
    )
    return path


def parquet(path: Path, columns: dict[str, Any], group: int = 2) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=group)
    return path


BY_DEFAULT = Columns()


def rows(path: Path, columns: Columns = BY_DEFAULT, format_: str | None = None) -> list[Row]:
    return list(open_source(path, format_, columns).rows())


def test_each_format_gives_the_same_rows(tmp_path: Path) -> None:
    wanted = [Row(number, str(number), text) for number, text in enumerate(TEXTS, 1)]
    text = tmp_path / "a.txt"
    text.write_text("\n".join(TEXTS))
    assert rows(text) == wanted
    assert rows(lines(tmp_path / "a.jsonl", *({"text": t} for t in TEXTS))) == wanted
    assert rows(parquet(tmp_path / "a.parquet", {"text": TEXTS})) == wanted


def test_columns_are_named_and_default_to_an_id_that_is_there(tmp_path: Path) -> None:
    columns = Columns("key", "body", "who")
    given = {"key": [7, 8], "body": ["a", "b"], "who": ["x", "y"], "id": ["n", "m"]}
    wanted = [Row(1, "7", "a", "x"), Row(2, "8", "b", "y")]
    each = [dict(zip(given, values, strict=True)) for values in zip(*given.values(), strict=True)]
    assert rows(parquet(tmp_path / "a.parquet", given), columns) == wanted
    assert rows(lines(tmp_path / "a.jsonl", *each), columns) == wanted
    by_id = Columns(text="body")
    assert [row.id for row in rows(tmp_path / "a.parquet", by_id)] == ["n", "m"]
    assert [row.id for row in rows(tmp_path / "a.jsonl", by_id)] == ["n", "m"]


def test_a_broken_line_is_a_failed_row_and_not_the_end(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "a.jsonl",
        {"text": "first", "id": "a"},
        b"{not json}\n",
        b'{"text": "\xff"}\n',
        b"\n",
        b"[" * 5_000 + b"\n",
        b'{"text": "' + b"x" * LINE_BYTES_MAX + b'"}\n',
        {"text": "last", "id": "z"},
    )
    found = rows(path)
    assert [(row.number, row.reason) for row in found] == [
        (1, ""),
        (2, "unreadable"),
        (3, "unreadable"),
        (5, "unreadable"),
        (6, "unreadable"),
        (7, ""),
    ]
    assert all(row.detail for row in found if row.reason)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"id": "a"}, "no_text"),
        ({"id": "a", "text": None}, "no_text"),
        ({"id": "a", "text": 5}, "no_text"),
        ({"id": "a", "text": " \t"}, "no_text"),
        ({"id": None, "text": "t"}, "no_id"),
        ({"id": "", "text": "t"}, "no_id"),
        ({"id": True, "text": "t"}, "no_id"),
        ({"id": "a\nb", "text": "t"}, "no_id"),
        ({"id": 1.5, "text": "t"}, "no_id"),
        ({"id": "x" * 1_001, "text": "t"}, "no_id"),
    ],
)
def test_a_row_without_what_it_needs_says_what(
    tmp_path: Path, row: dict[str, Any], reason: str
) -> None:
    good = {"id": "good", "text": "t"}
    found = rows(lines(tmp_path / "a.jsonl", good, row))
    assert (found[0].reason, found[1].reason) == ("", reason)


def test_nothing_in_parquet_is_a_failed_row(tmp_path: Path) -> None:
    given = {"id": ["a", None, "c"], "text": ["t", "t", None], "who": ["x", "x", "x"]}
    found = rows(parquet(tmp_path / "a.parquet", given), Columns(tenant="who"))
    assert [row.reason for row in found] == ["", "no_id", "no_text"]


def test_dictionaries_of_parquet_are_text(tmp_path: Path) -> None:
    words = pa.array(["x", "y", "x"]).dictionary_encode()
    found = rows(parquet(tmp_path / "a.parquet", {"text": words}))
    assert [row.text for row in found] == ["x", "y", "x"]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_an_empty_file_has_no_rows(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    source = open_source(tmp_path / name, None, Columns())
    assert (list(source.rows()), source.count()) == ([], 0)


def test_an_empty_parquet_has_no_rows(tmp_path: Path) -> None:
    source = open_source(
        parquet(tmp_path / "a.parquet", {"text": pa.array([], pa.string())}), None, Columns()
    )
    assert (list(source.rows()), source.count()) == ([], 0)


def test_rows_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a\nb\nc")
    assert open_source(path, None, Columns()).count() == 3
    path.write_text("a\nb\n")
    assert open_source(path, None, Columns()).count() == 2
    path = parquet(tmp_path / "a.parquet", {"text": TEXTS})
    assert open_source(path, None, Columns()).count() == len(TEXTS)


def test_what_can_not_be_a_source_is_said_at_once(tmp_path: Path) -> None:
    for name, content, columns, message in (
        ("missing.jsonl", None, Columns(), "No such file"),
        ("a.csv", b"x", Columns(), "--format"),
        ("a.parquet", b"no parquet at all", Columns(), "can't be read as Parquet"),
        ("a.jsonl", b'{"body": "x"}\n', Columns(), "--text-column"),
        ("b.jsonl", b'{"text": "x"}\n', Columns(tenant="who"), "'who'"),
        ("a.txt", b"x", Columns(id="n"), "no columns"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(FairlaneError, match=message):
            open_source(tmp_path / name, None, columns)
    path = parquet(tmp_path / "b.parquet", {"text": [1, 2], "id": [0.5, 1.5]})
    for columns, message in (
        (Columns(text="words"), "it has 'text', 'id'"),
        (Columns(), "column 'text' is int64"),
        (Columns(text="id"), "column 'id' is double"),
    ):
        with pytest.raises(FairlaneError, match=message):
            open_source(path, None, columns)


def test_a_parquet_file_that_breaks_off_says_where(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", {"text": [f"text {n}" * 50 for n in range(3_000)]}, 500)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 4_000] = b"\x00" * 4_000
    path.write_bytes(data)
    with pytest.raises(FairlaneError, match="beyond row"):
        rows(path)


def test_the_format_can_be_said(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.data", {"text": "x"})
    assert [row.text for row in rows(path, format_="jsonl")] == ["x"]
    assert [row.text for row in rows(path, format_="text")] == ['{"text": "x"}']


def test_tenants_are_found_in_their_order_and_bounded(tmp_path: Path) -> None:
    given = [{"text": "x", "who": who} for who in ("b", "a", "b")] + [{"text": "", "who": "c"}]
    source = open_source(lines(tmp_path / "a.jsonl", *given), None, Columns(tenant="who"))
    assert tenants_of(source, 2) == ["b", "a"]
    with pytest.raises(FairlaneError, match="more than 1 tenants"):
        tenants_of(source, 1)
