"""Framing: what can't be read says where it stands and why; what is read, round-trips."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from schemas.codec import (
    HEADER,
    DecodeError,
    batch_bodies,
    chain,
    decode_bytes,
    decode_header,
    decode_value,
    describe,
    encode,
    header,
    join,
    passed_through,
)
from schemas.decisions import Chain, Decision, SnapshotChunk
from schemas.log import Record
from schemas.reasons import Reason
from schemas.records import (
    Batch,
    End,
    Finished,
    Item,
    Outcome,
    Request,
    Result,
    Seen,
    Started,
    Usage,
    WorkerRecord,
)
from tests.support.record_samples import SAMPLES, kind_of

INT64 = st.integers(-(2**63), 2**63 - 1)
USAGES = st.builds(Usage, INT64, INT64, INT64, INT64, INT64, INT64)
ENDS = st.sampled_from(End)
TEXTS = st.lists(st.text(max_size=8), max_size=3).map(tuple)
RESULTS = st.builds(
    Result,
    st.just(1),
    st.text(),
    st.text(),
    st.text(),
    ENDS,
    st.text(),
    st.text(),
    INT64,
    USAGES,
    INT64,
    INT64,
    INT64,
)
OUTCOMES = st.lists(st.builds(Outcome, INT64, ENDS, USAGES), max_size=3).map(tuple)
FINISHED = st.builds(Finished, st.just(1), INT64, OUTCOMES, TEXTS, TEXTS)
PLACE = "t.requests[3]@41"


def record(value: bytes = b"", headers: tuple[tuple[str, bytes], ...] = ()) -> Record:
    return Record("t.requests", 3, 41, 0, None, value, headers)


@pytest.mark.parametrize("sample", SAMPLES, ids=kind_of)
def test_every_kind_survives(sample: Struct) -> None:
    assert decode_bytes(encode(sample), type(sample), "here") == sample


@pytest.mark.parametrize("sample", SAMPLES, ids=kind_of)
def test_every_truncation_is_told_with_its_place(sample: Struct) -> None:
    data = encode(sample)
    for length in range(len(data)):
        with pytest.raises(DecodeError) as raised:
            decode_value(record(data[:length]), type(sample))
        assert raised.value.reason is Reason.UNREADABLE
        assert str(raised.value).startswith(f"{PLACE}: unreadable: ")


@pytest.mark.parametrize("sample", SAMPLES, ids=kind_of)
@pytest.mark.parametrize("version", [0, 2, 99])
def test_another_version_is_told_with_what_to_do(sample: Struct, version: int) -> None:
    data = encode(msgspec.structs.replace(sample, v=version))
    with pytest.raises(DecodeError) as raised:
        decode_value(record(data), type(sample))
    assert raised.value.reason is Reason.UNKNOWN_VERSION
    assert f"version {version}" in raised.value.detail


def test_a_later_version_of_another_shape_is_unknown_not_unreadable() -> None:
    data = msgspec.msgpack.encode(["seen", 2, {"slots": "many"}, 4])
    with pytest.raises(DecodeError, match=r"unknown_version: version 2 .*upgrade") as raised:
        decode_value(record(data), Seen)
    assert raised.value.reason is Reason.UNKNOWN_VERSION


@pytest.mark.parametrize("data", [b"", b"\xc1", b"{}", b"\x90", b"\x91\xa4seen", b"\xff" * 40])
def test_noise_is_unreadable(data: bytes) -> None:
    for kind in (Seen, Request, WorkerRecord, Decision | SnapshotChunk):
        with pytest.raises(DecodeError, match="unreadable"):
            decode_value(record(data), kind)


def test_another_kind_is_unreadable() -> None:
    with pytest.raises(DecodeError, match=r"unreadable: .*started"):
        decode_value(record(encode(Started(1, 3))), Seen)


def test_text_that_is_no_text_is_unreadable() -> None:
    data = encode(Request(1, "id", "acme", "embed")).replace(b"acme", b"\xff\xfe\xfd\xfc")
    with pytest.raises(DecodeError, match="unreadable"):
        decode_value(record(data), Request)


def test_fields_that_a_later_release_added_at_the_end_are_passed_over() -> None:
    array = msgspec.msgpack.decode(encode(Seen(1, 8)))
    assert decode_bytes(msgspec.msgpack.encode([*array, "new"]), Seen, "here") == Seen(1, 8)


def test_ours_is_one_header_and_others_pass_through_in_order() -> None:
    request = Request(1, "id", "acme", "embed")
    others = (("traceparent", b"1"), ("x", b"\x00"), ("x", b"2"))
    headers = tuple(header(request, others))
    assert headers[0][0] == HEADER
    assert decode_header(record(b"body", headers), Request) == request
    assert passed_through(headers) == others
    with pytest.raises(DecodeError, match=r"t\.requests\[3\]@41: unreadable: no header named"):
        decode_header(record(b"body", others), Request)


def test_describe_reads_every_kind_where_it_stands() -> None:
    with_body = {"request", "batch", "batch_cancel", "result", "dead"}
    for sample in SAMPLES:
        if kind_of(sample) in with_body:
            assert describe(record(b"body", tuple(header(sample)))) == sample
        elif not isinstance(sample, Chain):
            assert describe(record(encode(sample))) == sample
            sealed = tuple(header(Chain(1, 3, b"d" * 16)))
            assert describe(record(encode(sample), sealed)) == sample


def batch_of(sizes: list[int]) -> Batch:
    items = tuple(Item(n, f"r{n}", "a", "e", 1, size, 0, 0, 0) for n, size in enumerate(sizes))
    return Batch(1, 0, 1, "gpu", 0, items)


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_bodies_of_a_batch_are_cut_where_they_were_joined(bodies: list[bytes]) -> None:
    batch = batch_of([len(body) for body in bodies])
    assert batch_bodies(batch, join(bodies), "here") == bodies


@pytest.mark.parametrize(("sizes", "length"), [([3, 4], 6), ([3, 4], 8), ([], 1), ([1], 0)])
def test_sizes_that_do_not_add_up_are_told(sizes: list[int], length: int) -> None:
    with pytest.raises(DecodeError, match=r"here: unreadable: bodies take \d+ bytes") as raised:
        batch_bodies(batch_of(sizes), b"x" * length, "here")
    assert f"bodies take {sum(sizes)} bytes, the record has {length}" in str(raised.value)


def test_a_negative_size_can_not_reach_into_a_neighbour() -> None:
    with pytest.raises(DecodeError):
        batch_bodies(batch_of([4, -1, 1]), b"abcd", "here")


@given(st.binary(), st.binary())
def test_a_chain_depends_on_all_of_both(previous: bytes, value: bytes) -> None:
    assert len(chain(previous, value)) == 16
    assert chain(previous, value) != chain(previous, value + b"\x00")
    assert chain(previous, value) != chain(previous + b"\x00", value)


@given(st.builds(Request, st.just(1), st.text(), st.text(), st.text(), INT64, INT64, INT64, INT64))
def test_requests_round_trip(request: Request) -> None:
    assert decode_header(record(b"", tuple(header(request))), Request) == request


@given(RESULTS)
def test_results_round_trip(result: Result) -> None:
    assert decode_bytes(encode(result), Result, "here") == result


@given(FINISHED)
def test_finished_round_trip(finished: Finished) -> None:
    assert decode_bytes(encode(finished), Finished, "here") == finished


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_decode_error(data: bytes) -> None:
    for headers in ((), ((HEADER, data),)):
        try:
            describe(record(data, headers))
        except DecodeError as error:
            assert error.place == PLACE  # noqa: PT017 - most bytes raise, a few decode
