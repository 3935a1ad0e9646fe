"""Texts into vectors through the Python client: JSON lines in, JSON lines out.

    python examples/embed_corpus.py corpus.jsonl vectors.jsonl       # everything in this process
    python examples/embed_corpus.py corpus.jsonl vectors.jsonl URL   # key: FAIRLANE_KEY

A line of the corpus is `{"id": ..., "text": ...}`. At most 64 requests are under way, so a
corpus of any size fits into memory. `fairlane embed` also resumes, skips and shards.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import islice
from pathlib import Path
from typing import TextIO

from fairlane.client import AsyncClient
from fairlane.client_values import RefusedError, Submission
from fairlane.embedded import Embedded, one_endpoint
from workers.engines.simulated import SimulatedEngine, SimulatedSettings

ROWS = 16


def submissions(corpus: TextIO) -> Iterator[Submission]:
    """Requests of 16 rows each; `tag` keeps their ids."""
    rows = map(json.loads, corpus)
    while group := list(islice(rows, ROWS)):
        texts = [row["text"] for row in group]
        yield Submission("embed", texts, tag=[row["id"] for row in group])


async def embed(corpus: TextIO, out: TextIO, url: str = "") -> int:
    """Embed a corpus; returns how many rows failed."""
    failed = 0
    async with AsyncExitStack() as stack:
        if url:
            client = AsyncClient(url)
        else:
            engine = SimulatedEngine(SimulatedSettings(fixed_ms=5, dimensions=384))
            here = Embedded(one_endpoint("embed", ["me"]), {"embed": engine})
            client = (await stack.enter_async_context(here)).client("me")
        await stack.enter_async_context(client)
        async for asked, ended in client.run_many(submissions(corpus), outstanding=64):
            ids = asked.tag
            assert isinstance(ids, list)
            if isinstance(ended, RefusedError) or not ended.is_success:
                print(f"{ids[0]}..{ids[-1]}: {ended.reason}: {ended.detail}", file=sys.stderr)
                failed += len(ids)
                continue
            out.writelines(
                json.dumps({"id": row_id, "vector": item["embedding"]}) + "\n"
                for row_id, item in zip(ids, ended.output["data"], strict=True)
            )
    return failed


if __name__ == "__main__":
    if len(sys.argv) not in {3, 4}:
        sys.exit(__doc__)
    source, target, *rest = sys.argv[1:]
    with Path(source).open(encoding="utf-8") as corpus, Path(target).open("w") as out:
        sys.exit(1 if asyncio.run(embed(corpus, out, *rest)) else 0)
