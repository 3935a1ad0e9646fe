"""Redis scripts that are called thousands of times a second, each on a connection of its own.

The client's way of a command (a connection out of the pool and back, what is to be observed and
repeated) takes several times as long as the command. A script that is called one at a time needs
none of that: it keeps one connection of the pool, which closes it in the end.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from redis.asyncio import Connection
from redis.connection import HiredisRespSerializer
from redis.exceptions import ConnectionError as NotConnectedError
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

if TYPE_CHECKING:
    from redis.asyncio import Redis


class PackedConnection(Connection):
    """Packs commands in C, which the client does for its blocking connections alone."""

    _packer = HiredisRespSerializer()

    def pack_command(self, *args: Any) -> list[bytes]:
        """A command as bytes."""
        packed: list[bytes] = self._packer.pack(*args)
        return packed


class Script:
    """A script; it loads itself again when the server has forgotten it.

    Calls that come while one is under way, and those over another kind of connection (TLS, a
    local socket, a look-alike in this process), go the client's way.
    """

    def __init__(self, client: "Redis", source: str) -> None:
        """Nothing is sent before the first call."""
        self._pool = client.connection_pool
        self._plain = client.register_script(source)
        self._is_direct = self._pool.connection_class is PackedConnection
        self._connection: PackedConnection | None = None
        self._is_busy = False

    async def __call__(self, keys: Sequence[str], args: Sequence[str | int | bytes | float]) -> Any:
        """Run it. Raises what the client raises; cancelled, it may have run.

        A connection that turns out to be closed is opened once more: all scripts here change
        nothing when they are called again.
        """
        if self._is_busy or not self._is_direct:
            return await self._plain(keys=keys, args=args)
        self._is_busy = True
        try:
            return await self._run_connected(keys, args)
        except NoScriptError:
            return await self._plain(keys=keys, args=args)
        except ReadOnlyError:  # another one is the master now: the name may lead there
            await self._pool.disconnect()
            raise
        finally:
            self._is_busy = False

    async def _run_connected(
        self, keys: Sequence[str], args: Sequence[str | int | bytes | float]
    ) -> Any:
        was_open = self._connection is not None and self._connection.is_connected
        try:
            return await self._run(keys, args)
        except NotConnectedError:
            if not was_open:
                raise
        return await self._run(keys, args)

    async def _run(self, keys: Sequence[str], args: Sequence[str | int | bytes | float]) -> Any:
        if self._connection is None:
            self._connection = cast("PackedConnection", await self._pool.get_connection())  # type: ignore[no-untyped-call]
        connection = self._connection
        try:
            if not connection.is_connected:
                await connection.connect()  # type: ignore[no-untyped-call]
            command = connection.pack_command("EVALSHA", self._plain.sha, len(keys), *keys, *args)
            await connection.send_packed_command(command, check_health=False)
            return await connection.read_response()
        except ResponseError:
            raise
        except BaseException:  # an answer may still come, and must not be the next call's
            await connection.disconnect(nowait=True)
            raise
