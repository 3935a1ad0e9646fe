"""`fairlane submit FILE.jsonl`: many requests, paced by the service, resumed after any stop.

Each line is the body of one POST, optionally with an "id" that becomes its Idempotency-Key
(else: the file's digest and the line's number). So a line that is sent twice is one request,
and a run that was killed is continued by running the same command again.

Back-pressure: 429 and 503 pause all senders until Retry-After, with jitter on top, so that
they don't come back all at once. Memory is bounded by the lines under way.

Exit codes: 0 all done, 1 some lines failed, 2 it can't begin, 3 not finished (run it again).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import httpx
import msgspec
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from fairlane.client import DEFAULT_URL, KEY_VARIABLE
from fairlane.client_calls import ROUTE
from fairlane.errors import FairlaneError
from fairlane.patience import (
    GivenUpError,
    Pacer,
    Tries,
    backoff_s,
    document_of,
    patiently,
)
from fairlane.submit_files import Ledger, Line, Sent, read_digest, read_lines

EXIT_DONE = 0
EXIT_SOME_FAILED = 1
EXIT_UNFINISHED = 3

#: Connections at once; an ingress is not made faster by more.
CONCURRENCY_DEFAULT = 32
CONCURRENCY_MAX = 256
#: Accepted lines whose result is awaited: 100 bytes each.
OUTSTANDING_MAX = 20_000
#: One long poll; short, so that a request that waits long holds up no other's result.
POLL_S = 5
#: Longer than a long poll and a publish in doubt together.
HTTP_TIMEOUT_S = 30.0
#: Failures of one line in a row (no answer, or 5xx) until the run stops, about five minutes.
TRIES_MAX = 15
#: A request that was accepted and can't be found: its index entry may be on its way, and comes
#: within minutes; looked for that often, each time after a longer pause.
MISSES_MAX = 10


class StopRunError(Exception):
    """The run can't go on; what is left is done by running it again."""


class FileRun:
    """One run over one file."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        ledger: Ledger,
        work: Iterator[Line | Sent],
        pacer: Pacer,
        tell: Callable[[int], None],
        *,
        has_results: bool,
    ) -> None:
        """`work` is lines to send and accepted ones to fetch; `tell` gets how many are done."""
        self._http, self._ledger, self._pacer, self._tell = http, ledger, pacer, tell
        self._has_results = has_results
        self._work = work
        self._known = ledger.sent | ledger.ended
        self._fetch: asyncio.Queue[tuple[Sent, int]] = asyncio.Queue()
        self._room = asyncio.Semaphore(OUTSTANDING_MAX)

    async def run(self, concurrency: int) -> None:
        """Send every line that is not sent and fetch what is asked for.

        Raises StopRunError when the service does not answer, or refuses the key.
        """
        fetchers = [
            asyncio.create_task(self._fetch_forever())
            for _ in range(concurrency if self._has_results else 0)
        ]
        senders = [asyncio.create_task(self._send_all()) for _ in range(concurrency)]
        everything = asyncio.create_task(self._until_done(senders))
        try:
            done, _ = await asyncio.wait(
                [everything, *fetchers], return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
        finally:
            tasks = [*fetchers, *senders, everything]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_done(self, senders: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(*senders)
        await self._fetch.join()

    async def _send_all(self) -> None:
        for work in self._work:  # all senders share the iterator
            if isinstance(work, Sent):
                await self._await_result(work)
            elif work.number in self._known:
                continue
            elif work.error:
                self._fail(work.number, {"error": f"line {work.number}: {work.error}"})
            else:
                await self._send(work)

    async def _send(self, line: Line) -> None:
        headers = {"Idempotency-Key": line.key, "Content-Type": "application/json"}
        answer = await self._patiently(
            lambda: self._http.post(ROUTE, content=line.body, headers=headers)
        )
        document = document_of(answer)
        if answer.status_code == httpx.codes.ACCEPTED:
            request_id = str(document["id"])
            self._ledger.accept(line.number, request_id)
            if self._has_results:
                await self._await_result(Sent(line.number, request_id))
            else:
                self._tell(1)
            return
        detail = document.get("detail") or f"HTTP {answer.status_code}"
        facts = {
            "error": f"line {line.number}: {detail}",
            "reason": document.get("reason", ""),
            "status": answer.status_code,
        }
        self._fail(line.number, facts)

    async def _await_result(self, sent: Sent) -> None:
        await self._room.acquire()
        self._fetch.put_nowait((sent, 0))

    async def _fetch_forever(self) -> None:
        while True:
            sent, misses = await self._fetch.get()
            if await self._fetched(sent, misses):
                self._room.release()
            self._fetch.task_done()

    async def _fetched(self, sent: Sent, misses: int) -> bool:
        """Ask once for a result; when it is not there, the line queues up again."""
        path = f"{ROUTE}/{sent.id}?wait={POLL_S}"
        answer = await self._patiently(lambda: self._http.get(path))
        if answer.status_code == httpx.codes.OK:
            document = msgspec.json.decode(answer.content, type=dict[str, msgspec.Raw])
            state = str(msgspec.json.decode(document["state"]))
            if state == "waiting":
                self._fetch.put_nowait((sent, 0))
                return False
            self._ledger.result(sent.number, document, state)
            self._tell(1)
            return True
        if answer.status_code == httpx.codes.NOT_FOUND:
            if misses + 1 >= MISSES_MAX:
                raise StopRunError(
                    f"line {sent.number}: {sent.id} is not found in {MISSES_MAX} tries: was it "
                    "sent with another tenant's key, or is it not indexed yet?"
                )
            await self._pacer.sleep(backoff_s(misses))
            self._fetch.put_nowait((sent, misses + 1))
            return False
        detail = document_of(answer).get("detail") or f"HTTP {answer.status_code}"
        self._fail(sent.number, {"error": f"line {sent.number}: {detail}", "id": sent.id})
        return True

    def _fail(self, number: int, facts: dict[str, Any]) -> None:
        self._ledger.fail(number, facts)
        self._tell(1)

    async def _patiently(self, call: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
        """Repeat a call until it has an answer that will stay the same."""
        try:
            answer = await patiently(call, self._pacer, Tries(TRIES_MAX))
        except GivenUpError as error:
            raise StopRunError(f"given up after {TRIES_MAX} tries: {error}") from error
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            raise StopRunError(f"the key is refused: {document_of(answer).get('detail')}")
        return answer


class _Rate(ProgressColumn):
    """Lines a second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.0f}/s" if task.speed else "-/s", style="progress.data.speed")


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )


