"""The synchronous client: several threads, broken-off loops, forks, interrupts, the exit."""

import asyncio
import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import httpx
import pytest

from fairlane import Accepted, Client, FairlaneError, Outcome, RefusedError, Submission
from fairlane.client_values import ClosedError
from tests.support.fake_service import Direct, FakeService, Taken

T = TypeVar("T")


def in_time(work: Callable[[], T]) -> T:
    """Do it in a thread that may hang without hanging the tests."""
    found: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again below
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "it hangs"
    for error in raised:
        raise error
    return found[0]


def client(service: FakeService, **options: Any) -> Client:
    return Client("http://door", "k", transport=Direct(service), **options)


def quick() -> FakeService:
    async def work(taken: Taken) -> None:
        await asyncio.sleep(0)
        service.end(taken)

    service = FakeService(work)
    return service


async def asyncio_loop(_: object) -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def endless() -> FakeService:
    async def work(_: Taken) -> None:
        await asyncio.Event().wait()

    return FakeService(work)


def test_calls_and_loops_are_those_of_the_asynchronous_client() -> None:
    with client(quick()) as opened:
        accepted = opened.submit("embed", {"a": 1})
        assert opened.wait(accepted.id, timeout_s=60).output == {"a": 1}
        assert opened.cancel(accepted.id) == "succeeded"
        with pytest.raises(RefusedError, match="not_found"):
            opened.cancel("req_none")
        many = [Submission("embed", n) for n in range(300)]
        verdicts = list(opened.submit_many(many, outstanding=70))
        assert [submission.input for submission, _ in verdicts] == list(range(300))
        assert all(isinstance(verdict, Accepted) for _, verdict in verdicts)
        outcomes = list(opened.run_many(iter(many), outstanding=70))
        assert {s.input: o.output for s, o in outcomes if isinstance(o, Outcome)} == {
            n: n for n in range(300)
        }


def test_the_source_is_read_in_the_callers_thread_and_no_further_than_there_is_room() -> None:
    pulled = 0

    def source() -> Iterator[Submission]:
        nonlocal pulled
        for n in range(500):
            assert threading.current_thread() is threading.main_thread()
            pulled += 1
            yield Submission("embed", n)

    with client(quick()) as opened:
        for ended, _ in enumerate(opened.run_many(source(), outstanding=40)):
            assert pulled - ended <= 40
        assert pulled == 500


def test_threads_share_one_client() -> None:
    service = quick()
    with client(service) as opened, ThreadPoolExecutor(8) as threads:

        def use(number: int) -> set[Any]:
            many = [Submission("embed", [number, n]) for n in range(50)]
            own = opened.wait(opened.submit("embed", number).id).output
            assert own == number
            pairs = opened.run_many(many, outstanding=9)
            return {tuple(o.output) for _, o in pairs if isinstance(o, Outcome)}

        for number, found in enumerate(threads.map(use, range(8))):
            assert found == {(number, n) for n in range(50)}
    assert len(service.taken) == 8 * 51


