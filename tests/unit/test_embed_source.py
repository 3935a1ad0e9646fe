"""Sources of `fairlane embed`: each format gives the same rows, bad ones with their reason."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fairlane.embed_source import (
    CHUNK_CHARS,
    CHUNK_ROWS,
    LINE_BYTES_MAX,
    NAMED,
    TEXT_BYTES_MAX,
    Columns,
    Row,
    chunks,
    open_source,
    tenants_of,
)
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


def test_a_pipe_and_a_folder_are_refused_unread(tmp_path: Path) -> None:
    """A source is read more than once: what the checks took of a pipe would be missing."""
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    reading, writing = os.pipe()
    try:
        os.write(writing, b'{"text": "x"}\n')
        given = [tmp_path / "pipe.jsonl", tmp_path / "folder.jsonl", Path(f"/dev/fd/{reading}")]
        for path in given:
            with pytest.raises(FairlaneError, match=r"is no file.*into a file first"):
                open_source(path, None, Columns())
        assert os.read(reading, 100) == b'{"text": "x"}\n'
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.txt.gz"])
def test_lines_in_gzip_are_read_as_they_are(tmp_path: Path, name: str) -> None:
    plain = [json.dumps({"text": text}) if "jsonl" in name else text for text in TEXTS]
    (tmp_path / name).write_bytes(gzip.compress("\n".join(plain).encode()))
    source = open_source(tmp_path / name, None, Columns())
    assert source.count() == len(TEXTS)
    assert [row.text for row in source.rows()] == TEXTS


def test_gzip_that_is_none_or_breaks_off_is_told(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(b"line %d\n" % n for n in range(100_000)))
    for content, message in ((b"plain", "beyond line 0"), (whole[:-20_000], "beyond line [1-9]")):
        (tmp_path / "a.txt.gz").write_bytes(content)
        source = open_source(tmp_path / "a.txt.gz", None, Columns())
        with pytest.raises(FairlaneError, match=message):
            list(source.rows())
        with pytest.raises(FairlaneError, match="can't be read"):
            source.count()
    with pytest.raises(FairlaneError, match="gunzip"):
        open_source(tmp_path / "a.txt.gz", "parquet", Columns())


def test_a_text_that_no_request_takes_fails_alone_in_each_format(tmp_path: Path) -> None:
    texts = ["ä" * (TEXT_BYTES_MAX // 2), "ä" * (TEXT_BYTES_MAX // 2) + "x", "last"]
    each = [{"id": f"n{at}", "text": text} for at, text in enumerate(texts)]
    raw = [json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in each]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    given = {"id": [row["id"] for row in each], "text": texts}
    for path in (
        tmp_path / "a.txt",
        lines(tmp_path / "a.jsonl", *raw),
        parquet(tmp_path / "a.parquet", given, 3),
    ):
        found = rows(path)
        assert [row.reason for row in found] == ["", "body_too_large", ""]
        assert found[1].text == ""
        assert found[1].reason in NAMED
        assert str(TEXT_BYTES_MAX) in found[1].detail


def test_a_row_that_fails_with_its_name_keeps_its_tenant(tmp_path: Path) -> None:
    given: list[Any] = [
        {"id": "a", "who": "x", "text": "t"},
        {"id": "b", "who": "x", "text": ""},
        {"id": "c", "who": 5, "text": ""},
        {"id": "d", "who": "two\nlines", "text": "t"},
    ]
    found = rows(lines(tmp_path / "a.jsonl", *given), Columns(tenant="who"))
    assert [(row.id, row.tenant, row.reason) for row in found] == [
        ("a", "x", ""),
        ("b", "x", "no_text"),
        ("c", "", "no_tenant"),
        ("d", "", "no_tenant"),
    ]
    assert [row.reason in NAMED for row in found[1:]] == [True, False, False]


BAD = [b"first", b"\xff\xfe", b"last"]


def as_text(values: list[bytes], kind: pa.DataType) -> pa.Array:
    """An array of text whose bytes nobody looked at, as some writers leave them."""
    binary = pa.array(values, pa.large_binary() if kind == pa.large_string() else pa.binary())
    return pa.Array.from_buffers(kind, len(values), binary.buffers())


@pytest.mark.parametrize("column", ["text", "id", "who"])
def test_no_utf8_in_parquet_is_an_unreadable_row_and_no_other(tmp_path: Path, column: str) -> None:
    plain = pa.array(["a", "b", "c"])
    bad = as_text(BAD, pa.string())
    for values in (bad, as_text(BAD, pa.large_string()), pa.array(BAD), bad.dictionary_encode()):
        given = {"text": plain, "id": plain, "who": plain, column: values}
        found = rows(parquet(tmp_path / "a.parquet", given, 3), Columns(tenant="who"))
        assert [row.reason for row in found] == ["", "unreadable", ""]
        assert found[1].id == "2"
        assert "no UTF-8" in found[1].detail
        name = {"who": "tenant"}.get(column, column)
        assert [getattr(row, name) for row in found[::2]] == ["first", "last"]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()]
)
def test_every_kind_of_text_in_parquet_is_text(tmp_path: Path, kind: pa.DataType) -> None:
    values = pa.array([*[text.encode() for text in TEXTS], None], pa.binary()).cast(kind)
    found = rows(parquet(tmp_path / "a.parquet", {"text": values, "id": values}))
    assert [row.text for row in found] == [*TEXTS, ""]
    assert [row.id for row in found] == [*TEXTS, "6"]
    assert [row.reason for row in found] == [""] * len(TEXTS) + ["no_id"]


def test_columns_of_parquet_that_hold_no_text_are_told_at_once(tmp_path: Path) -> None:
    good = pa.array(["a", "b"])
    for values, kind in (
        (pa.array([1, 2]), "int64"),
        (pa.array([None, None]), "null"),
        (pa.array([["a"], []]), "list"),
        (pa.array([True, False]), "bool"),
        (pa.array([b"12", b"34"], pa.binary(2)), "fixed_size_binary"),
        (pa.array([{"a": 1}, {"a": 2}]), "struct"),
    ):
        for column in ("text", "who", "id"):
            if (column, kind) == ("id", "int64"):
                continue
            given = {"text": good, "id": good, "who": good, column: values}
            with pytest.raises(FairlaneError, match=f"column '{column}' is {kind}"):
                rows(parquet(tmp_path / "a.parquet", given), Columns(tenant="who"))


def test_integers_of_parquet_are_ids(tmp_path: Path) -> None:
    numbers = pa.array([2**64 - 1, 0], pa.uint64())
    for values in (numbers, numbers.dictionary_encode()):
        found = rows(parquet(tmp_path / "a.parquet", {"text": ["a", "b"], "id": values}))
        assert [row.id for row in found] == [str(2**64 - 1), "0"]


def test_two_columns_of_one_name_are_told(tmp_path: Path) -> None:
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(FairlaneError, match="2 columns 'text'"):
        rows(tmp_path / "a.parquet")


def test_rows_come_in_chunks_of_bounded_memory() -> None:
    short = [Row(n, str(n), "t") for n in range(2 * CHUNK_ROWS + 1)]
    assert [len(chunk) for chunk in chunks(iter(short))] == [CHUNK_ROWS, CHUNK_ROWS, 1]
    long = [row._replace(text="t" * (CHUNK_CHARS // 4)) for row in short[:10]]
    found = list(chunks(iter(long)))
    assert [len(chunk) for chunk in found] == [4, 4, 2]
    assert [row for chunk in found for row in chunk] == long


def test_long_rows_of_parquet_are_decoded_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"{n} " * 1_000 for n in range(50)]
    path = parquet(tmp_path / "a.parquet", {"text": texts}, 50)
    monkeypatch.setattr("fairlane.embed_parquet.BATCH_BYTES", 10_000)
    sizes: list[int] = []
    read = pq.ParquetFile.iter_batches

    def watched(self: Any, *given: Any, **named: Any) -> Any:
        for batch in read(self, *given, **named):
            sizes.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
    assert [row.text for row in rows(path)] == texts
    assert sum(sizes) == 50
    assert max(sizes) <= 5
