"""A controller that ends, as by SIGKILL, before or after one of the changes that it makes."""

from __future__ import annotations

from tests.fakes.controller_world import ControllerWorld


class Killed(BaseException):
    """No code of ours catches it."""


class Killing:
    """Counts what the world's controllers change, commits and effects alike, and ends the one that
    makes change number ``at``: before it where ``at`` is even, after it where it is odd."""

    EFFECTS = ("set_weight", "admit", "drain")

    def __init__(self, world: ControllerWorld, at: int) -> None:
        self.at = at
        self.changes = 0
        for name in self.EFFECTS:
            self._wrap(world.gateway, name)
        self._wrap(world.launcher, "start")
        self._wrap_commits(world)

    def _dies(self, after: bool) -> bool:
        return self.changes == self.at and (self.at % 2 == 1) is after

    def _wrap(self, owner: object, name: str) -> None:
        act = getattr(owner, name)

        async def acted(*given: object) -> None:
            self.changes += 1
            if self._dies(after=False):
                raise Killed
            await act(*given)
            if self._dies(after=True):
                raise Killed

        setattr(owner, name, acted)

    def _wrap_commits(self, world: ControllerWorld) -> None:
        open_work = world.store.work

        def work(*, fencing_token: int | None = None):
            uow = open_work(fencing_token=fencing_token)
            commit = uow.commit

            def committed() -> None:
                self.changes += 1
                if self._dies(after=False):
                    raise Killed
                commit()
                if self._dies(after=True):
                    raise Killed

            uow.commit = committed
            return uow

        world.store.work = work