def test_a_loop_that_is_left_leaves_no_task_behind() -> None:
    with client(quick()) as opened:
        for _ in opened.run_many((Submission("embed", n) for n in range(1_000)), outstanding=20):
            break
        with pytest.raises(ZeroDivisionError):
            for _ in opened.run_many(Submission("embed", 1 // (50 - n)) for n in range(1_000)):
                pass

        async def others(_: object) -> int:
            own = asyncio.current_task()
            return len([t for t in asyncio.all_tasks() if "_live" not in repr(t) and t is not own])

        assert opened._running().call(others) == 0


def test_a_closed_client_says_so_also_to_who_waits() -> None:
    opened = client(endless())
    accepted = opened.submit("embed", 1)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            opened.wait(accepted.id)
        except FairlaneError as error:
            raised.append(error)

    def loop() -> None:
        try:
            list(opened.run_many([Submission("embed", 1)]))
        except FairlaneError as error:
            raised.append(error)

    threads = [threading.Thread(target=work) for work in (wait, loop)]
    for thread in threads:
        thread.start()
    opened._running().call(lambda _: asyncio.sleep(0.05))
    opened.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert [type(error) for error in raised] == [ClosedError, ClosedError]
    with pytest.raises(ClosedError, match="the client is closed"):
        opened.submit("embed", 1)
    opened.close()


def test_a_call_between_the_end_of_the_loop_and_its_close_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = client(quick())
    thread = opened._running()
    loop = thread.call(asyncio_loop)
    raised: list[BaseException] = []

    def call() -> None:
        try:
            thread.call(asyncio_loop)
        except FairlaneError as error:
            raised.append(error)

    caller = threading.Thread(target=call, daemon=True)

    def close() -> None:
        caller.start()
        while caller.is_alive() and not loop._ready:  # type: ignore[attr-defined]
            time.sleep(0.001)
        type(loop).close(loop)

    monkeypatch.setattr(loop, "close", close)
    opened.close()
    caller.join(30)
    assert not caller.is_alive()
    assert [type(error) for error in raised] == [ClosedError]


def test_what_is_left_of_a_loop_in_a_fork_is_closed_there() -> None:
    fork = multiprocessing.get_context("fork")
    with client(quick()) as opened:
        many = [Submission("embed", n) for n in range(50)]
        stream = opened.run_many(many, outstanding=5)
        next(stream)
        child = fork.Process(target=stream.close)
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert len(list(stream)) == 49


def test_the_key_of_the_environment_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    service = quick()
    monkeypatch.setenv("FAIRLANE_KEY", "at first")
    opened = Client("http://door", transport=Direct(service))
    monkeypatch.delenv("FAIRLANE_KEY")
    in_time(lambda: opened.submit("embed", 1))
    assert service.calls[0].headers["authorization"] == "Bearer at first"
    opened.close()


def test_a_loop_that_can_t_begin_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> asyncio.AbstractEventLoop:
        raise OSError("too many open files")

    with client(quick()) as opened:
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.events, "new_event_loop", fail)
            with pytest.raises(OSError, match="too many open files"):
                in_time(lambda: opened.submit("embed", 1))
        assert in_time(lambda: opened.submit("embed", 1)).id == "req_0"


def test_a_loop_over_a_client_that_nobody_else_holds_goes_on() -> None:
    def stream() -> Iterator[tuple[Submission, Outcome | RefusedError]]:
        return client(quick()).run_many([Submission("embed", n) for n in range(50)], outstanding=5)

    assert len(list(stream())) == 50


def test_a_loop_that_is_collected_on_the_clients_own_thread_is_left_without_waiting() -> None:
    opened = client(quick())
    streams = [opened.run_many([Submission("embed", n) for n in range(50)], outstanding=5)]
    next(streams[0])

    async def collect(_: object) -> None:
        streams.clear()

    in_time(lambda: opened._running().call(collect))

    async def others(_: object) -> int:
        await asyncio.sleep(0.01)
        return len(asyncio.all_tasks())

    assert in_time(lambda: opened._running().call(others)) == 2
    opened.close()


def test_a_slow_source_withholds_nothing() -> None:
    """Each submission is accepted before the next one is even asked for."""
    service = quick()

    def source() -> Iterator[Submission]:
        for n in range(5):
            until_s = time.monotonic() + 30
            while len(service.taken) < n and time.monotonic() < until_s:
                time.sleep(0.001)
            assert len(service.taken) == n
            yield Submission("embed", n)

    with client(service) as opened:
        assert len(list(opened.run_many(source()))) == 5


def test_an_interrupt_ends_the_call_on_the_loop_too() -> None:
    def interrupt(request: httpx.Request) -> httpx.Response:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        raise httpx.ConnectError("no answer", request=request)

    def handler(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        transport = httpx.MockTransport(interrupt)
        with Client("http://door", "k", transport=transport) as opened:
            with pytest.raises(KeyboardInterrupt):
                opened.submit("embed", 1)

            async def others(_: object) -> int:
                await asyncio.sleep(0.01)
                return len(asyncio.all_tasks())

            assert opened._running().call(others) == 2
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_fork_gets_a_loop_of_its_own() -> None:
    fork = multiprocessing.get_context("fork")
    found = fork.SimpleQueue()

    def use() -> None:
        threads, at_once = 8, threading.Barrier(8)

        def begin(_: int) -> str:
            at_once.wait()
            return opened.submit("embed", 2, idempotency_key="same").id

        with ThreadPoolExecutor(threads) as pool:
            (request_id,) = set(pool.map(begin, range(threads)))
        loops = [one for one in threading.enumerate() if one.name == "fairlane-client"]
        found.put((request_id, opened.wait(request_id).output, len(loops)))

    with client(quick()) as opened:
        first = opened.submit("embed", 1)
        child = fork.Process(target=use)
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert found.get() == ("req_1", 2, 1)
        assert opened.wait(first.id).output == 1
    found.close()


FORGETFUL = """
import asyncio
from fairlane import Client, Submission
from tests.support.fake_service import Direct, FakeService
async def never(_):
    await asyncio.Event().wait()
client = Client("http://door", "k", transport=Direct(FakeService(never)))
client.submit("embed", 1)
stream = client.run_many([Submission("embed", n) for n in range(5)] + [1])
print("done")
"""


def test_a_program_that_forgets_to_close_it_ends_in_silence() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", FORGETFUL],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_importing_fairlane_imports_nothing_of_the_client() -> None:
    code = "import sys, fairlane; print({'httpx', 'msgspec', 'asyncio'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set()\n"


def test_every_name_is_there() -> None:
    import fairlane

    assert all(getattr(fairlane, name) for name in fairlane.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Klient'"):
        _ = fairlane.Klient
