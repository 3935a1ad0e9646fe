"""The embedding engine against a plain numpy model, and what it says to every kind of input."""

import json
import os
import random
import shutil
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fairlane.models import folder
from schemas.records import End, Usage
from tests.support.minilm_plain import TOKENS_MAX, Embedded, embedded
from workers.engine import EngineBatch, EngineOutcome, EngineRequest
from workers.engines.embed import ROW_TOKENS, EmbedEngine
from workers.engines.weights import FILES, WEIGHTS, ModelError
from workers.engines.wordpieces import READ_CHARS

#: Single precision against double, over six layers.
COSINE_LEAST = 0.99999
#: What rounding makes of another order of the same sums.
ROUNDING = 2e-6

ODD = [
    "",
    " ",
    "a",
    "Grüße aus Köln, naïve café",
    "数据库里的公平调度",
    "🦊🦊 emoji and \x00 zero\u200bwidth",
    "[SEP] [MASK] [CLS]",
    "antidisestablishmentarianism" * 20,
    "Ω≈ç√∫µ≤≥÷",
    "line\nbreaks\tand\ttabs\r\n",
    "a word " * 400,
    "half as long " * 60,
    "x" * 5_000,
]


def paragraphs(count: int) -> list[str]:
    """Paragraphs of Python's documentation, of many lengths, always the same."""
    found = [part.strip() for text in topics.values() for part in text.split("\n\n")]
    return random.Random(4).sample(sorted({part for part in found if 0 < len(part) < 600}), count)


TEXTS = [*ODD, *paragraphs(24)]


@pytest.fixture(scope="module")
def engine() -> EmbedEngine:
    return EmbedEngine(folder(), threads=2)


@pytest.fixture(scope="module")
def plain() -> Embedded:
    return embedded(folder(), TEXTS)


def batch(*inputs: Any) -> EngineBatch:
    """A batch of JSON bodies; bytes are taken as they are."""
    bodies = [given if isinstance(given, bytes) else json.dumps(given).encode() for given in inputs]
    return EngineBatch(
        1,
        tuple(EngineRequest(n, f"id-{n}", "acme", "embed", body) for n, body in enumerate(bodies)),
    )


def nobody(index: int) -> bool:
    return False


def answer(outcome: EngineOutcome) -> dict[str, Any]:
    assert outcome.end is End.SUCCEEDED, outcome
    said: dict[str, Any] = json.loads(outcome.output)
    return said


