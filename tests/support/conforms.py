"""Whether an answer of the door is one that its OpenAPI document has."""

import re
from functools import cache
from typing import Any

import httpx
from jsonschema import Draft202012Validator

from producers.core.openapi import document

DOCUMENT = document()
#: Answers to what is no call of the document: another path, another method.
ELSEWHERE = {404, 405}


@cache
def validator(shape: str) -> Draft202012Validator:
    """Checks one shape of the document."""
    return Draft202012Validator(
        {"$ref": f"#/components/schemas/{shape}", "components": DOCUMENT["components"]}
    )


def operation(method: str, path: str) -> dict[str, Any] | None:
    """The call of the document that a request makes."""
    for template, methods in DOCUMENT["paths"].items():
        pattern = "[^/]*".join(map(re.escape, template.split("{id}")))
        if re.fullmatch(pattern, path):
            known = "get" if method == "HEAD" else method.lower()
            found: dict[str, Any] | None = methods.get(known)
            return found
    return None


def check(answer: httpx.Response) -> None:
    """Fail if the answer is not in the document: its status, a header, a field."""
    place = f"{answer.request.method} {answer.request.url.path} -> {answer.status_code}"
    names = [name.lower() for name, _ in answer.headers.multi_items()]
    assert len(names) == len(set(names)), f"{place}: a header is there twice: {names}"
    assert "x-request-id" in names, place
    called = operation(answer.request.method, answer.request.url.path)
    if called is None:
        assert answer.status_code in ELSEWHERE, place
        validator("Problem").validate(answer.json())
        return
    told = called["responses"].get(str(answer.status_code))
    assert told is not None, f"{place}: no such status in the document"
    _check_headers(place, answer, told.get("headers", {}))
    _check_body(place, answer, told.get("content", {}))


def _check_headers(place: str, answer: httpx.Response, told: dict[str, Any]) -> None:
    for name, where in told.items():
        header = DOCUMENT["components"]["headers"][where["$ref"].rsplit("/", 1)[1]]
        text = answer.headers.get(name)
        assert text is not None or not header.get("required"), f"{place}: no {name}"
        is_number = header["schema"].get("type") == "integer"
        if text is not None:
            value = int(text) if is_number else text
            Draft202012Validator(header["schema"]).validate(value)
    ours = {"retry-after", "location", "idempotency-key", "ratelimit", "ratelimit-policy"}
    sent = {n for n in answer.headers if n in ours or n.startswith("x-ratelimit")}
    assert sent <= {name.lower() for name in told} | _limits(answer), f"{place}: {sent}"


def _limits(answer: httpx.Response) -> set[str]:
    """Where limits stand may be told with any refusal."""
    return {n for n in answer.headers if "ratelimit" in n} if answer.is_error else set()


def _check_body(place: str, answer: httpx.Response, told: dict[str, Any]) -> None:
    if not told:
        assert not answer.content, place
        return
    kind = answer.headers["content-type"].split(";")[0]
    assert kind in told, f"{place}: {kind} is not in the document"
    shape = told[kind]["schema"].get("$ref", "").rsplit("/", 1)[-1]
    if answer.request.method == "HEAD" or not shape:
        return
    if shape == "Verdicts":
        for line in answer.text.splitlines():
            validator("Verdict").validate(httpx.Response(200, text=line).json())
    elif shape == "Events":
        for line in answer.text.splitlines():
            if line.startswith("data: "):
                validator("Status").validate(httpx.Response(200, text=line[6:]).json())
    else:
        validator(shape).validate(answer.json())
