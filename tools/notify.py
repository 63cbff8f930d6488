"""Tell people what happened: a Slack-compatible webhook, and several notifiers as one.

Best effort. The webhook's URL is itself a secret and is never logged: that is why the message goes
through httpx's transport, for httpx's client logs every URL. It uses no proxy and no redirect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import httpx

from domain.errors import BadInput
from domain.events import Event
from domain.ports import Notifier

_LOG = logging.getLogger(__name__)
_TIMEOUT_S: Final = 3.0


class WebhookNotifier:
    """A Notifier that posts ``{"text": …}``; ``failures`` counts what could not be delivered."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise BadInput("The webhook's URL must begin with http:// or https://.")
        self._url = url
        self._failing = False
        self.failures = 0

    async def notify(self, event: Event) -> None:
        try:
            fault = await self._post(message(event))
        except Exception as error:  # a notifier never raises, whatever the URL or the network
            fault = type(error).__name__
        if fault:
            self.failures += 1
            if not self._failing:
                _LOG.warning("The webhook takes no messages (%s)", fault)
        self._failing = bool(fault)

    async def _post(self, text: str) -> str:
        """Deliver the text; why it was refused, or nothing."""
        request = httpx.Request("POST", self._url, json={"text": text})
        async with asyncio.timeout(_TIMEOUT_S), httpx.AsyncHTTPTransport() as transport:
            response = await transport.handle_async_request(request)
            await response.aclose()
        return "" if response.is_success else f"HTTP {response.status_code}"


def message(event: Event) -> str:
    """The event as a line of text, in which no name or label can become Slack's own markup."""
    about = f" ({event.subject})" if event.subject else ""
    line = f"Serinus, {event.kind.value.replace('_', ' ')}: {event.sentence}{about}"
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Notifiers:
    """Several notifiers as one; none waits for another or suffers from it."""

    def __init__(self, notifiers: Sequence[Notifier]) -> None:
        self._notifiers = tuple(notifiers)

    async def notify(self, event: Event) -> None:
        outcomes = await asyncio.gather(
            *(notifier.notify(event) for notifier in self._notifiers), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                _LOG.error("A notifier raised %s, which it must not", type(outcome).__name__)
