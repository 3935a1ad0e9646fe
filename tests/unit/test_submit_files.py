"""`fairlane submit` and files that are not its own: refused, and left as they are."""

import asyncio
import os
from pathlib import Path

import httpx
import pytest

from fairlane.errors import FairlaneError
from fairlane.submit import EXIT_DONE, submit_file

BODY = b'{"endpoint": "free", "input": 1}\n'


def submit(path: Path, out: Path | None = None) -> int:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return httpx.Response(202, json={"id": "req_1", "state": "waiting"})
        return httpx.Response(200, json={"state": "succeeded"})

    transport = httpx.MockTransport(handler)
    return asyncio.run(submit_file(path, "http://door", "k", out=out, transport=transport))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "data.jsonl"
    found.write_bytes(BODY)
    return found


@pytest.mark.parametrize("name", ["data.jsonl", "data.journal", "data.failed.jsonl", "linked"])
def test_results_never_go_into_a_file_of_another_use(path: Path, name: str) -> None:
    os.link(path, path.with_name("linked"))
    with pytest.raises(FairlaneError, match="which is not for results"):
        submit(path, path.parent / "." / name)
    assert path.read_bytes() == BODY


@pytest.mark.parametrize("name", ["out.jsonl", "data.failed.jsonl", "data.journal"])
@pytest.mark.parametrize(
    "content", [b"my notes, without an end of line", b"my notes\n", b'{"rows": 1', b"{}\nmore"]
)
def test_content_that_is_not_ours_is_refused_and_not_cut(
    path: Path, name: str, content: bytes
) -> None:
    foreign = path.with_name(name)
    foreign.write_bytes(content)
    with pytest.raises(FairlaneError, match=name):
        submit(path, path.with_name("out.jsonl"))
    assert foreign.read_bytes() == content
    foreign.unlink()
    assert submit(path, path.with_name("out.jsonl")) == EXIT_DONE


def test_results_of_another_file_are_not_taken_for_ours(path: Path) -> None:
    out = path.with_name("out.jsonl")
    out.write_bytes(b'{"line":1,"state":"succeeded"}\n')
    with pytest.raises(FairlaneError, match="holds results of another submission"):
        submit(path, out)


def test_a_torn_first_line_of_ours_is_cut(path: Path) -> None:
    out = path.with_name("out.jsonl")
    out.write_bytes(b'{"line":1,"state":"succ')
    path.with_name("data.journal").write_bytes(b'{"v":1,"fi')
    assert submit(path, out) == EXIT_DONE
    assert out.read_bytes() == b'{"line":1,"state":"succeeded"}\n'
