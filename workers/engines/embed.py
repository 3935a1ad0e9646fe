"""Texts to vectors: all-MiniLM-L6-v2 on this machine's processors, without a GPU.

A request's body is a JSON string, an array of strings, or an object
`{"input": string or array, "encoding_format": "float" | "base64"}`; other members of the
object are ignored, as clients of other servers send some. The answer has the shape of
OpenAI's embeddings, and says besides which weights made it (`model_sha256`) and how many
texts were longer than the model reads (`truncated`). An empty string is a text of two
tokens, an empty array is refused. Base64 holds little-endian float32.

How a batch runs. Texts are sorted by length and laid into rows of about ROW_TOKENS tokens
(see minilm.py: nothing is padded); each row is one run of the graph on one thread, and the
threads are shared by all slots. Measured on two cores, tokens a second of the processor:
2,700 so, 2,300 a text at a time, 2,100 with two threads inside each run, which wait for
each other a hundred times a run. A request's texts become tokens on these threads, too.
Before each request and each row it is asked who is cancelled.

A text's vector does not depend on the others of its batch beyond rounding (1e-7).
"""

import os
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
import onnxruntime
import orjson
from numpy.typing import NDArray
from safetensors.numpy import load

from schemas.reasons import Reason
from schemas.records import End, Usage
from workers.engine import EngineBatch, EngineOutcome, EngineRequest, cancelled, failed
from workers.engines import minilm, weights
from workers.engines.wordpieces import WordPieces

#: Longest text, in tokens, the two at its ends included; what is longer is cut. It is the
#: `max_seq_length` of the model's sentence_bert_config.json: it was trained on no longer ones.
TOKENS_MAX = 256
#: Tokens of a run: fewer leave the matrices too thin (one text of 8 tokens: half the speed),
#: more gain nothing, cost attention, and let a cancel wait.
ROW_TOKENS = 128

_WANTED = (
    'send a JSON string, an array of strings, or {"input": string or array of strings, '
    '"encoding_format": "float" or "base64"}'
)


_In = TypeVar("_In")
_Out = TypeVar("_Out")


class _Asked(msgspec.Struct):
    input: str | list[str]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


_asked = msgspec.json.Decoder(str | list[str] | _Asked)


class _Text(NamedTuple):
    """A text of a batch: its request's index, where it stands in it, its tokens."""

    request: int
    place: int
    ids: list[int]
    is_cut: bool


class _Job(NamedTuple):
    """A request that is fit to run."""

    texts: list[str]
    is_base64: bool


