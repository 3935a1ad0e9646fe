"""Which client `fairlane embed` sends a tenant's rows with, and what they share."""

import asyncio

import pytest

from fairlane.embed_doors import There
from fairlane.errors import FairlaneError


def closed(doors: There) -> None:
    asyncio.run(doors.aclose())


def test_the_model_is_asked_for_with_the_first_tenant_of_the_source_that_has_a_key() -> None:
    doors = There("http://door", None, {"OLD": "k-old", "acme": "k-acme", "bolt": "k-bolt"})
    tenants = ["nobody", "bolt", "acme"]
    assert doors.probe(tenants) is doors.client("bolt")
    assert doors.probe([]) is not None  # an empty source: nothing is sent but the question
    with pytest.raises(FairlaneError, match="no key of any tenant of the source, which are 'x'"):
        doors.probe(["x", "x"])
    closed(doors)


def test_tenants_share_one_transport() -> None:
    keys = {f"t{n}": f"k{n}" for n in range(1_000)}
    doors = There("http://door", None, keys)
    clients = [doors.client(tenant) for tenant in keys]
    assert len({id(client) for client in clients}) == 1_000
    assert len({id(client._http._transport) for client in clients if client}) == 1
    assert doors.client("t1000") is None
    assert doors.why_not("t1000")[0] == "no_key"
    closed(doors)


def test_without_tenants_the_one_key_is_for_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLANE_KEY", "k")
    doors = There("http://door", None, None)
    assert doors.probe(["any"]) is doors.client("") is doors.client("any")
    closed(doors)
