"""Texts to tokens, as the model's tokenizer file says, and no further than the model reads.

A tokenizer that cuts still takes the whole text apart first: 400,000 exclamation marks took
1.75 s and 272 MiB to become 256 tokens. So a long text is read from its beginning only, twice
as far each time until enough tokens are certain. The tokens are those of the whole text:
words end at white space, punctuation and Chinese characters, and a word whose successor is
there is what it is, whatever follows. Not certain are the last word of what was read, and the
characters in which a special token ("[MASK]") may have begun.

What belongs here: the tokenizer. What does not: requests, the model.
"""

import os

from tokenizers import Encoding, Tokenizer

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
        special = self._tokenizer.get_added_tokens_decoder().values()
        self._margin = max((len(token.content) for token in special), default=0)

    def of(self, text: str) -> tuple[list[int], bool]:
        """A text's tokens, those at its ends included, and whether it had more than that."""
        read = READ_CHARS
        while read < len(text):
            found = self._certain(text[:read])
            if found is not None:
                return found, True
            read *= 2
        (encoded,) = self._tokenizer.encode_batch_fast([text])  # `encode` holds the lock
        return self._cut(encoded.ids), len(encoded.ids) > self._tokens_max

    def _certain(self, beginning: str) -> list[int] | None:
        """The tokens of every text with this beginning, if they are more than are kept."""
        (encoded,) = self._tokenizer.encode_batch([beginning])
        if self._certain_count(encoded, len(beginning)) < self._tokens_max:
            return None
        return self._cut(encoded.ids)

    def _certain_count(self, encoded: Encoding, length: int) -> int:
        """How many tokens at the beginning no continuation changes, [CLS] among them."""
        words, places = encoded.word_ids, encoded.offsets
        last = max((word for word in words if word is not None), default=0)
        for count in range(1, len(words) - 1):
            if words[count] == last or places[count][1] > length - self._margin:
                return count
        return 1

    def _cut(self, ids: list[int]) -> list[int]:
        if len(ids) <= self._tokens_max:
            return ids
        return [*ids[: self._tokens_max - 1], ids[-1]]
