"""Grafana's annotations: the one mark that this room leaves in the world.

Best effort and off the event loop. The token and the server's answers are never logged.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing

from domain.events import Event
from tools.grafana_api import TIMEOUT_S, checked, connected

_LOG = logging.getLogger(__name__)


class GrafanaNotifier:
    """A Notifier that annotates the dashboard ``dashboard_uid``, or all where it is ``None``.

    ``failures`` counts the events that could not be written since the start.
    """

    def __init__(self, url: str, token: str, dashboard_uid: str | None = None) -> None:
        checked(url, token)
        self._url = url
        self._token = token
        self._dashboard_uid = dashboard_uid
        self._failing = False
        self.failures = 0

    async def notify(self, event: Event) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await asyncio.to_thread(self._annotate, event)
        except Exception as error:  # a notifier never raises, whatever the client leaks
            self.failures += 1
            if not self._failing:
                _LOG.warning("Grafana takes no annotations (%s)", type(error).__name__)
            self._failing = True
        else:
            self._failing = False

    def _annotate(self, event: Event) -> None:
        api = connected(self._url, self._token)
        with closing(api.client.s):
            api.annotations.add_annotation(
                dashboard_uid=self._dashboard_uid,
                time_from=round(event.at_s * 1000),
                tags=["serinus", event.kind.value],
                text=f"{event.sentence} ({event.subject})" if event.subject else event.sentence,
            )
