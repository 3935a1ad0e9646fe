"""The demo's sender: every request once, at its time, again when the server could not."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fairlane.demo_http import Refused, Sender, Sent
from simulation.tenants import text_body
from simulation.world import Arrival


class Server(ThreadingHTTPServer):
    """Answers as the ingress does; `plan` holds the statuses of a tenant's next answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.calls: list[tuple[str, str, bytes]] = []
        self.plan: dict[str, list[int]] = {}
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        tenant = self.headers["Authorization"].removeprefix("Bearer key-of-")
        key = self.headers["Idempotency-Key"]
        with self.server.lock:
            self.server.calls.append((tenant, key, body))
            plan = self.server.plan.get(tenant, [])
            status = plan.pop(0) if plan else 202
        if status == 0:
            self.close_connection = True
            return
        answer = json.dumps({"id": f"{tenant}:{key}", "detail": f"status {status}"}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def sent(server: Server, arrivals: list[Arrival]) -> Sender:
    keys = {arrival.tenant: f"key-of-{arrival.tenant}" for arrival in arrivals}
    sender = Sender(server.url, keys, arrivals)
    sender.start()
    sender.wait()
    return sender


def arrival(tenant: str, at_ms: int = 0) -> Arrival:
    return Arrival(at_ms, tenant, "embed", "standard", text_body(4), output_tokens_max=16)


def test_every_request_is_sent_once(server: Server) -> None:
    sender = sent(server, [arrival("acme") for _ in range(30)] + [arrival("bolt", 30)])
    assert Counter(tenant for tenant, _, _ in server.calls) == {"acme": 30, "bolt": 1}
    assert len(sender.ids) == 31
    assert all(isinstance(event, Sent) for event in sender.events)
    fields = json.loads(server.calls[0][2])
    assert fields == {
        "endpoint": "embed",
        "tier": "standard",
        "input": "x" * 14,
        "max_output_tokens": 16,
    }


@pytest.mark.parametrize("fault", [503, 0])
def test_a_call_that_failed_is_sent_again_under_the_same_key(server: Server, fault: int) -> None:
    server.plan["acme"] = [fault]
    sender = sent(server, [arrival("acme")])
    keys = [key for _, key, _ in server.calls]
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert len(sender.ids) == 1


def test_what_is_refused_is_not_sent_again(server: Server) -> None:
    server.plan["acme"] = [400]
    sender = sent(server, [arrival("acme")])
    (event,) = sender.events
    assert isinstance(event, Refused)
    assert "status 400" in event.detail
    assert len(server.calls) == 1


def test_nothing_is_sent_before_its_time_after_a_stop(server: Server) -> None:
    sender = Sender(server.url, {"acme": "key-of-acme"}, [arrival("acme", 3_600_000)])
    sender.start()
    sender.stop()
    assert sender.is_done
    assert server.calls == []