class EmbedEngine:
    """An `Engine`; safe to use from several threads at once."""

    def __init__(self, folder: Path, threads: int | None = None) -> None:
        """Load the model from a folder and run it once.

        `threads` run rows side by side (default: the processors that this process may
        use). Raises `weights.ModelError` when a file is missing or not the model's.
        """
        content = weights.read(folder, weights.WEIGHTS)
        self._pieces = WordPieces(weights.read(folder, weights.TOKENIZER), TOKENS_MAX)
        self._session = _session(minilm.build(load(content)).SerializeToString())
        self._pool = ThreadPoolExecutor(threads or len(os.sched_getaffinity(0)), "embed")
        self._vectors([[0] * ROW_TOKENS])  # allocates what every run needs

    def run(self, batch: EngineBatch, cancelled: Callable[[int], bool]) -> Sequence[EngineOutcome]:
        """Embed every text of the batch; a wrong input fails its own request alone."""
        jobs = [_job(request) for request in batch.requests]
        texts = self._tokenized(jobs, cancelled)

        def embed(row: list[_Text]) -> list[tuple[_Text, NDArray[np.float32]]]:
            wanted = [text for text in row if not cancelled(text.request)]
            return list(zip(wanted, self._vectors([text.ids for text in wanted]), strict=True))

        done = chain.from_iterable(self._abreast(embed, _rows(texts)))
        ran: list[list[tuple[_Text, NDArray[np.float32]]]] = [[] for _ in jobs]
        for text, vector in done:
            ran[text.request].append((text, vector))
        return [
            job if isinstance(job, EngineOutcome) else _outcome(job, ran[index])
            for index, job in enumerate(jobs)
        ]

    def _tokenized(
        self, jobs: Sequence[_Job | EngineOutcome], cancelled: Callable[[int], bool]
    ) -> list[_Text]:
        def tokenize(index: int) -> list[_Text]:
            job = jobs[index]
            if isinstance(job, EngineOutcome) or cancelled(index):
                return []
            made = map(self._pieces.of, job.texts)
            return [_Text(index, place, ids, is_cut) for place, (ids, is_cut) in enumerate(made)]

        return list(chain.from_iterable(self._abreast(tokenize, range(len(jobs)))))

    def _abreast(self, do: Callable[[_In], _Out], items: Iterable[_In]) -> list[_Out]:
        """Do one thing with all items on the threads; what is left when one fails is dropped."""
        running = [self._pool.submit(do, item) for item in items]
        try:
            return [one.result() for one in running]
        finally:
            for one in running:
                one.cancel()

    def _vectors(self, texts: list[list[int]]) -> NDArray[np.float32]:
        """Run texts, tokens each, as one row: [texts, 384]."""
        if not texts:
            return np.empty((0, minilm.WIDTH), np.float32)
        lengths = [len(ids) for ids in texts]
        row = {
            minilm.IDS: np.fromiter(chain.from_iterable(texts), np.int64, sum(lengths)),
            minilm.PLACES: np.concatenate([np.arange(length) for length in lengths]),
            minilm.TEXTS: np.repeat(np.arange(len(texts)), lengths),
        }
        (vectors,) = self._session.run((minilm.VECTORS,), row)
        return vectors  # type: ignore[no-any-return] # the runtime has no types


def _session(model: bytes) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # it keeps a plan for each length of a row ever seen
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _job(request: EngineRequest) -> _Job | EngineOutcome:
    """Read a request's body; what is wrong with it is its outcome."""
    try:
        asked = _asked.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _refused(str(error))
    except RecursionError:
        return _refused("the body is nested too deeply")
    if not isinstance(asked, _Asked):
        asked = _Asked(asked)
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    if not texts:
        return _refused("no text in the array")
    if asked.dimensions not in {None, minilm.WIDTH}:
        return _refused(f"vectors of {weights.MODEL} have {minilm.WIDTH} dimensions and no others")
    return _Job(texts, asked.encoding_format == "base64")


def _refused(fault: str) -> EngineOutcome:
    return failed(Reason.ENGINE_REFUSED, f"{fault}; {_WANTED}")


def _rows(texts: list[_Text]) -> list[list[_Text]]:
    """Texts of like length together, the longest first, to at most ROW_TOKENS where they fit."""
    rows: list[list[_Text]] = []
    room = 0
    for text in sorted(texts, key=lambda text: -len(text.ids)):
        if len(text.ids) > room:
            rows.append([])
            room = ROW_TOKENS
        rows[-1].append(text)
        room -= len(text.ids)
    return rows


def _outcome(job: _Job, ran: list[tuple[_Text, NDArray[np.float32]]]) -> EngineOutcome:
    tokens = sum(len(text.ids) for text, _ in ran)
    usage = Usage(input_tokens=tokens)
    if len(ran) < len(job.texts):
        return cancelled(usage)
    output = {
        "object": "list",
        "model": weights.MODEL,
        "model_sha256": weights.WEIGHTS.sha256,
        "data": [
            {
                "object": "embedding",
                "index": text.place,
                "embedding": b64encode(vector.astype("<f4").tobytes()).decode()
                if job.is_base64
                else vector,
            }
            for text, vector in sorted(ran, key=lambda pair: pair[0].place)
        ],
        "truncated": sum(text.is_cut for text, _ in ran),
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return EngineOutcome(
        End.SUCCEEDED, orjson.dumps(output, option=orjson.OPT_SERIALIZE_NUMPY), usage
    )
