"""The one place where an error gets an HTTP status; every answer is one sentence."""

from __future__ import annotations

import logging
import re

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from agent.api.schemas import ErrorView
from domain.errors import (
    BadInput,
    Conflict,
    InvariantViolation,
    NotFound,
    Permanent,
    SerinusError,
    Temporary,
)

log = logging.getLogger(__name__)


class Unauthenticated(Permanent):
    """Nobody said who they are, or the token is unknown."""


class Forbidden(Permanent):
    """The request comes from where such a request must not come from."""


class TooLarge(BadInput):
    """The body is longer than any decision can be."""


class WrongMediaType(BadInput):
    """The body is neither JSON nor a form."""


# An error takes the status of its own class, or else of the nearest class it is derived from.
STATUSES: dict[type[SerinusError], int] = {
    Unauthenticated: 401,
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    TooLarge: 413,
    WrongMediaType: 415,
    BadInput: 422,
    Permanent: 400,
    Temporary: 503,
    InvariantViolation: 500,
    SerinusError: 500,
}


def install(app: FastAPI) -> None:
    """Make ``app`` answer every error as an ErrorView."""
    app.add_exception_handler(SerinusError, _own)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _routing)
    app.add_exception_handler(Exception, _fault)


def answer(error: SerinusError) -> JSONResponse:
    """The answer to one error."""
    status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
    headers = {}
    if isinstance(error, Temporary):
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    if status == STATUSES[Unauthenticated]:
        headers["WWW-Authenticate"] = "Bearer"
    return _sentence(status, type(error).__name__, str(error), headers)


def _sentence(
    status: int, kind: str, sentence: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    error = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower()
    return JSONResponse(ErrorView(error=error, sentence=sentence).model_dump(), status, headers)


async def _own(_request: Request, error: Exception) -> Response:
    assert isinstance(error, SerinusError)
    if isinstance(error, InvariantViolation):
        log.error("A rule of Serinus itself was broken.", exc_info=error)
    return answer(error)


async def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    return answer(BadInput(f"{place}: {first['msg']}."))


async def _routing(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _sentence(error.status_code, "Http", f"{error.detail}.", dict(error.headers or {}))


async def _fault(_request: Request, _error: Exception) -> Response:
    return _sentence(500, "Fault", "Serinus failed to answer; its log says why.")
