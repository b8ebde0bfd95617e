"""Who may stay connected: a bound on all connections and on those of one client. Where it is exceeded, the connection goes that has
waited longest for its own client, so that whoever sends a request at once is answered however many others say nothing.
"""

from __future__ import annotations

import ipaddress
import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from app.settings import Settings

log = structlog.get_logger("meshwright.server")
_TELL_EVERY_S = 60.0


class Connection(Protocol):
    """A connection that can be told to go."""

    @property
    def address(self) -> str: ...

    def make_room(self) -> None:
        """Ends the connection, which waits for its client."""


@dataclass(slots=True)
class _Client:
    connections: int = 0
    waiting: dict[Connection, None] = field(default_factory=dict)


class Door:
    """Counts the connections of a server.

    Args:
        most: connections at a time.
        most_per_client: connections of one address at a time, or of one /64 network of IPv6.
        clock: seconds, for the time between two lines of the log.
    """

    def __init__(self, *, most: int, most_per_client: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self.most_per_client = most_per_client
        self.ended: Counter[str] = Counter()
        """Connections that the server has ended, by reason."""
        self._clients: dict[str, _Client] = {}
        # Dictionaries as ordered sets: the first entry has waited longest.
        self._waiting: dict[Connection, None] = {}
        self._connections = 0
        self._clock = clock
        self._tell_at = -float("inf")
        self._untold: Counter[str] = Counter()

    @property
    def connections(self) -> int:
        """Connections that are open."""
        return self._connections

    def enter(self, connection: Connection) -> bool:
        """Whether there is room for this new connection, after another one may have had to go."""
        client = self._clients.setdefault(_network(connection.address), _Client())
        client.connections += 1
        self._connections += 1
        room = True
        if client.connections > self.most_per_client:
            room = self._end_longest(client.waiting, "client-has-too-many")
        elif self._connections > self.most:
            room = self._end_longest(self._waiting, "too-many")
        self.waits(connection)
        return room

    def waits(self, connection: Connection) -> None:
        """From now on it is the client's turn: to send a request or the rest of it, or to take the answer."""
        self._waiting[connection] = None
        self._clients[_network(connection.address)].waiting[connection] = None

    def works(self, connection: Connection) -> None:
        """From now on it is the service's turn: it answers, and nobody may take its place."""
        self._waiting.pop(connection, None)
        self._clients[_network(connection.address)].waiting.pop(connection, None)

    def leave(self, connection: Connection) -> None:
        """The connection is closed."""
        self.works(connection)
        name = _network(connection.address)
        self._connections -= 1
        self._clients[name].connections -= 1
        if self._clients[name].connections == 0:
            del self._clients[name]

    def note(self, reason: str) -> None:
        """Counts something that went wrong with connections, and logs how often it did, at most once a minute."""
        self.ended[reason] += 1
        self._untold[reason] += 1
        # One line for each connection would let anybody who can connect fill the disk.
        if self._clock() < self._tell_at:
            return
        self._tell_at = self._clock() + _TELL_EVERY_S
        counts = {key.replace("-", "_"): count for key, count in sorted(self._untold.items())}
        log.warning("connections ended by the server", connections=self._connections, **counts)
        self._untold.clear()

    def _end_longest(self, waiting: dict[Connection, None], reason: str) -> bool:
        self.note(reason)
        longest = next(iter(waiting), None)
        if longest is None:
            return False
        # It closes in a later turn of the loop, and must not be chosen again until then.
        self.works(longest)
        longest.make_room()
        return True


def door_of(settings: Settings) -> Door:
    """The door of a service with these settings."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The other half is for the database, the worker processes, and for connections that are accepted before others have closed: a
    # process that has no file left can neither accept a connection nor open its database.
    most = settings.max_connections if soft == resource.RLIM_INFINITY else min(settings.max_connections, soft // 2)
    return Door(most=most, most_per_client=min(settings.max_connections_per_client, most))


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        # One customer of a provider has a whole /64 network, and as many addresses as there are.
        return str(found.ipv4_mapped or ipaddress.IPv6Network((found, 64), strict=False))
    return address
