"""docs/api.md says what the code does: routes, fields, reasons, limits."""

import re
from pathlib import Path

from fairlane.http_protocol import HEADER_BYTES_MAX, HEADERS_S
from producers.app import SEND_S
from producers.bulk import BULK_BYTES_MAX, BULK_LINES_MAX, CALLS_MAX, CALLS_PER_TENANT_MAX
from producers.core import ids
from producers.core.lines import KEY_FIELD
from producers.core.listing import LIMIT_DEFAULT, LIMIT_MAX, PARAMETERS
from producers.core.openapi import document
from producers.core.submission import AFFINITY_CHARS_MAX, FIELDS, LINE_FAULTS_MAX
from producers.events import HEARTBEAT_S
from producers.ingress import WAIT_S_MAX
from producers.listing import SCAN_MAX
from producers.reading import BODY_S, CHUNK_S, READ_BYTES_MAX, READ_BYTES_PER_TENANT_MAX
from producers.waiting import WAITERS_MAX, WAITERS_PER_TENANT_MAX
from schemas.front import INDEX_TTL_MS, LISTED_MAX, LISTED_PER_CALL_MAX
from schemas.reasons import TABLE
from schemas.records import PRIORITY_DEFAULT, PRIORITY_MAX, End
from schemas.topics import DAY_MS
from tests.support.calls import served

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()


def section(title: str) -> str:
    """A section of the page, without those behind it."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_each_route_is_on_the_page_and_each_one_there_exists() -> None:
    told = {f"{method} {path}" for method, path in served()}
    assert set(re.findall(r"^\| `([A-Z]+ [^`]+)` \|", PAGE, re.MULTILINE)) == told
    titles = set(re.findall(r"^## ([A-Z]+ /\S+)$", PAGE, re.MULTILINE))
    assert titles == {route for route in told if "/v1/" in route}


def test_the_openapi_document_has_the_same_calls() -> None:
    paths = document()["paths"]
    told = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert told == set(served())


def test_the_openapi_document_has_the_same_fields_and_parameters() -> None:
    shapes = document()["components"]["schemas"]
    assert tuple(shapes["Submission"]["properties"]) == FIELDS
    listing = document()["paths"][ids.ROUTE]["get"]["parameters"]
    assert tuple(p["name"] for p in listing if p["in"] == "query") == PARAMETERS
    rows = re.findall(r"^\| `(\w+)` \|", section("GET /v1/requests"), re.MULTILINE)
    assert tuple(rows) == PARAMETERS
    looked_up = section("GET /v1/requests/{id}")
    for field in shapes["Status"]["properties"]:
        assert f"`{field}`" in looked_up, field
    for field in shapes["Problem"]["properties"]:
        assert f"`{field}`" in section("Problems"), field


def test_each_reason_stands_there_as_the_table_of_the_code_has_it() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE)
    expected = [
        (reason.value, str(advice.status), advice.retry.value, advice.text)
        for reason, advice in TABLE.items()
    ]
    assert rows == expected


def test_the_fields_of_a_request_are_all_there() -> None:
    fields = re.findall(r"^\| `(\w+)` \|", section("POST /v1/requests"), re.MULTILINE)
    assert tuple(fields) == FIELDS
    assert f"`{KEY_FIELD}`" in section("POST /v1/requests:bulk")
    for end in End:
        assert f"`{end.value}`" in section("GET /v1/requests/{id}")


def test_numbers_are_those_of_the_code() -> None:
    bulk = section("POST /v1/requests:bulk")
    assert f"Up to {BULK_BYTES_MAX:,} bytes and {BULK_LINES_MAX:,} lines" in bulk
    assert f"{CALLS_PER_TENANT_MAX} calls of a tenant and {CALLS_MAX} of an ingress" in bulk
    assert f"{READ_BYTES_MAX:,} bytes in sum, of one tenant half" in bulk
    assert 2 * READ_BYTES_PER_TENANT_MAX == READ_BYTES_MAX
    assert f"up to {LINE_FAULTS_MAX} `faults`" in bulk
    assert f"no verdict for {SEND_S:g} s" in bulk
    single = section("POST /v1/requests")
    assert f"stops for {CHUNK_S:g} s, or is not there within {BODY_S:g} s" in single
    assert f"0, the most urgent, to {PRIORITY_MAX}; default {PRIORITY_DEFAULT}" in single
    assert f"1 to {ids.KEY_CHARS_MAX} visible ASCII characters" in single
    assert f"more than {WAIT_S_MAX:g} is taken as {WAIT_S_MAX:g}" in section(
        "GET /v1/requests/{id}"
    )
    every = section("Every answer")
    assert f"up to {ids.CALL_CHARS_MAX} letters" in every
    kilobytes = HEADER_BYTES_MAX // 1_024
    assert f"within {HEADERS_S:g} s, or have more than {kilobytes} kB" in every
    assert f"| `affinity_key` | Up to {AFFINITY_CHARS_MAX} characters" in single


def test_numbers_of_lists_and_events_are_those_of_the_code() -> None:
    page = section("GET /v1/requests")
    assert f"1 to {LIMIT_MAX} requests a page; default {LIMIT_DEFAULT}" in page
    assert f"looks at {SCAN_MAX:,} requests" in page
    assert f"newest {LISTED_MAX:,} requests" in page
    assert f"newest {LISTED_PER_CALL_MAX:,}." in page
    assert f"every {HEARTBEAT_S:g} s" in section("GET /v1/requests/{id}/events")
    assert INDEX_TTL_MS == DAY_MS
    assert f"{WAITERS_MAX:,} long polls and streams" in PAGE
    assert f"{WAITERS_PER_TENANT_MAX:,} of one tenant" in PAGE
