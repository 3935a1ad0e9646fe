"""The client's HTTP: the transports of httpx without its client, in several small pools.

The client of httpx merges addresses, cookies, redirects and authentication anew for each
call: two thirds of a call's CPU time, for nothing that is needed here. And a pool of httpx
looks through all its connections at each request, quadratically through idle ones: with
hundreds of long polls that alone takes milliseconds. Pools of a few connections don't.
"""

import ssl

import httpx

#: Longer than a long poll and a publish in doubt together.
HTTP_TIMEOUT_S = 45.0
#: Connections of one pool.
POOL_CONNECTIONS = 8
#: Idle connections are closed before a server does it (uvicorn: 5 s): no call meets its end.
KEEPALIVE_S = 4.0


class Http:
    """Calls of one server; answers are read to their end and know their request."""

    def __init__(
        self, url: str, key: str, transport: httpx.AsyncBaseTransport, *, is_shared: bool = False
    ) -> None:
        """`key` is sent with each call; a transport that is shared is closed by another."""
        self.url = url.rstrip("/")
        self._is_shared = is_shared
        self._transport = transport
        self._headers = {"Authorization": f"Bearer {key}", "User-Agent": "fairlane"}
        self._extensions = {"timeout": httpx.Timeout(HTTP_TIMEOUT_S).as_dict()}

    async def get(self, path: str) -> httpx.Response:
        """GET. Raises httpx.TransportError."""
        return await self._call(
            httpx.Request(
                "GET", self.url + path, headers=self._headers, extensions=self._extensions
            )
        )

    async def post(
        self, path: str, content: bytes = b"", headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """POST. Raises httpx.TransportError."""
        return await self._call(
            httpx.Request(
                "POST",
                self.url + path,
                headers=self._headers | (headers or {}),
                content=content,
                extensions=self._extensions,
            )
        )

    async def aclose(self) -> None:
        """Close the connections, unless they are shared."""
        if not self._is_shared:
            await self._transport.aclose()

    def for_key(self, key: str) -> "Http":
        """The same connections with another key."""
        return Http(self.url, key, self._transport, is_shared=True)

    async def _call(self, request: httpx.Request) -> httpx.Response:
        answer = await self._transport.handle_async_request(request)
        try:
            await answer.aread()
        finally:
            await answer.aclose()
        answer.request = request
        return answer


def pooled(url: str, connections: int) -> httpx.AsyncBaseTransport:
    """Transport to one server by at most about so many connections."""
    pools = -(-connections // POOL_CONNECTIONS)
    verify: ssl.SSLContext | bool = False
    if url.startswith("https:"):
        verify = httpx.create_ssl_context()
    limits = httpx.Limits(
        max_connections=POOL_CONNECTIONS,
        max_keepalive_connections=POOL_CONNECTIONS,
        keepalive_expiry=KEEPALIVE_S,
    )
    return _Pools([httpx.AsyncHTTPTransport(verify=verify, limits=limits) for _ in range(pools)])


class _Pools(httpx.AsyncBaseTransport):
    """Spreads requests over pools: each goes to the one with the fewest under way."""

    def __init__(self, pools: list[httpx.AsyncHTTPTransport]) -> None:
        self._pools = pools
        self._under_way = [0] * len(pools)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send it and read the answer to its end, so that the connection is free."""
        counts = self._under_way
        number = counts.index(min(counts))
        counts[number] += 1
        try:
            answer = await self._pools[number].handle_async_request(request)
            try:
                await answer.aread()
            finally:
                await answer.aclose()
        finally:
            counts[number] -= 1
        return answer

    async def aclose(self) -> None:
        """Close all connections."""
        for pool in self._pools:
            await pool.aclose()
