"""Where `fairlane embed` sends its requests: a deployment at an address, or one in here."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import NoReturn

from fairlane.client import KEY_VARIABLE, AsyncClient
from fairlane.embedded import Embedded
from fairlane.errors import FairlaneError

#: The tenant of an embedded run whose source has none.
TENANT_DEFAULT = "default"
_VARIABLE_PREFIX = f"{KEY_VARIABLE}_"


def tenant_keys(given: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Keys by tenant, of `NAME=KEY` and of the environment; those by hand win.

    A name out of the environment is upper case with `_` for `-`: see `There`. Raises
    FairlaneError for what is no NAME=KEY.
    """
    keys = {
        name.removeprefix(_VARIABLE_PREFIX): value
        for name, value in environ.items()
        if name.startswith(_VARIABLE_PREFIX) and value
    }
    for text in given:
        name, equals, key = text.partition("=")
        if not (name and equals and key):
            raise FairlaneError(f"--tenant-key {name or text!r}: must be NAME=KEY")
        keys[name] = key
    return keys


class There:
    """An ingress at an address. `keys` are by tenant, `key` is for a source without tenants."""

    def __init__(self, url: str, key: str | None, keys: Mapping[str, str] | None) -> None:
        """`keys` None: the source has no tenants. Raises FairlaneError: no key, or no address."""
        self._url, self._key, self._keys = url, key, keys
        self._clients: dict[str, AsyncClient] = {}
        if keys is not None and not keys:
            raise FairlaneError(
                f"no key of any tenant: give --tenant-key NAME=KEY or set {_VARIABLE_PREFIX}<NAME>"
            )
        self.probe()

    def probe(self) -> AsyncClient:
        """A client of the first tenant whose key is known."""
        return self._of(self._key if self._keys is None else next(iter(self._keys.values())))

    def client(self, tenant: str) -> AsyncClient | None:
        """The tenant's client; None when there is no key of it."""
        if self._keys is None:
            return self._of(self._key)
        variable = tenant.upper().replace("-", "_")
        key = self._keys.get(tenant) or self._keys.get(variable)
        return self._of(key) if key else None

    def _of(self, key: str | None) -> AsyncClient:
        found = self._clients.get(key or "")
        if found is None:
            found = self._clients[key or ""] = AsyncClient(self._url, key)
        return found

    async def failed(self) -> NoReturn:
        """Return never: what is there is somebody else's care."""
        while True:
            await asyncio.Event().wait()

    async def aclose(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.aclose()


class Here:
    """A deployment in this process."""

    def __init__(self, deployment: Embedded) -> None:
        """The deployment has been entered, and is left by the caller."""
        self._deployment = deployment
        self._clients: dict[str, AsyncClient] = {}

    def probe(self) -> AsyncClient:
        """A client of the first tenant."""
        return self._of(next(iter(self._deployment.keys)))

    def client(self, tenant: str) -> AsyncClient | None:
        """The tenant's client; None for one that the policy has not."""
        name = tenant or TENANT_DEFAULT
        return self._of(name) if name in self._deployment.keys else None

    def _of(self, tenant: str) -> AsyncClient:
        found = self._clients.get(tenant)
        if found is None:
            found = self._clients[tenant] = self._deployment.client(tenant)
        return found

    async def failed(self) -> None:
        """Raise FairlaneError when the deployment can't go on."""
        await self._deployment.failed()

    async def aclose(self) -> None:
        """Close the clients."""
        for client in self._clients.values():
            await client.aclose()
