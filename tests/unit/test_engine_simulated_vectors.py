"""The simulated engine as a model of embeddings: the real wire shape, one vector a text."""

import json
import math
import struct
from base64 import b64decode
from typing import Any

import pytest

from schemas.records import End
from workers.engine import EngineBatch, EngineOutcome, EngineRequest
from workers.engines.simulated import SimulatedEngine, SimulatedSettings


def run(asked: Any, dimensions: int = 12, seed: int = 0) -> EngineOutcome:
    settings = SimulatedSettings(fixed_ms=0, per_token_us=0, dimensions=dimensions, seed=seed)
    request = EngineRequest(1, "id", "acme", "embed", json.dumps(asked).encode())
    (outcome,) = SimulatedEngine(settings).run(EngineBatch(1, (request,)), lambda _: False)
    return outcome


def answer(asked: Any, dimensions: int = 12, seed: int = 0) -> Any:
    outcome = run(asked, dimensions, seed)
    assert outcome.end is End.SUCCEEDED, outcome.detail
    return json.loads(outcome.output)


def vectors(asked: Any, dimensions: int = 12) -> list[list[float]]:
    return [item["embedding"] for item in answer(asked, dimensions)["data"]]


@pytest.mark.parametrize("dimensions", [1, 12, 384])
def test_vectors_have_the_dimensions_and_unit_length(dimensions: int) -> None:
    (vector,) = vectors("some text", dimensions)
    assert len(vector) == dimensions
    assert math.isclose(math.hypot(*vector), 1.0, rel_tol=1e-6)


def test_a_text_is_one_vector_wherever_it_stands_and_another_text_another() -> None:
    assert vectors("b") == [vectors(["a", "b"])[1]]
    assert vectors({"input": "b"}) == vectors(["b"])
    assert vectors("a") != vectors("b")


def test_base64_is_the_same_numbers() -> None:
    found = answer({"input": ["grün"], "encoding_format": "base64"})
    packed = b64decode(found["data"][0]["embedding"])
    assert list(struct.unpack("<12f", packed)) == vectors("grün")[0]


def test_an_answer_has_the_shape_of_a_real_one_and_names_its_model() -> None:
    found = answer(["abcd", "efgh"])
    assert (found["object"], found["model"]) == ("list", "simulated")
    assert [item["index"] for item in found["data"]] == [0, 1]
    assert found["usage"] == {"prompt_tokens": 2, "total_tokens": 2}
    assert found["model_sha256"] == answer("x")["model_sha256"]
    assert found["model_sha256"] != answer("x", seed=1)["model_sha256"]


@pytest.mark.parametrize(
    "asked", [[], 5, {"texts": ["a"]}, [1], {"input": "a", "encoding_format": "x"}]
)
def test_what_is_no_text_is_refused_by_name(asked: Any) -> None:
    outcome = run(asked)
    assert (outcome.end, outcome.reason) == (End.FAILED, "engine_refused")
    assert outcome.detail
