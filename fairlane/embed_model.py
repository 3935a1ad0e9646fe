"""Which model answers: asked before the first row, and not waited for in silence."""

import asyncio
from collections.abc import Iterator
from typing import Any

from fairlane.client import AsyncClient
from fairlane.client_values import ClientError, Submission
from fairlane.embed_groups import AnswerError, read_answer
from fairlane.embed_ledger import Model
from fairlane.embed_parts import Doors, Show, Wishes
from fairlane.embed_source import Source
from fairlane.errors import FairlaneError

#: What the model is asked for to know it.
PROBE = "fairlane"
#: Waiting is told after so long, and again each time this has passed.
TELL_S, TELL_AGAIN_S = 5.0, 60.0


async def ask_model(doors: Doors, source: Source, wishes: Wishes, show: Show) -> Model:
    """The model behind an endpoint.

    Raises FairlaneError: it gives no vectors, there is no way to it, or the deployment failed.
    """
    client = doors.probe(_tenants(source))
    asked = asyncio.create_task(_ask(client, wishes))
    failed = asyncio.create_task(doors.failed())
    try:
        pause_s = TELL_S
        while not await _is_over({asked, failed}, pause_s):
            show.say(
                f"waiting for the model at {doors.where}: endpoint {wishes.endpoint!r} has not "
                "answered yet; does a worker of its pool run?"
            )
            pause_s = TELL_AGAIN_S
        if not asked.done():
            await failed
            raise FairlaneError(f"the deployment stopped before the model answered: {doors.where}")
        return await asked
    finally:
        for task in (asked, failed):
            task.cancel()
        await asyncio.gather(asked, failed, return_exceptions=True)


async def _is_over(tasks: set[asyncio.Task[Any]], pause_s: float) -> bool:
    """Whether one of them ended within the pause."""
    done, _ = await asyncio.wait(tasks, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)


async def _ask(client: AsyncClient, wishes: Wishes) -> Model:
    submission = Submission(
        wishes.endpoint,
        {"input": [PROBE], "encoding_format": "base64"},
        priority=wishes.priority,
        tier=wishes.tier,
    )
    try:
        accepted = await client.submit(submission)
        outcome = (await client.wait(accepted.id)).raise_for_state()
        return read_answer(outcome, 1).model
    except (ClientError, AnswerError) as error:
        raise FairlaneError(f"endpoint {wishes.endpoint!r} gives no vectors: {error}") from error


def _tenants(source: Source) -> Iterator[str]:
    return (row.tenant for row in source.rows() if not row.reason)
