"""A lane's progress as commit metadata: exact, bounded, and loud when it is damaged."""

from random import Random

import pytest

from schemas.log import METADATA_CHARS_MAX, Commit
from workers.core.progress import (
    OPEN_MAX,
    Progress,
    ProgressError,
    decode_progress,
    encode_progress,
    progress_of,
)

PLACE = "group g, lanes[0]"
OFFSET_MAX = 1 << 44


def test_progress_without_open_batches_is_an_offset() -> None:
    progress = progress_of(17, ())
    assert progress.low == 17
    assert progress.has_ended(16)
    assert not progress.has_ended(17)


def test_open_batches_hold_the_offset_and_the_rest_above_has_ended() -> None:
    progress = progress_of(17, {9, 4})
    assert progress.low == 4
    assert [offset for offset in range(20) if not progress.has_ended(offset)] == [4, 9, 17, 18, 19]


def test_what_stands_at_or_above_the_position_is_not_listed() -> None:
    assert progress_of(10, {4, 10, 12}) == Progress(10, (4,))


def test_any_progress_comes_back_whole() -> None:
    rng = Random(7)
    for _ in range(500):
        upto = rng.randrange(OFFSET_MAX)
        count = min(upto, rng.randrange(OPEN_MAX + 1))
        span = rng.choice((count, 1_000, 1 << 20, upto))
        low = max(0, upto - max(span, count))
        progress = progress_of(upto, {rng.randrange(low, upto) for _ in range(count)})
        commit = encode_progress(progress)
        assert commit.offset == progress.low
        assert decode_progress(commit, PLACE) == progress


def test_the_largest_progress_fits_into_the_metadata() -> None:
    step = OFFSET_MAX // OPEN_MAX
    widest = progress_of(OFFSET_MAX, range(0, OFFSET_MAX - step, step))
    widest = Progress(OFFSET_MAX, widest.open[:OPEN_MAX])
    assert len(widest.open) >= OPEN_MAX - 1
    assert len(encode_progress(widest).metadata) < METADATA_CHARS_MAX


def test_more_open_batches_than_fit_are_refused() -> None:
    with pytest.raises(ProgressError, match=str(OPEN_MAX)):
        encode_progress(progress_of(10_000, range(OPEN_MAX + 1)))


def test_every_changed_character_is_seen() -> None:
    commit = encode_progress(progress_of(1_000, {3, 500, 999}))
    for index, character in enumerate(commit.metadata):
        other = "A" if character != "A" else "B"
        damaged = commit.metadata[:index] + other + commit.metadata[index + 1 :]
        with pytest.raises(ProgressError, match="group g"):
            decode_progress(commit._replace(metadata=damaged), PLACE)


@pytest.mark.parametrize("metadata", ["", "FL1", "FL1..", "FL2.00000000.AAA=", "x" * 4_095])
def test_foreign_metadata_is_refused_with_the_way_out(metadata: str) -> None:
    with pytest.raises(ProgressError, match="delete the group's offset"):
        decode_progress(Commit(3, metadata), PLACE)


def test_metadata_of_another_offset_is_refused() -> None:
    commit = encode_progress(progress_of(1_000, {3}))
    with pytest.raises(ProgressError, match="checksum"):
        decode_progress(commit._replace(offset=4), PLACE)
