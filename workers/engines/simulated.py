"""An engine that takes time and makes something up: no model, no randomness, no network.

Time of a batch: `fixed_ms + per_token_us * tokens / 1000`, where tokens is the sum over
the batch's requests, or the largest of them (an engine that runs them abreast).

Tokens of a request: input = ceil(bytes of the body / 4). Output = the body's own integer
`output_tokens` when it is a JSON object that has one (traces say what really happened);
otherwise drawn from seed and id, evenly in 1..(tokens the scheduler was told - input),
and 0 when that leaves nothing. So a request costs the same on every attempt and machine.

With `dimensions` it answers embeddings instead (simulated_vectors) and writes no token.
"""

import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from schemas.reasons import Reason
from schemas.records import End, Usage
from workers.engine import EngineBatch, EngineOutcome, EngineRequest, cancelled, failed
from workers.engines.simulated_vectors import InputError, Vectors

#: A body's own `output_tokens` is believed up to here: no model writes more.
OUTPUT_TOKENS_MAX = 1_000_000
#: How often a run looks whether anybody still wants it, seconds.
LOOK_S = 0.05

_BYTES_PER_TOKEN = 4


class _Said(msgspec.Struct):
    output_tokens: int | None = None


_said = msgspec.json.Decoder(_Said)


class Together(StrEnum):
    """How the requests of a batch share the engine."""

    SUM = "sum"  # one after the other
    MAX = "max"  # abreast: the longest decides


class SimulatedSettings(NamedTuple):
    """Times in milliseconds and microseconds; `seed` draws the output lengths.

    `dimensions` above 0: answers are embeddings of so many components.
    """

    fixed_ms: int = 20
    per_token_us: int = 50
    together: Together = Together.SUM
    seed: int = 0
    dimensions: int = 0


class SimulatedEngine:
    """Both an `Engine` and a `VirtualEngine`; `wait` sleeps for so many seconds."""

    def __init__(
        self,
        settings: SimulatedSettings | None = None,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """Keep the settings (default: `SimulatedSettings()`); nothing is started."""
        self._settings = settings or SimulatedSettings()
        self._wait = wait
        dimensions = self._settings.dimensions
        self._vectors = Vectors(dimensions, repr(self._settings)) if dimensions else None

    def run(self, batch: EngineBatch, cancelled: Callable[[int], bool]) -> Sequence[EngineOutcome]:
        """Wait as long as the batch takes, or until nobody wants any of it; then answer."""
        left_s = self.service_ms(batch) / 1000
        everybody = range(len(batch.requests))
        while left_s > 0 and not all(cancelled(index) for index in everybody):
            step_s = min(left_s, LOOK_S)
            self._wait(step_s)
            left_s -= step_s
        return self.answer(batch, cancelled)

    def service_ms(self, batch: EngineBatch) -> int:
        """How long the batch takes, in milliseconds."""
        tokens = [sum(self.tokens(request)) for request in batch.requests]
        shared = max(tokens) if self._settings.together is Together.MAX else sum(tokens)
        return self._settings.fixed_ms + self._settings.per_token_us * shared // 1000

    def answer(
        self, batch: EngineBatch, cancelled: Callable[[int], bool]
    ) -> Sequence[EngineOutcome]:
        """Make the outcomes up, one per request; takes no time."""
        service_ms = self.service_ms(batch)
        return [
            self._outcome(request, service_ms, is_cancelled=cancelled(index))
            for index, request in enumerate(batch.requests)
        ]

    def tokens(self, request: EngineRequest) -> tuple[int, int]:
        """Input and output tokens of a request."""
        input_tokens = -(-len(request.body) // _BYTES_PER_TOKEN)
        if self._vectors is not None:
            return input_tokens, 0
        said = _output_said(request.body)
        if said is not None:
            return input_tokens, said
        most = request.tokens - input_tokens
        if most <= 0:
            return input_tokens, 0
        seeded = f"{self._settings.seed}:{request.id}".encode()
        drawn = int.from_bytes(blake2b(seeded, digest_size=8).digest())
        return input_tokens, 1 + drawn % most

    def _outcome(
        self, request: EngineRequest, service_ms: int, *, is_cancelled: bool
    ) -> EngineOutcome:
        input_tokens, output_tokens = self.tokens(request)
        if is_cancelled:
            return cancelled(Usage(input_tokens=input_tokens, service_ms=service_ms))
        usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens, service_ms=service_ms)
        if self._vectors is not None:
            try:
                return EngineOutcome(End.SUCCEEDED, self._vectors.answer(request.body), usage)
            except InputError as error:
                return failed(Reason.ENGINE_REFUSED, str(error))
        output = msgspec.json.encode(
            {
                "id": request.id,
                "model": "simulated",
                "input_tokens": input_tokens,
                "output_tokens": output_tokens,
            }
        )
        return EngineOutcome(End.SUCCEEDED, output, usage)


def _output_said(body: bytes) -> int | None:
    """Read the body's own `output_tokens`; None when it says nothing believable."""
    if b'"output_tokens"' not in body:
        return None
    try:
        said = _said.decode(body).output_tokens
    except msgspec.DecodeError:
        return None
    if said is None or not 0 <= said <= OUTPUT_TOKENS_MAX:
        return None
    return said