def vectors(outcome: EngineOutcome) -> NDArray[np.float64]:
    data = answer(outcome)["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    assert {one["object"] for one in data} == {"embedding"}
    return np.array([one["embedding"] for one in data], np.float64)


def run(engine: EmbedEngine, *inputs: Any) -> Sequence[EngineOutcome]:
    return engine.run(batch(*inputs), nobody)


def test_vectors_and_tokens_are_those_of_the_plain_model(
    engine: EmbedEngine, plain: Embedded
) -> None:
    outcomes = run(engine, *TEXTS)
    made = np.concatenate([vectors(outcome) for outcome in outcomes])
    assert np.abs(np.linalg.norm(made, axis=1) - 1).max() < ROUNDING
    likeness = (made * plain.vectors).sum(axis=1)
    assert likeness.min() >= COSINE_LEAST
    usages = [Usage(input_tokens=count) for count in plain.counts]
    assert [outcome.usage for outcome in outcomes] == usages
    assert TOKENS_MAX in plain.counts
    assert any(ROW_TOKENS < count < TOKENS_MAX for count in plain.counts)


def test_the_comparison_itself_tells_texts_apart(plain: Embedded) -> None:
    real = plain.vectors[len(ODD) :]
    assert (real @ real.T)[~np.eye(len(real), dtype=bool)].max() < COSINE_LEAST


def test_the_others_of_a_batch_change_nothing(engine: EmbedEngine) -> None:
    together = [vectors(outcome)[0] for outcome in run(engine, *TEXTS)]
    backwards = [vectors(outcome)[0] for outcome in run(engine, *TEXTS[::-1])][::-1]
    alone = [vectors(run(engine, text)[0])[0] for text in TEXTS]
    assert np.abs(np.array(together) - np.array(alone)).max() < ROUNDING
    assert np.abs(np.array(together) - np.array(backwards)).max() < ROUNDING


def test_slots_share_one_engine(engine: EmbedEngine) -> None:
    shares = [TEXTS[n::4] for n in range(4)]
    alone = [[vectors(outcome)[0] for outcome in run(engine, *share)] for share in shares]
    with ThreadPoolExecutor(4) as slots:
        at_once = list(slots.map(lambda share: run(engine, *share), shares))
    for wanted, outcomes in zip(alone, at_once, strict=True):
        made = [vectors(outcome)[0] for outcome in outcomes]
        assert np.abs(np.array(made) - np.array(wanted)).max() < ROUNDING


def test_an_array_is_answered_in_its_order(engine: EmbedEngine) -> None:
    (outcome,) = run(engine, TEXTS)
    singles = [vectors(single)[0] for single in run(engine, *TEXTS)]
    assert np.abs(vectors(outcome) - np.array(singles)).max() < ROUNDING


def test_the_answer_has_the_shape_of_openai_and_names_the_weights(engine: EmbedEngine) -> None:
    outcome, cut = run(engine, ["a cat", "a dog"], ["short", "a word " * 400])
    said = answer(outcome)
    assert set(said) == {"object", "model", "model_sha256", "data", "truncated", "usage"}
    assert (said["object"], said["model"]) == ("list", "all-MiniLM-L6-v2")
    assert said["model_sha256"] == WEIGHTS.sha256
    assert said["usage"] == {"prompt_tokens": 8, "total_tokens": 8}
    assert said["truncated"] == 0
    assert answer(cut)["truncated"] == 1


@pytest.mark.parametrize("given", ["a cat", ["a cat", "", "dogs"]])
def test_base64_holds_the_same_floats(engine: EmbedEngine, given: str | list[str]) -> None:
    bare, asked, packed = run(
        engine,
        given,
        {"input": given, "encoding_format": "float", "model": "whatever", "user": "me"},
        {"input": given, "encoding_format": "base64", "dimensions": 384},
    )
    assert np.abs(vectors(bare) - vectors(asked)).max() < ROUNDING
    data = answer(packed)["data"]
    unpacked = np.array([np.frombuffer(b64decode(one["embedding"]), "<f4") for one in data])
    assert np.abs(vectors(bare) - unpacked).max() < ROUNDING
    assert answer(packed)["usage"] == answer(bare)["usage"]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (5, "int"),
        (None, "null"),
        ([], "no text"),
        ({"input": []}, "no text"),
        (["a", 5], "$[1]"),
        ([["a"]], "$[0]"),
        ({"text": "a"}, "input"),
        ({"input": [1, 2, 3]}, "$.input[0]"),
        ({"input": "a", "encoding_format": "int8"}, "int8"),
        ({"input": "a", "dimensions": 256}, "384"),
        (b"", ""),
        (b"no JSON", ""),
        (b'"a" "b"', ""),
        (b'"\xff"', "UTF-8"),
        (b'"\\ud800"', ""),
        (b"[" * 20_000 + b"]" * 20_000, ""),
        (b'{"input": "a", "x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}", "nested too deeply"),
    ],
)
def test_a_wrong_input_fails_alone_and_is_told_what_is_right(
    engine: EmbedEngine, body: Any, word: str
) -> None:
    before, wrong, after = run(engine, "a cat", body, ["a dog"])
    assert (wrong.end, wrong.reason) == (End.FAILED, "engine_refused")
    assert word in wrong.detail
    assert "array of strings" in wrong.detail
    assert wrong.usage == Usage()
    assert len(vectors(before)) == len(vectors(after)) == 1


