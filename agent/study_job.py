"""The one study under way, as a named job that the control cycle finds idle, busy or done."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from agent.graph import Conclusion, StudyGraph
from domain.errors import LeaseLost, SerinusError, Temporary
from domain.study import Study, StudyState

log = logging.getLogger(__name__)

RESUMPTIONS = 60
"""How often a study is gone on with after an error that may pass."""

GRACE_S = 5.0
"""What a study gets to end the node that it is in, when the controller goes."""


class StudyJob:
    """Runs in the caller's event loop; ``graph_for`` builds the graph of one study."""

    def __init__(self, graph_for: Callable[[Study], StudyGraph]) -> None:
        self._graph_for = graph_for
        self._study: Study | None = None
        self._graph: StudyGraph | None = None
        self._task: asyncio.Task[Conclusion] | None = None
        self._broke_off: Counter[str] = Counter()

    @property
    def study(self) -> Study | None:
        """The study of the current job, until its conclusion has been taken."""
        return self._study

    def start(self, study: Study) -> None:
        """Begin the study, or go on with it where it has stored trials."""
        assert self._task is None, "one study at a time"
        self._study = study
        self._graph = self._graph_for(study)
        self._task = asyncio.create_task(self._graph.run(study), name=f"study {study.id}")

    def take(self) -> Conclusion | None:
        """The conclusion once the job is done, given once; ``None`` while it is busy or idle.

        A study that broke off by an error is concluded as failed, with the error's sentence. One
        that may pass is raised instead: the study can be gone on with, ``RESUMPTIONS`` times.
        """
        if self._task is None or self._study is None or not self._task.done():
            return None
        task, study = self._task, self._study
        self._task = self._graph = self._study = None
        try:
            return task.result()
        except LeaseLost:
            raise
        except Temporary as error:
            self._broke_off[study.id] += 1
            if self._broke_off[study.id] <= RESUMPTIONS:
                raise
            return _failed(study, str(error))
        except SerinusError as error:
            return _failed(study, str(error))
        except Exception as error:
            # A study that would end the controller would end each of its successors too.
            log.exception("Study %s broke off", study.id)
            return _failed(study, f"A fault of Serinus itself ended the study: {error!r}.")

    def leave(self) -> bool:
        """Ask the job to stop working, without waiting; whether it has, and the lane is free."""
        if self._task is not None and not self._task.done():
            if not self._task.cancelling():
                self._task.cancel()
            return False
        if self._task is not None and not self._task.cancelled():
            self._task.exception()
        self._task = self._graph = self._study = None
        return True

    async def drain(self) -> None:
        """As ``cancel``, after a chance to end what takes seconds alone, as a model's answer."""
        if self._graph is not None and self._task is not None:
            self._graph.drain()
            await asyncio.wait({self._task}, timeout=GRACE_S)
        await self.cancel()

    async def cancel(self) -> None:
        """Stop working; stored trials remain, and the study can be gone on with."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._task = self._graph = self._study = None


def _failed(study: Study, why: str) -> Conclusion:
    return Conclusion(replace(study, state=StudyState.FAILED, conclusion=why), None)
