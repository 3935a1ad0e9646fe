"""Texts to tokens, as the model's tokenizer file says, and no further than the model reads.

A tokenizer that cuts still takes the whole text apart first: 400,000 exclamation marks took
1.75 s and 272 MiB to become 256 tokens. So a long text is read from its beginning only, twice
as far each time until enough tokens are certain. The tokens are those of the whole text:
words end at white space, punctuation and Chinese characters, and a word whose successor is
there is what it is, whatever follows; the last word of what was read may go on. So may a
special token: half a "[MASK]" is a "[" and a last word. So one token more than is kept has to
be there before the last word, and what may be that "[" is not kept.

What belongs here: the tokenizer. What does not: requests, the model.
"""

import os

from tokenizers import Tokenizer

#: So far a text is read at first, characters: 256 tokens of prose are some 1,200, of code or
#: of languages with few words in the vocabulary fewer.
READ_CHARS = 2_048


class WordPieces:
    """A tokenizer; safe to use from several threads, each call runs on its caller's thread."""

    def __init__(self, content: bytes, tokens_max: int) -> None:
        """Read a tokenizer's file; what it says about padding and cutting is not the model's."""
        # Its own threads would be as many as there are processors, whatever anybody chose.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._tokenizer = Tokenizer.from_buffer(content)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokens_max = tokens_max

    def of(self, text: str) -> tuple[list[int], bool]:
        """A text's tokens, those at its ends included, and whether it had more than that."""
        read = READ_CHARS
        while read < len(text):
            found = self._certain(text[:read])
            if found is not None:
                return found, True
            read *= 2
        # Batches of one: `encode` holds every other Python thread up. The fast one knows no words.
        (encoded,) = self._tokenizer.encode_batch_fast([text])
        ids = encoded.ids
        return self._cut(ids), len(ids) > self._tokens_max

    def _certain(self, beginning: str) -> list[int] | None:
        """The tokens of every text with this beginning, if they are more than are kept."""
        (encoded,) = self._tokenizer.encode_batch([beginning])
        words = encoded.word_ids  # None for the two at the ends
        last = words[-2] if len(words) > 2 else None  # noqa: PLR2004
        return self._cut(encoded.ids) if words.index(last) >= self._tokens_max else None

    def _cut(self, ids: list[int]) -> list[int]:
        if len(ids) <= self._tokens_max:
            return ids
        return [*ids[: self._tokens_max - 1], ids[-1]]