def test_a_batch_of_nothing_right_and_an_empty_one_end(engine: EmbedEngine) -> None:
    assert [outcome.reason for outcome in run(engine, 1, 2)] == ["engine_refused"] * 2
    assert list(run(engine)) == []


def test_who_is_cancelled_beforehand_costs_nothing(engine: EmbedEngine) -> None:
    first, gone, last = engine.run(batch("a cat", ["a"] * 50, "a dog"), lambda index: index == 1)
    assert (gone.end, gone.reason, gone.usage) == (End.CANCELLED, "cancelled", Usage())
    assert len(vectors(first)) == len(vectors(last)) == 1


def after(asks: int) -> Callable[[int], bool]:
    """Cancelled from the given ask on."""
    asked = [0]

    def cancelled(index: int) -> bool:
        asked[0] += 1
        return asked[0] > asks

    return cancelled


def test_a_cancel_is_heard_between_requests(
    engine: EmbedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is cancelled while the others become tokens is not looked at itself."""
    seen: list[str] = []
    of = engine._pieces.of

    def noted(text: str) -> tuple[list[int], bool]:
        seen.append(text)
        return of(text)

    monkeypatch.setattr(engine._pieces, "of", noted)
    _, gone = engine.run(batch("a cat", ["a dog"] * 9), lambda index: index == 1)
    assert gone.end is End.CANCELLED
    assert seen == ["a cat"]


def test_a_very_long_text_costs_what_is_charged(
    engine: EmbedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 400,000 marks about as many are read as become tokens."""
    read: list[int] = []
    whole = engine._pieces._certain

    def counted(beginning: str) -> list[int] | None:
        read.append(len(beginning))
        return whole(beginning)

    monkeypatch.setattr(engine._pieces, "_certain", counted)
    (outcome,) = run(engine, "!" * 400_000)
    assert outcome.usage == Usage(input_tokens=TOKENS_MAX)
    assert answer(outcome)["truncated"] == 1
    assert read == [READ_CHARS]


def test_no_thread_is_started_beyond_those_that_were_asked_for() -> None:
    """In a process of its own: a tokenizer's threads, once started, stay."""
    said = subprocess.run(
        [sys.executable, "-c", _THREADS],
        cwd=Path(__file__).parents[2],
        env={k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    before, after = map(int, said.split())
    assert after - before <= 1


_THREADS = """
import os
from fairlane.models import folder
from workers.engine import EngineBatch, EngineRequest
from workers.engines.embed import EmbedEngine

engine = EmbedEngine(folder(), threads=1)
before = len(os.listdir("/proc/self/task"))
texts = EngineRequest(1, "id", "acme", "embed", b'["a cat", "a dog", "a mouse"]')
engine.run(EngineBatch(1, (texts, texts)), lambda index: False)
print(before, len(os.listdir("/proc/self/task")))
"""


def test_a_cancel_is_heard_between_rows(engine: EmbedEngine) -> None:
    long = "a word " * 400
    (outcome,) = engine.run(batch([long] * 6), after(3))
    assert outcome.end is End.CANCELLED
    assert outcome.usage == Usage(input_tokens=2 * TOKENS_MAX)


def test_a_cancel_after_the_last_row_comes_too_late(engine: EmbedEngine) -> None:
    (outcome,) = engine.run(batch(["a", "b"]), after(3))
    assert len(vectors(outcome)) == 2


def test_a_missing_file_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.safetensors.*make models"):
        EmbedEngine(tmp_path)


def test_other_weights_are_refused(tmp_path: Path) -> None:
    for file in FILES:
        shutil.copy(folder() / file.name, tmp_path)
    with (tmp_path / WEIGHTS.name).open("r+b") as weights:
        weights.seek(-1, 2)
        weights.write(b"\x01")
    with pytest.raises(ModelError, match=rf"sha256 is [0-9a-f]+, .* has {WEIGHTS.sha256}"):
        EmbedEngine(tmp_path)
