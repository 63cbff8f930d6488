"""The right to act, as this process holds it: renews the lease and fences every write with it."""

from __future__ import annotations

from agent.store.unit_of_work import Store, UnitOfWork
from domain.errors import LeaseLost, SerinusError


class Leadership:
    """Not safe to share between threads. ``holder`` is unlike that of any other process."""

    def __init__(self, store: Store, *, holder: str, ttl_s: float) -> None:
        self._store = store
        self._holder = holder
        self._ttl_s = ttl_s
        self._token: int | None = None

    def renew(self, now: float) -> bool:
        """Take or keep the lease; ``False`` while another controller holds it."""
        with self._store.work() as uow:
            token = uow.lease.acquire(self._holder, now, self._ttl_s)
            if token is not None:
                uow.commit()
        if self._token is not None and token != self._token:
            self._token = None
            raise LeaseLost("The lease went to another controller; this one stops acting.")
        self._token = token
        return token is not None

    @property
    def term(self) -> int | None:
        """The fencing token of this time in office; ``None`` while another controller acts."""
        return self._token

    def work(self) -> UnitOfWork:
        """A transaction whose commit fails once another controller has taken over."""
        if self._token is None:
            raise LeaseLost("This controller does not hold the lease.")
        return self._store.work(fencing_token=self._token)

    def view(self) -> UnitOfWork:
        """A consistent look that waits for nobody; it cannot be committed."""
        return self._store.view()

    def may_act(self) -> bool:
        """Whether nobody has taken over; ``False`` also where the store cannot tell."""
        if self._token is None:
            return False
        try:
            with self.view() as uow:
                return uow.lease.is_current(self._token)
        except SerinusError:
            return False

    def release(self) -> None:
        """Let a successor begin at once."""
        if self._token is None:
            return
        with self._store.work() as uow:
            uow.lease.release(self._token)
            uow.commit()
        self._token = None
