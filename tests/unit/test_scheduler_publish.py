"""A batch's items are written as plain tuples: on the wire they are what `Item` is."""

from scheduler.core.pick.order import order
from scheduler.core.tenants import Live, TenantQueue, Use
from scheduler.inputs import Body
from scheduler.publish import items_of
from schemas.codec import decode_bytes, encode
from schemas.records import VERSION, Batch, Item, pack_key

NOW_MS = 1_735_689_600_000


def live(number: int, deadline_ms: int) -> Live:
    queue = TenantQueue(Use(f"tenant-{number}"), "embed", "gold")
    key = pack_key(number, 1_000 + number)
    return Live(f"{number:032x}", queue, key, order(500, deadline_ms, NOW_MS, key), 90, 12, 1)


def test_tuples_are_written_as_items() -> None:
    requests = [live(0, 0), live(1, NOW_MS + 5), live(2, 0)]
    requests[2].remember().attempt = 2
    bodies = [Body(b"a", ()), Body(b"", (("traceparent", b"00"),)), Body(b"ccc", (("x", b""),) * 2)]
    keys = [one.key for one in requests]
    items = tuple(
        Item(
            key=one.key,
            id=one.id,
            tenant=one.tenant,
            endpoint=one.endpoint,
            attempt=one.attempt,
            size=len(body.value),
            arrived_ms=one.arrived_ms,
            deadline_ms=one.deadline_ms,
            tokens=one.tokens,
            headers=body.headers,
        )
        for one, body in zip(requests, bodies, strict=True)
    )
    written = encode(Batch(VERSION, 0, 7, "gpu", NOW_MS, items_of(requests, keys, bodies)))
    assert written == encode(Batch(VERSION, 0, 7, "gpu", NOW_MS, items))
    assert decode_bytes(written, Batch, "here").items == items
