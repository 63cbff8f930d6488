"""The FastAPI application: its doors, its errors and its routes, put together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from agent.api import errors
from agent.api.auth import Access, Gatekeeper
from agent.api.dashboard import pages
from agent.api.routes import json_routes
from agent.live import LiveState
from agent.store import Store
from domain.ports import Clock

_STATIC = Path(__file__).parent / "static"


def create_app(
    *,
    store: Store,
    tokens: Mapping[str, str],
    clock: Clock,
    live: Callable[[], LiveState],
    hosts: Collection[str] = (),
) -> FastAPI:
    """The API and the dashboard.

    ``tokens`` maps each API token to its actor's name; with none, this machine alone is answered,
    as the actor ``local``. ``hosts`` are host names to answer to beside those of loopback. ``live``
    is called from several threads. The caller closes the store.
    """
    app = FastAPI(title="Serinus", openapi_url="/api/openapi.json", docs_url=None, redoc_url=None)
    access = Access(tokens)
    errors.install(app)
    app.add_middleware(Gatekeeper, hosts=hosts)
    app.include_router(json_routes(store, access, clock, live))
    app.include_router(pages(store, access, clock, live))
    app.mount("/static", StaticFiles(directory=_STATIC))

    @app.get("/healthz")
    def healthz() -> dict[str, float | str]:
        """Whether the store answers, and how long ago the controller last spoke, in seconds."""
        with store.view() as uow:
            uow.events.latest(1)
        return {"status": "ok", "cycle_age_s": clock.now() - live().at_s}

    return app
