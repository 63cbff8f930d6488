"""The one study under way, as a named job that the control cycle finds idle, busy or done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from agent.graph import Conclusion, StudyGraph
from domain.errors import LeaseLost, SerinusError, Temporary
from domain.study import Study, StudyState

log = logging.getLogger(__name__)

MOST_BREAKS = 5
"""Times that one study may break off for a passing reason before it has failed."""


class StudyJob:
    """Runs in the caller's event loop; ``graph_for`` builds the graph of one study."""

    def __init__(self, graph_for: Callable[[Study], StudyGraph]) -> None:
        self._graph_for = graph_for
        self._study: Study | None = None
        self._task: asyncio.Task[Conclusion] | None = None
        self._broken: tuple[str, int] = ("", 0)

    @property
    def study(self) -> Study | None:
        """The study of the current job, until its conclusion has been taken."""
        return self._study

    def start(self, study: Study) -> None:
        """Begin the study, or go on with it where it has stored trials."""
        assert self._task is None, "one study at a time"
        self._study = study
        self._task = asyncio.create_task(
            self._graph_for(study).run(study), name=f"study {study.id}"
        )

    def take(self) -> Conclusion | None:
        """The conclusion once the job is done, given once; ``None`` while it is busy or idle.

        A study that broke off for a passing reason leaves the job idle, and can be gone on with;
        one that broke off by any other error is concluded as failed, with the error's sentence.
        """
        if self._task is None or self._study is None or not self._task.done():
            return None
        task, study = self._task, self._study
        self._task = self._study = None
        try:
            return task.result()
        except LeaseLost:
            raise
        except Temporary as error:
            return self._broke(study, error)
        except SerinusError as error:
            return _failed(study, str(error))
        except Exception as error:
            # A study that would end the controller would end each of its successors too.
            log.exception("Study %s broke off", study.id)
            return _failed(study, f"A fault of Serinus itself ended the study: {error!r}.")

    def _broke(self, study: Study, error: Temporary) -> Conclusion | None:
        before = self._broken[1] if self._broken[0] == study.id else 0
        self._broken = (study.id, before + 1)
        if before + 1 >= MOST_BREAKS:
            return _failed(study, f"It broke off {MOST_BREAKS} times, at last: {error}")
        log.warning("Study %s broke off and is gone on with: %s", study.id, error)
        return None

    async def cancel(self) -> None:
        """Stop working; stored trials remain, and the study can be gone on with."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._task = self._study = None


def _failed(study: Study, why: str) -> Conclusion:
    return Conclusion(replace(study, state=StudyState.FAILED, conclusion=why), None)
