"""The beginning of a text that is read gives the tokens that the whole text gives."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from fairlane.models import folder
from workers.engines import wordpieces
from workers.engines.weights import TOKENIZER
from workers.engines.wordpieces import READ_CHARS, WordPieces

#: What makes cutting hard: marks that go, words that join over what goes, special tokens and
#: their halves, words too long for the vocabulary, characters that are words by themselves.
PIECES = st.sampled_from(
    [
        *("a", "the", "word", "Grüße", "antidisestablishmentarianism", "x" * 101, "é", "İ", "ΑΣ"),
        *(" ", "  ", "\n", "\t", "\u3000", "\u00a0", "\u2028", "\x0b", "\x85"),
        *("!", ".", "\u2026", "[", "]", "$", "\u20ac", "\u00ad", "'s", "-"),
        *("[SEP]", "[MASK]", "[CLS]", "[PAD]", "[UNK]", "[MA", "SK]", "[SE", "P]", "[mask]"),
        *("\u0301", "\u0323", "\u0338", "\u302e", "\x00", "\u200b", "\ufeff", "\ufffd"),
        *("数", "库", "ァ", "한", "ไทย", "\U0001f98a", "\U0001f469\u200d\U0001f4bb", "\U0001d165"),
    ]
)
TEXTS = st.lists(st.tuples(PIECES | st.characters(codec="utf-8"), st.integers(1, 12)), max_size=30)


@functools.cache
def plain() -> Tokenizer:
    made = Tokenizer.from_file(str(folder() / TOKENIZER.name))
    made.no_padding()
    made.no_truncation()
    return made


@functools.cache
def pieces(tokens_max: int) -> WordPieces:
    return WordPieces((folder() / TOKENIZER.name).read_bytes(), tokens_max)


def whole(text: str, tokens_max: int) -> tuple[list[int], bool]:
    """The whole text's tokens, cut afterwards; the last is [SEP]."""
    ids = plain().encode(text).ids
    is_cut = len(ids) > tokens_max
    return (ids[: tokens_max - 1] + ids[-1:] if is_cut else ids), is_cut


@given(TEXTS, st.integers(3, 24), st.integers(1, 40))
def test_what_is_read_gives_the_tokens_of_the_whole(
    parts: list[tuple[str, int]], tokens_max: int, read_chars: int
) -> None:
    """Small limits, so that cuts fall everywhere."""
    text = "".join(piece * times for piece, times in parts)
    usual, wordpieces.READ_CHARS = wordpieces.READ_CHARS, read_chars
    try:
        assert pieces(tokens_max).of(text) == whole(text, tokens_max)
    finally:
        wordpieces.READ_CHARS = usual


@given(TEXTS, TEXTS)
def test_long_texts_too(parts: list[tuple[str, int]], others: list[tuple[str, int]]) -> None:
    begin, end = ("".join(piece * times for piece, times in some) for some in (parts, others))
    for text in (begin * 20 + end * 20, "x" * (READ_CHARS + 5) + begin + end * 30):
        assert pieces(256).of(text) == whole(text, 256)


@pytest.mark.parametrize("special", ["[MASK]", "[UNK][SEP]"])
def test_a_special_token_may_be_cut_anywhere(special: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"one two {special} three! four five six"
    for read_chars in range(1, len(text)):
        monkeypatch.setattr(wordpieces, "READ_CHARS", read_chars)
        for tokens_max in range(3, 12):
            assert pieces(tokens_max).of(text) == whole(text, tokens_max)
