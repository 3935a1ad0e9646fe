"""What the callers of the ingress benchmark send, as bytes and as a script for wrk."""

import json
from collections.abc import Sequence

#: Size of a body.
BODY_BYTES = 1_000


def body() -> bytes:
    """A request of a kilobyte."""
    frame = len(json.dumps({"endpoint": "chat", "input": ""}))
    return json.dumps({"endpoint": "chat", "input": "x" * (BODY_BYTES - frame)}).encode()


def calls(api_keys: Sequence[str]) -> list[bytes]:
    """One whole HTTP call for each key."""
    sent = body()
    return [
        b"POST /v1/requests HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
        % (key.encode(), len(sent), sent)
        for key in api_keys
    ]


def wrk_script(api_keys: Sequence[str]) -> str:
    """The same calls for wrk, one key after the other; it tells what was no 202."""
    whole = ",\n".join("  " + _lua(call) for call in calls(api_keys))
    return f"""local calls = {{
{whole}
}}
local number, others = 0, 0
local threads = {{}}
function setup(thread)
  threads[#threads + 1] = thread
end
function request()
  number = number + 1
  return calls[number % #calls + 1]
end
function response(status)
  if status ~= 202 then
    refused = (refused or 0) + 1
  end
end
function done(summary, latency, requests)
  local refused = 0
  for _, thread in ipairs(threads) do
    refused = refused + (thread:get('refused') or 0)
  end
  local errors = summary.errors
  print(string.format(
    'FIGURES {{"requests": %d, "seconds": %.6f, "refused": %d, "errors": %d, "p99_ms": %.3f}}',
    summary.requests, summary.duration / 1e6, refused,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(99) / 1000))
end
"""


def _lua(call: bytes) -> str:
    text = call.decode()
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\r\n", "\\r\\n") + '"'
