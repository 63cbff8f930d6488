"""The language model that the settings name, for all who ask it: what is composed of what."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from agent.language import probe
from agent.language.budget import DAY_S, Bounds, Budgeted, Prices
from agent.language.endpoint import Endpoint
from agent.language.recording import Recorder
from agent.settings import Settings
from agent.status import existing
from agent.store import Store
from domain.errors import BadInput, SerinusError
from domain.language import NoAnswer
from domain.ports import Clock, LanguageModel


def endpoint(settings: Settings, clock: Clock) -> Endpoint:
    """The server itself, without a budget; BadInput for a key that cannot be read."""
    return Endpoint(
        base_url=settings.model_base_url,
        model=settings.model_name,
        api_key=api_key(settings),
        clock=clock,
        timeout_s=settings.model_timeout_s,
    )


def budgeted(inner: LanguageModel, settings: Settings, store: Store, clock: Clock) -> LanguageModel:
    """``inner``, recorded where that is wished, within the tokens that it may cost."""
    if settings.model_recording is not None:
        inner = Recorder(inner, settings.model_recording)
    return Budgeted(
        inner,
        store=store,
        bounds=Bounds(study=settings.model_tokens_a_study, day=settings.model_tokens_a_day),
        prices=prices(settings),
        clock=clock,
    )


def prices(settings: Settings) -> Prices:
    return Prices(read=settings.model_price_in, written=settings.model_price_out)


class Probed(NamedTuple):
    """Whether the server answers, and a sentence on how."""

    good: bool
    sentence: str


async def probed(settings: Settings, server: Endpoint) -> Probed:
    """Ask the server how it wants to be asked; its address is told without a user and a password,
    which it may hold."""
    parts = urlsplit(settings.model_base_url)
    host = parts.netloc.rpartition("@")[2]
    name = f"The language model {settings.model_name!r} at {parts.scheme}://{host}{parts.path}"
    try:
        way = await server.probe()
    except NoAnswer as none:
        why = str(none).rstrip(".")
        return Probed(False, f"{name} does not answer ({why}); until it does, the rulebook plans.")
    return Probed(True, f"{name} {probe.sentence(way)}.")


def spent(settings: Settings, now: float) -> str:
    """A sentence on the tokens of the last 24 hours; empty where no store tells."""
    try:
        with existing(settings.store_url) as store, store.view() as uow:
            tokens = uow.language_spending.since(now - DAY_S)
    except SerinusError:
        return ""
    bound = settings.model_tokens_a_day
    most = f", of at most {bound:,}" if bound else ""
    return f"Its questions of the last 24 hours cost {prices(settings).told(tokens)}{most}."


def api_key(settings: Settings) -> str:
    """The key from the settings or from its file; empty where there is none."""
    if (path := settings.model_api_key_file) is None:
        return settings.model_api_key.get_secret_value().strip()
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{_file(path)} cannot be read ({_why(error)}); check its path.") from None
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise BadInput(f"{_file(path)} does not hold one key alone; put it there on one line.")
    return key


def _file(path: Path) -> str:
    return f"The file {path} of model_api_key_file"


def _why(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "it is not text"
