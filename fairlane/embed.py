"""`fairlane embed SOURCE --out DEST`: a corpus of texts in, vectors out.

Without --url everything runs in this process; with it the rows go to a deployment, each
tenant's with its own key. The run is the same (fairlane.embed_run): the client does not know
what is behind it.

Exit codes as `fairlane submit` has them: 0 all done, 1 some rows failed, 2 it can't begin, 3
not finished (run it again).
"""

import argparse
import asyncio
import os
import re
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

from fairlane import engines
from fairlane.client import KEY_VARIABLE
from fairlane.embed_doors import TENANT_DEFAULT, Here, There, tenant_keys
from fairlane.embed_groups import ROWS_MAX, ROWS_MAX_DEFAULT
from fairlane.embed_ledger import SHARD_ROWS, SHARD_ROWS_MAX, Ledger, LedgerError
from fairlane.embed_parts import Show, StopRunError, Tally, Wishes
from fairlane.embed_run import FAILED_FILE, Run
from fairlane.embed_show import PlainShow, TerminalShow
from fairlane.embed_source import FORMATS, Columns, Source, open_source, tenants_of
from fairlane.embedded import Embedded, one_endpoint
from fairlane.errors import FairlaneError
from fairlane.submit import EXIT_DONE, EXIT_SOME_FAILED, EXIT_UNFINISHED
from schemas.front import INLINE_BYTES_MAX
from schemas.policy import NAME_PATTERN
from schemas.policy_check import BATCH_REQUESTS_MAX
from schemas.records import PRIORITY_MAX

#: Requests under way: enough to keep the engines of a machine busy.
OUTSTANDING_DEFAULT = 64
OUTSTANDING_MAX = 1_000
#: Tenants of an embedded run: they become a policy, which is one record.
TENANTS_MAX = 1_000
#: Results of an embedded run that ended and were not asked for yet.
INDEX_BYTES = 16 << 20
#: Batches that run at once: one more than the engine works on, so that it never waits.
SLOTS = 2


def main(arguments: list[str]) -> int:
    """Parse the arguments and embed; returns the exit code.

    Raises FairlaneError for what the user can mend, SystemExit on wrong arguments.
    """
    given = parser().parse_args(arguments)
    try:
        return asyncio.run(_embed(given))
    except KeyboardInterrupt:
        print("stopped; run the same command again to go on", file=sys.stderr)
        return EXIT_UNFINISHED
    except FairlaneError:
        raise  # it can't begin
    except Exception:  # noqa: BLE001 - what nobody thought of is not "some rows failed"
        traceback.print_exc()
        print("not finished; run the same command again to go on", file=sys.stderr)
        return EXIT_UNFINISHED


def parser() -> argparse.ArgumentParser:
    """Parser of the command."""
    made = argparse.ArgumentParser(
        prog="fairlane embed",
        allow_abbrev=False,
        description="Embed a corpus; run it again to go on after any stop, or after a change.",
    )
    made.add_argument("source", type=Path, help="JSON lines, text (a line a row) or Parquet")
    made.add_argument("--out", type=Path, required=True, help="folder of the shards")
    made.add_argument("--format", choices=FORMATS, help="of SOURCE (default: by its name)")
    made.add_argument("--id-column", help='default: "id" where there is one, else the row')
    made.add_argument("--text-column", default=Columns().text, help="default: text")
    made.add_argument("--tenant-column", help="default: all rows are of one tenant")
    made.add_argument("--endpoint", default="embed", help="the model (default: embed)")
    made.add_argument(
        "--outstanding", type=_outstanding, default=OUTSTANDING_DEFAULT, help="requests under way"
    )
    made.add_argument(
        "--rows-per-request", type=_rows, default=0, help="default: as many as fit well, up to 32"
    )
    made.add_argument(
        "--shard-rows", type=_shard_rows, default=SHARD_ROWS, help="rows of a file (default: 10000)"
    )
    made.add_argument(
        "--prune", action="store_true", help="drop rows that left SOURCE (default: keep them)"
    )
    real = made.add_argument_group("with a deployment")
    real.add_argument("--url", help="address of an ingress (default: run everything here)")
    real.add_argument("--key", help=f"API key (default: {KEY_VARIABLE})")
    real.add_argument(
        "--tenant-key",
        action="append",
        default=[],
        metavar="NAME=KEY",
        help=f"key of a tenant of --tenant-column (default: {KEY_VARIABLE}_<NAME>)",
    )
    real.add_argument("--tier", help="default: the tenant's first")
    real.add_argument("--priority", type=_priority, help="0, the most urgent, to 999")
    here = made.add_argument_group("without one")
    here.add_argument(
        "--batch-requests", type=_outstanding, default=8, help="requests in a batch of the engine"
    )
    engines.add_options(made)
    if "embed" in engines.NAMES:
        made.set_defaults(engine="embed")
    return made


