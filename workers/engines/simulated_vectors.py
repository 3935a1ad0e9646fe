"""Embeddings that are made up: the wire shape of a real model, vectors drawn from the text.

A vector is a corner of a cube: each component is +1 or -1 by one bit of shake_256(text),
over the root of the dimensions. So it has unit length, the same text is the same vector on
any machine, and those of different texts are close to perpendicular.

Input: a JSON string, an array of strings, or an object `{"input": either of them,
"encoding_format": "float" | "base64"}`. Output: OpenAI's list of embeddings, with `model` and
`model_sha256`; base64 is that of little-endian float32.
"""

import struct
from base64 import b64encode
from hashlib import sha256, shake_256
from typing import Any, Literal

import msgspec

MODEL = "simulated"
#: Most components of a vector: that of one text still fits into a result.
DIMENSIONS_MAX = 8_192
_BITS = 8
_FLOAT_BYTES = 4
_BYTES_PER_TOKEN = 4


class InputError(Exception):
    """The input asks for no embeddings; the message says what would be right."""


class _Asked(msgspec.Struct):
    input: str | list[str]
    encoding_format: Literal["float", "base64"] = "float"


_decoder = msgspec.json.Decoder(str | list[str] | _Asked)


class Vectors:
    """Makes the answers of one model that does not exist."""

    def __init__(self, dimensions: int, settings: str) -> None:
        """`settings` names the model: others are another `model_sha256`."""
        if not 1 <= dimensions <= DIMENSIONS_MAX:
            raise ValueError(f"{dimensions} dimensions; a vector has 1..{DIMENSIONS_MAX}")
        self.model_sha256 = sha256(settings.encode()).hexdigest()
        self._size = dimensions * _FLOAT_BYTES
        self._hashed = -(-dimensions // _BITS)
        size = dimensions**-0.5
        #: Eight components for each value of a byte.
        self._octets = [
            struct.pack("<8f", *(size if byte >> bit & 1 else -size for bit in range(_BITS)))
            for byte in range(1 << _BITS)
        ]

    def vector(self, text: str) -> bytes:
        """The vector of a text, as little-endian float32."""
        bits = shake_256(text.encode()).digest(self._hashed)
        return b"".join([self._octets[byte] for byte in bits])[: self._size]

    def answer(self, body: bytes) -> bytes:
        """The output for an input; raises InputError when it is none."""
        try:
            asked = _decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            message = f"no text, array of texts or object with an input: {error}"
            raise InputError(message) from error
        wish = asked if isinstance(asked, _Asked) else _Asked(asked)
        texts = [wish.input] if isinstance(wish.input, str) else wish.input
        if not texts:
            raise InputError("the array of texts is empty")
        is_base64 = wish.encoding_format == "base64"
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": _written(self.vector(text), is_base64=is_base64),
            }
            for index, text in enumerate(texts)
        ]
        tokens = sum(-(-len(text.encode()) // _BYTES_PER_TOKEN) for text in texts)
        return msgspec.json.encode(
            {
                "object": "list",
                "model": MODEL,
                "model_sha256": self.model_sha256,
                "data": data,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )


def _written(vector: bytes, *, is_base64: bool) -> Any:
    if is_base64:
        return b64encode(vector).decode()
    return list(struct.unpack(f"<{len(vector) // _FLOAT_BYTES}f", vector))
