"""The load client of each trial, with what the settings say of it, and where its requests go.

It must not decide what is sent or when.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from canary.loadgen import Budget, Options, ProcessLoadGenerator
from domain.study import Trial


class LoadClients:
    """``fresh`` makes the client of a trial.

    ``shards`` and a bound of 0 are none given: as many processes as the planned streams ask for,
    and no bound. With a ``folder`` each trial leaves a file there with a JSON line a request.
    """

    def __init__(
        self,
        *,
        request_timeout_s: float,
        shards: int,
        most_requests: int,
        most_tokens: int,
        folder: Path | None,
    ) -> None:
        self._options = Options(
            request_timeout_s=request_timeout_s,
            budget=Budget(requests=most_requests or None, tokens=most_tokens or None),
        )
        self._shards = shards or None
        self._folder = folder

    def options(self, trial: Trial) -> Options:
        """How the requests of a trial are sent, and the file that they are written to."""
        if self._folder is None:
            return self._options
        path = self._folder / f"{trial.study_id}-{trial.number}.jsonl"
        return replace(self._options, records_path=path)

    def fresh(self, trial: Trial) -> ProcessLoadGenerator:
        """Lines that an interrupted try of the same trial left are gone: they would count twice."""
        options = self.options(trial)
        if options.records_path is not None:
            options.records_path.unlink(missing_ok=True)
        return ProcessLoadGenerator(options, shards=self._shards)
