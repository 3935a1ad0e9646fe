"""The embedding model once more, plainly: one text at a time, in double precision, numpy alone.

An oracle: it shares with the engine the weights' file and the tokenizer's library, and no
line of code. Shapes: L tokens, 384 wide, 12 heads of 32.

`embedded` runs it in a process of its own with a single thread: numpy's threads wait for
each other by spinning, which on a busy machine takes a hundred times as long.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

Array = NDArray[np.float64]

HEADS, HEAD_WIDTH, LAYERS = 12, 32, 6
#: What the model was trained with (its sentence_bert_config.json), [CLS] and [SEP] included.
TOKENS_MAX = 256
SEP = 102


ROOT = Path(__file__).parents[2]


class Embedded(NamedTuple):
    """What texts become, in their order: counts of tokens, and vectors [texts, 384]."""

    counts: list[int]
    vectors: Array


def embedded(folder: Path, texts: Sequence[str]) -> Embedded:
    said = subprocess.run(
        [sys.executable, "-m", "tests.support.minilm_plain", folder],
        input=json.dumps(texts),
        stdout=subprocess.PIPE,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        cwd=ROOT,
        text=True,
        check=True,
    ).stdout
    counts, vectors = json.loads(said)
    return Embedded(counts, np.array(vectors))


class PlainModel:
    def __init__(self, folder: Path) -> None:
        self._weights = tensors(folder / "model.safetensors")
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def tokens(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids if len(ids) <= TOKENS_MAX else [*ids[: TOKENS_MAX - 1], SEP]

    def vector(self, text: str) -> Array:
        """[384], of length 1."""
        ids = self.tokens(text)
        table = "embeddings.{}_embeddings.weight".format
        words = self._weights[table("word")][ids]
        positions = self._weights[table("position")][: len(ids)]
        x = self._norm(words + positions + self._weights[table("token_type")][0], "embeddings.")
        for number in range(LAYERS):
            x = self._layer(x, f"encoder.layer.{number}.")
        mean: Array = x.mean(axis=0)
        length = float(np.sqrt((mean**2).sum()))
        return mean / length

    def _layer(self, x: Array, at: str) -> Array:
        q, k, v = (
            self._linear(x, f"{at}attention.self.{name}") for name in ("query", "key", "value")
        )
        seen = np.empty_like(x)
        for head in range(HEADS):
            part = slice(head * HEAD_WIDTH, (head + 1) * HEAD_WIDTH)
            scores = np.exp(q[:, part] @ k[:, part].T / np.sqrt(HEAD_WIDTH))
            seen[:, part] = scores / scores.sum(axis=1, keepdims=True) @ v[:, part]
        x = self._norm(
            x + self._linear(seen, f"{at}attention.output.dense"), f"{at}attention.output."
        )
        wide = self._linear(x, f"{at}intermediate.dense")
        narrow = self._linear(wide * (1 + erf(wide / np.sqrt(2))) / 2, f"{at}output.dense")
        return self._norm(x + narrow, f"{at}output.")

    def _linear(self, x: Array, at: str) -> Array:
        product: Array = x @ self._weights[f"{at}.weight"].T
        return product + self._weights[f"{at}.bias"]

    def _norm(self, x: Array, at: str) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-12)
        weight, bias = (self._weights[f"{at}LayerNorm.{part}"] for part in ("weight", "bias"))
        scaled: Array = centred / spread * weight
        return scaled + bias


def tensors(path: Path) -> dict[str, Array]:
    """Every tensor of 32-bit floats in a file: 8 bytes of length, a JSON header, the data."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(content, "<f4", (end - at) // 4, start + at)
        .reshape(said["shape"])
        .astype(np.float64)
        for name, said in header.items()
        if said["dtype"] == "F32"
        for at, end in [said["data_offsets"]]
    }


def erf(x: Array) -> Array:
    """To 1.5e-7: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    factors = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    total = np.zeros_like(x)
    for factor in factors:
        total = (total + factor) * t
    return np.sign(x) * (1 - total * np.exp(-(x**2)))


if __name__ == "__main__":
    model = PlainModel(Path(sys.argv[1]))
    given = json.load(sys.stdin)
    lengths = [len(model.tokens(text)) for text in given]
    json.dump([lengths, [model.vector(text).tolist() for text in given]], sys.stdout)
