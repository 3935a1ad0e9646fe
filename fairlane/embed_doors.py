"""Where `fairlane embed` sends its requests: a deployment at an address, or one in here."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import NoReturn

from fairlane.client import KEY_VARIABLE, AsyncClient
from fairlane.embedded import Embedded
from fairlane.errors import FairlaneError
from schemas.policy import NAME_RULE

#: The tenant of an embedded run whose source has none.
TENANT_DEFAULT = "default"
_VARIABLE_PREFIX = f"{KEY_VARIABLE}_"
#: Tenants named in the message that there is a key of none.
_TENANTS_TOLD = 5


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
        self.where, self._keys = url, keys
        if keys is not None and not keys:
            raise FairlaneError(
                f"no key of any tenant: give --tenant-key NAME=KEY or set {_VARIABLE_PREFIX}<NAME>"
            )
        first = key if keys is None else next(iter(keys.values()))
        self._first = AsyncClient(url, first)
        self._clients = {} if first is None else {first: self._first}

    def probe(self, tenants: Iterable[str]) -> AsyncClient:
        """A client of the first of the tenants that has one. Raises FairlaneError: none has."""
        if self._keys is None:
            return self._first
        seen: dict[str, None] = {}
        for tenant in tenants:
            if tenant not in seen and (client := self.client(tenant)):
                return client
            if len(seen) < _TENANTS_TOLD:
                seen[tenant] = None
        if not seen:
            return self._first  # there is nothing to send
        raise FairlaneError(
            f"no key of any tenant of the source, which are {', '.join(map(repr, seen))}"
            f"{', ...' if len(seen) == _TENANTS_TOLD else ''}: give --tenant-key NAME=KEY or set "
            f"{_VARIABLE_PREFIX}<NAME>"
        )

    def client(self, tenant: str) -> AsyncClient | None:
        """The tenant's client; None when there is no key of it."""
        if self._keys is None:
            return self._first
        variable = tenant.upper().replace("-", "_")
        key = self._keys.get(tenant) or self._keys.get(variable)
        if not key:
            return None
        if key not in self._clients:
            self._clients[key] = self._first.for_key(key)
        return self._clients[key]

    def why_not(self, tenant: str) -> tuple[str, str]:
        """There is no key of it."""
        return "no_key", f"no key of tenant {tenant!r}: give --tenant-key {tenant}=KEY"

    async def failed(self) -> NoReturn:
        """Return never: what is there is somebody else's care."""
        while True:
            await asyncio.Event().wait()

    async def aclose(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.aclose()
        await self._first.aclose()


class Here:
    """A deployment in this process."""

    where = "the deployment in this process"

    def __init__(self, deployment: Embedded, *, has_tenant: bool = True) -> None:
        """The deployment has been entered, and is left by the caller.

        Without tenants in the source all rows are of the first tenant.
        """
        self._deployment, self._has_tenant = deployment, has_tenant
        self._tenant, *_ = deployment.keys
        self._clients = {self._tenant: deployment.client(self._tenant)}

    def probe(self, tenants: Iterable[str]) -> AsyncClient:
        """A client of the first tenant of the policy, whatever the source has."""
        del tenants
        return self._clients[self._tenant]

    def client(self, tenant: str) -> AsyncClient | None:
        """The tenant's client; None for one that the policy has not."""
        name = tenant if self._has_tenant else self._tenant
        if name not in self._deployment.keys:
            return None
        if name not in self._clients:
            key = self._deployment.keys[name]
            self._clients[name] = self._clients[self._tenant].for_key(key)
        return self._clients[name]

    def why_not(self, tenant: str) -> tuple[str, str]:
        """It is no tenant."""
        return "no_tenant", f"the tenant {tenant!r} is no name: {NAME_RULE}"

    async def failed(self) -> None:
        """Raise FairlaneError when the deployment can't go on."""
        await self._deployment.failed()

    async def aclose(self) -> None:
        """Close the clients."""
        for client in self._clients.values():
            await client.aclose()