async def _run(
    path: Path,
    http: httpx.AsyncClient,
    out: Path | None,
    concurrency: int,
    pacer: Pacer,
    console: Console,
) -> int:
    digest = read_digest(path)
    ledger = Ledger(path, digest, str(http.base_url), out)
    try:
        with (
            _progress(console) as progress,
            closing(ledger.unfetched()) as unfetched,
            closing(read_lines(path, digest.hex)) as lines,
        ):
            task = progress.add_task(path.name, total=digest.lines, completed=len(ledger.ended))
            submission = FileRun(
                http,
                ledger,
                chain(unfetched if out else (), lines),
                pacer,
                lambda count: progress.advance(task, count),
                has_results=out is not None,
            )
            await submission.run(concurrency)
    except StopRunError as error:
        left = digest.lines - len(ledger.ended)
        console.print(f"{error}\n{left} lines are left: run the same command again to go on")
        return EXIT_UNFINISHED
    finally:
        ledger.close()
    if ledger.failures:
        where = f"see {ledger.failed_path}" + (f" and {out}" if out else "")
        console.print(f"{ledger.failures} of {digest.lines} lines failed: {where}")
        return EXIT_SOME_FAILED
    return EXIT_DONE


async def submit_file(
    path: Path,
    url: str,
    key: str,
    *,
    out: Path | None = None,
    concurrency: int = CONCURRENCY_DEFAULT,
    transport: httpx.AsyncBaseTransport | None = None,
    pacer: Pacer | None = None,
    console: Console | None = None,
) -> int:
    """Submit the lines of a file and return the exit code.

    Args:
        path: the file, one POST body a line.
        url: the ingress, `http://host:port`.
        key: an API key of the tenant.
        out: where final states go, in the order in which requests end; None: don't wait.
        concurrency: connections at once.
        transport: another way than the network, for tests.
        pacer: likewise.
        console: where progress is shown; standard error unless told.

    Raises:
        FairlaneError: it can't begin; the message names the way out.
    """
    if not 1 <= concurrency <= CONCURRENCY_MAX:
        raise FairlaneError(f"--concurrency must be 1..{CONCURRENCY_MAX}")
    async with httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {key}"},
        timeout=HTTP_TIMEOUT_S,
        transport=transport,
        limits=httpx.Limits(max_connections=2 * concurrency),
    ) as http:
        shown = console or Console(stderr=True)
        return await _run(path, http, out, concurrency, pacer or Pacer(), shown)


def command(
    file: Annotated[Path, typer.Argument(help="One JSON object a line: the body of a POST.")],
    url: Annotated[str, typer.Option(help="Address of an ingress.")] = DEFAULT_URL,
    key: Annotated[
        str, typer.Option(envvar=KEY_VARIABLE, help="API key of the tenant.", show_envvar=True)
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Wait for the results and write them here.")
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Connections at once.")] = CONCURRENCY_DEFAULT,
) -> None:
    """Submit many requests from a file; run it again to go on after any stop."""
    if not key:
        raise FairlaneError(f"no API key: give --key or set {KEY_VARIABLE}")
    try:
        code = asyncio.run(submit_file(file, url, key, out=out, concurrency=concurrency))
    except KeyboardInterrupt:
        typer.echo("stopped; run the same command again to go on", err=True)
        code = EXIT_UNFINISHED
    raise typer.Exit(code)
