"""Who is answered next: tenants take turns, and each waits in a line of its own that has an end.

A tenant whose turn has come goes behind all others, and so does one that comes anew: nobody waits for more than one answer of each of
the others.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from app.errors import TooManyAnswersError, UnavailableError

T = TypeVar("T")
_TENANTS = 8
"""Full lines of so many tenants are as many waiting requests as a service keeps in memory, each with its body."""


@dataclass(slots=True)
class _Tenant(Generic[T]):
    waiting: deque[T] = field(default_factory=deque)
    running: int = 0


class WaitingLine(Generic[T]):
    """What waits, by tenant. Nothing here blocks, and one thread uses it."""

    def __init__(self, *, most_running: int, most_waiting: int) -> None:
        """`most_running`, `most_waiting`: answers of one tenant that are computed at a time, and that wait for their turn."""
        self._most_running = most_running
        self._most_waiting = most_waiting
        # In the order of their last turns: who has just been served goes to the end.
        self._tenants: dict[str, _Tenant[T]] = {}
        # Counted, so that other threads may ask for it.
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def join(self, tenant: str, waiter: T) -> None:
        """Puts a waiter at the end of its tenant's line.

        Raises:
            TooManyAnswersError: the tenant's line is full.
            UnavailableError: the lines of all tenants together are.
        """
        waiting = len(self._tenants[tenant].waiting) if tenant in self._tenants else 0
        if waiting >= self._most_waiting:
            raise TooManyAnswersError(
                f"{waiting} of your requests are waiting to be computed already",
                hint="Wait for their answers, or send many rows in one list.",
                context={"quota": "waiting_answers", "limit": self._most_waiting, "used": waiting},
            )
        if self._waiting >= _TENANTS * self._most_waiting:
            raise UnavailableError("too many requests are waiting to be computed", hint="Try again in a moment.")
        self._tenants.setdefault(tenant, _Tenant()).waiting.append(waiter)
        self._waiting += 1

    def leave(self, tenant: str, waiter: T) -> None:
        """Takes out a waiter that no longer waits; one that has had its turn is not there any more."""
        if tenant in self._tenants and waiter in self._tenants[tenant].waiting:
            self._tenants[tenant].waiting.remove(waiter)
            self._waiting -= 1
            self._forget(tenant)

    def next(self) -> tuple[str, T] | None:
        """The next waiter and its tenant, whose answer counts as running from now on; None where nobody may be served."""
        for name, tenant in self._tenants.items():
            if tenant.waiting and tenant.running < self._most_running:
                tenant.running += 1
                self._waiting -= 1
                self._tenants[name] = self._tenants.pop(name)
                return name, tenant.waiting.popleft()
        return None

    def done(self, tenant: str) -> None:
        """Counts one running answer less."""
        self._tenants[tenant].running -= 1
        self._forget(tenant)

    def _forget(self, tenant: str) -> None:
        if not self._tenants[tenant].waiting and not self._tenants[tenant].running:
            del self._tenants[tenant]
