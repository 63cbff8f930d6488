"""Grafana's annotations: the one mark that this room leaves in the world.

Best effort, off the event loop, with an explicit URL and token: the client would otherwise log in
to a local server with its factory password. The token and the server's answers are never logged.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from grafana_client.api import GrafanaApi

from domain.errors import BadInput
from domain.events import Event

_LOG = logging.getLogger(__name__)
_TIMEOUT_S: Final = 5.0


class GrafanaNotifier:
    """A Notifier that annotates the dashboard ``dashboard_uid``, or all where it is ``None``.

    ``failures`` counts the events that could not be written since the start.
    """

    def __init__(self, url: str, token: str, dashboard_uid: str | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise BadInput("The Grafana URL must begin with http:// or https://.")
        if not token:
            raise BadInput("Grafana needs a service account's token.")
        self._url = url.rstrip("/") + "/"
        self._token = token
        self._dashboard_uid = dashboard_uid
        self._failing = False
        self.failures = 0

    async def notify(self, event: Event) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await asyncio.to_thread(self._annotate, event)
        except Exception as error:  # a notifier never raises, whatever the client leaks
            self.failures += 1
            if not self._failing:
                _LOG.warning("Grafana takes no annotations (%s)", type(error).__name__)
            self._failing = True
        else:
            self._failing = False

    def _annotate(self, event: Event) -> None:
        api = GrafanaApi.from_url(self._url, credential=self._token, timeout=_TIMEOUT_S)
        try:
            api.annotations.add_annotation(
                dashboard_uid=self._dashboard_uid,
                time_from=round(event.at_s * 1000),
                tags=["serinus", event.kind.value],
                text=f"{event.sentence} ({event.subject})" if event.subject else event.sentence,
            )
        finally:
            api.client.s.close()