async def _embed(given: argparse.Namespace) -> int:
    columns = Columns(given.id_column, given.text_column, given.tenant_column)
    source = open_source(given.source, given.format, columns)
    from fairlane.embed_sink import Sink  # needs what may not be installed

    has_tenant = given.tenant_column is not None
    wishes = Wishes(
        given.endpoint,
        given.outstanding,
        given.rows_per_request,
        given.tier,
        given.priority,
        given.prune,
    )
    with _show(given.source.name) as show:
        async with _doors(given, source) as doors:
            with closing(Ledger(given.out)) as ledger:
                sink = Sink(ledger, has_tenant=has_tenant, shard_rows=given.shard_rows)
                run = Run(source, ledger, sink, doors, wishes, show)
                return await _run(run, show, given.out, has_tenant=has_tenant)


async def _run(run: Run, show: Show, out: Path, *, has_tenant: bool) -> int:
    tally = run.tally
    try:
        await run.go(has_tenant=has_tenant)
    except (StopRunError, LedgerError, OSError) as error:  # before the first row or later
        show.say(f"{error}\n{tally.embedded:,} rows were embedded: run it again to go on")
        return EXIT_UNFINISHED
    finally:
        _tell_cut(tally, show)
    facts = [f"{tally.embedded:,} embedded", f"{tally.unchanged:,} unchanged"]
    facts += [f"{tally.pruned:,} pruned"] if tally.pruned else []
    if tally.failed:
        show.say(", ".join([*facts, f"{tally.failed:,} failed: see {out / FAILED_FILE}"]))
        return EXIT_SOME_FAILED
    show.say(", ".join(facts))
    return EXIT_DONE


def _tell_cut(tally: Tally, show: Show) -> None:
    if tally.cut:
        texts = "1 text was" if tally.cut == 1 else f"{tally.cut:,} texts were"
        show.say(f"{texts} longer than the model reads and cut: the vectors are of what it read")


def _show(name: str) -> TerminalShow | PlainShow:
    from rich.console import Console

    if sys.stderr.isatty():
        return TerminalShow(Console(stderr=True), name)
    return PlainShow(lambda line: print(line, file=sys.stderr, flush=True))


# --- what is behind


@asynccontextmanager
async def _doors(given: argparse.Namespace, source: Source) -> AsyncIterator[There | Here]:
    async with AsyncExitStack() as stack:
        if given.url:
            has_tenant = given.tenant_column is not None
            keys = tenant_keys(given.tenant_key, os.environ) if has_tenant else None
            doors: There | Here = There(given.url, given.key, keys)
        else:
            deployment = await stack.enter_async_context(_deployment(given, source))
            doors = Here(deployment, has_tenant=given.tenant_column is not None)
        stack.push_async_callback(doors.aclose)
        yield doors


def _deployment(given: argparse.Namespace, source: Source) -> Embedded:
    if given.key or given.tenant_key or given.tier:
        raise FairlaneError("--key, --tenant-key and --tier need --url")
    if given.engine == "simulated" and not given.dimensions:
        raise FairlaneError("--engine simulated gives vectors with --dimensions: 384, say")
    engine = engines.make(given)
    tenants = tenants_of(source, TENANTS_MAX) if given.tenant_column is not None else []
    tenants = [name for name in tenants if re.fullmatch(NAME_PATTERN, name)]  # others fail by row
    rows = given.batch_requests * (given.rows_per_request or ROWS_MAX_DEFAULT)
    policy = one_endpoint(
        given.endpoint,
        tenants or [TENANT_DEFAULT],
        batch_requests=min(rows, BATCH_REQUESTS_MAX),  # there each row counts
    )
    index_bytes = max(INDEX_BYTES, 4 * given.outstanding * INLINE_BYTES_MAX)
    return Embedded(policy, {given.endpoint: engine}, slots=SLOTS, index_bytes=index_bytes)


# --- types of options


def _outstanding(text: str) -> int:
    return _number(text, 1, OUTSTANDING_MAX)


def _rows(text: str) -> int:
    return _number(text, 0, ROWS_MAX)


def _shard_rows(text: str) -> int:
    return _number(text, 1, SHARD_ROWS_MAX)


def _priority(text: str) -> int:
    return _number(text, 0, PRIORITY_MAX)


def _number(text: str, least: int, most: int) -> int:
    if text.isdecimal() and least <= int(text) <= most:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no integer in {least}..{most}")
