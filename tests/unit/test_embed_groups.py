"""Rows into requests and back: bounds, names that repeat, answers that don't fit."""

import json
from base64 import b64encode
from struct import pack
from typing import Any

import pytest

from fairlane.client_values import Outcome
from fairlane.embed_groups import (
    AnswerError,
    Group,
    Grouper,
    Work,
    read_answer,
    rows_per_request,
)
from schemas.records import End


def work(number: int, text: str = "text") -> Work:
    return Work(number, f"id{number}", text, b"digest%d" % number)


def grouped(grouper: Grouper, rows: list[tuple[str, Work, bool]]) -> list[list[int]]:
    found = [
        group for tenant, row, is_written in rows
        for group in grouper.add(tenant, row, is_written=is_written)
    ]  # fmt: skip
    return [[row.number for row in group.rows] for group in found + grouper.rest()]


def test_a_group_is_full_by_rows_or_by_bytes() -> None:
    rows = [("", work(n, text), False) for n, text in enumerate(["a" * 40] * 3 + ["b" * 100, "c"])]
    assert grouped(Grouper(2), rows) == [[0, 1], [2, 3], [4]]
    assert grouped(Grouper(10, bytes_max=80), rows) == [[0, 1], [2], [3], [4]]
    assert grouped(Grouper(1, bytes_max=80), rows) == [[0], [1], [2], [3], [4]]


def test_tenants_are_never_mixed() -> None:
    rows = [(tenant, work(n), False) for n, tenant in enumerate("ababa")]
    assert grouped(Grouper(2), rows) == [[0, 2], [1, 3], [4]]


@pytest.mark.parametrize("gone", [{0, 1}, {2, 3}, {0, 1, 4, 5}, {6}])
def test_a_run_that_goes_on_asks_for_the_requests_that_are_left(gone: set[int]) -> None:
    sizes = [30, 45, 70, 5, 40, 40, 10]
    rows = [("", work(n, "x" * size), False) for n, size in enumerate(sizes)]
    before = grouped(Grouper(2, bytes_max=80), rows)
    again = [(tenant, row, row.number in gone) for tenant, row, _ in rows]
    after = grouped(Grouper(2, bytes_max=80), again)
    assert before == [[0, 1], [2, 3], [4, 5], [6]]
    assert after == [group for group in before if not gone & set(group)]


def test_a_key_is_of_the_run_the_tenant_the_ids_and_the_texts() -> None:
    one = Group("a", (work(1), work(2)))
    assert one.key("run") == Group("a", (work(1), work(2))).key("run")
    others = [
        one.key("other run"),
        Group("b", one.rows).key("run"),
        Group("a", one.rows[:1]).key("run"),
        Group("a", (work(1), work(2)._replace(digest=b"x"))).key("run"),
    ]
    assert len({one.key("run"), *others}) == 5


def answer(data: Any, **fields: Any) -> Outcome:
    document = {"object": "list", "model": "m", "data": data, **fields}
    return Outcome("id", End.SUCCEEDED, json.dumps(document).encode())


def test_vectors_come_as_numbers_or_base64_in_any_order() -> None:
    packed = pack("<2f", 0.5, -1.0)
    items = [
        {"index": 1, "embedding": [0.5, -1.0]},
        {"index": 0, "embedding": b64encode(pack("<2f", 1.0, 2.0)).decode()},
    ]
    model, vectors, cut = read_answer(answer(items, model_sha256="ff", truncated=1), 2)
    assert cut == 1
    assert read_answer(answer(items, truncated="yes"), 2).cut == 0
    assert (model.name, model.sha256, model.dimensions) == ("m", "ff", 2)
    assert vectors == [pack("<2f", 1.0, 2.0), packed]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{"embedding": [1.0]}], "1 vectors for 2 texts"),
        ([{"embedding": [1.0]}, {"embedding": [1.0, 2.0]}], "not all of one length"),
        ([{"embedding": []}, {"embedding": []}], "not all of one length"),
        ([{"embedding": "AAA="}, {"embedding": "AAA="}], "not all of one length"),
        ([{"embedding": "no base64!"}] * 2, "no list of embeddings"),
        ([{"embedding": [1e300]}] * 2, "no list of embeddings"),
        ("nothing", "no list of embeddings"),
    ],
)
def test_an_answer_that_does_not_fit_says_why(data: Any, message: str) -> None:
    with pytest.raises(AnswerError, match=message):
        read_answer(answer(data), 2)


def test_an_answer_of_as_many_rows_as_go_together_stands_in_the_index() -> None:
    assert rows_per_request(4) == 32
    for dimensions in (384, 768, 1_536, 4_096):
        rows = rows_per_request(dimensions)
        vector = b64encode(b"\xff" * 4 * dimensions).decode()
        data = [{"object": "embedding", "index": n, "embedding": vector} for n in range(rows)]
        assert rows > 1
        assert len(answer(data, model_sha256="f" * 64).output_bytes) <= 64_000
    assert rows_per_request(100_000) == 1
