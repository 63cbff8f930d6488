"""The simulated engine's HTTP face: vLLM's routes, and ``/simulator/fault`` to break it at will.

Every answer carries ``x-simulated: true``. It holds no timing and no scheduling of its own.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from uuid import uuid4

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from domain.errors import BadInput
from serving.simulator import answers, faults, wire
from serving.simulator.answers import Answer
from serving.simulator.core import Core
from serving.simulator.live import LiveEngine
from serving.simulator.metrics import EngineMetrics
from serving.simulator.profile import Profile
from serving.simulator.scheduler import Request
from serving.simulator.wire import Asked, Endpoint, Frames, Usage

VLLM_VERSION = "0.32.0"


class Server:
    """The routes of one engine. Until ``ready`` was called it answers 503, as vLLM is not up; one
    that is ``healthy_while_cold`` calls itself healthy all the same."""

    def __init__(self, profile: Profile, model: str, *, healthy_while_cold: bool = False) -> None:
        self._profile = profile
        self._model = model
        self._healthy_while_cold = healthy_while_cold
        self._engine: LiveEngine | None = None
        routes = [
            Route("/health", self._health),
            Route("/version", self._version),
            Route("/metrics", self._metrics),
            Route("/v1/models", self._models),
            Route("/v1/completions", self._completion, methods=["POST"]),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/tokenize", self._tokenize, methods=["POST"]),
            Route("/reset_prefix_cache", self._reset_prefix_cache, methods=["POST"]),
            Route("/simulator/fault", self._fault, methods=["POST"]),
        ]
        self.app: ASGIApp = _Marked(Starlette(routes=routes))

    def ready(self, core: Core, die: Callable[[tuple[str, ...]], None]) -> LiveEngine:
        """Serve ``core`` from now on; the caller runs the engine that it returns."""
        metrics = EngineMetrics(self._model, core, time.time())
        self._engine = LiveEngine(core, metrics, die)
        return self._engine

    async def _health(self, _: HttpRequest) -> Response:
        healthy = self._engine is not None or self._healthy_while_cold
        return Response(status_code=200 if healthy else 503)

    async def _version(self, _: HttpRequest) -> Response:
        return JSONResponse({"version": VLLM_VERSION, "simulated": True})

    async def _metrics(self, _: HttpRequest) -> Response:
        text = self._engine.metrics.exposition() if self._engine else b""
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _models(self, _: HttpRequest) -> Response:
        if self._engine is None:
            return _starting()
        card = {
            "id": self._model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "vllm",
            "root": self._profile.name,
            "max_model_len": self._profile.facts.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def _tokenize(self, http: HttpRequest) -> Response:
        if self._engine is None:
            return _starting()
        try:
            asked = wire.asked(Endpoint.COMPLETION, await http.body())
        except BadInput as error:
            return _refusal(400, str(error))
        longest = self._profile.facts.max_model_len
        ids = asked.prompt
        return JSONResponse({"count": len(ids), "max_model_len": longest, "tokens": ids})

    async def _reset_prefix_cache(self, _: HttpRequest) -> Response:
        """As in vLLM, the status is 200 also where running requests keep it from happening."""
        if self._engine is None:
            return _starting()
        return JSONResponse({"success": self._engine.core.scheduler.blocks.forget()})

    async def _fault(self, http: HttpRequest) -> Response:
        if self._engine is None:
            return _starting()
        try:
            body = json.loads(await http.body())
            name = body["fault"]
            injection = None if name is None else faults.parse(str(name))
            if injection is not None and injection.fault in faults.AT_START:
                raise BadInput(f"{name} can only be given at start, by the environment.")
        except (ValueError, TypeError, KeyError):
            return _refusal(400, 'Write {"fault": "name"}, or null for none.')
        except BadInput as error:
            return _refusal(400, str(error))
        self._engine.core.inject(injection)
        return JSONResponse({"fault": name})

    async def _completion(self, http: HttpRequest) -> Response:
        return await self._serve(http, Endpoint.COMPLETION)

    async def _chat(self, http: HttpRequest) -> Response:
        return await self._serve(http, Endpoint.CHAT)

    async def _serve(self, http: HttpRequest, endpoint: Endpoint) -> Response:
        if self._engine is None:
            return _starting()
        response = self._response(self._engine, endpoint, await http.body())
        self._engine.metrics.answered(http.url.path, response.status_code)
        return response

    def _response(self, engine: LiveEngine, endpoint: Endpoint, body: bytes) -> Response:
        try:
            asked = wire.asked(endpoint, body)
        except BadInput as error:
            return _refusal(400, str(error))
        if asked.model not in ("", self._model):
            return _refusal(404, f"The model `{asked.model}` does not exist.", "NotFoundError")
        longest = self._profile.facts.max_model_len or 0
        if longest and len(asked.prompt) + asked.max_tokens > longest:
            return _refusal(
                400,
                f"This model's maximum context length is {longest} tokens; the request has "
                f"{len(asked.prompt)} in and asks for {asked.max_tokens} out.",
            )
        if engine.core.refuses():
            return _refusal(500, "EngineCore encountered an issue.", "InternalServerError")
        return _Generation(engine, asked._replace(model=self._model))


def _starting() -> Response:
    return _refusal(503, "The engine is starting.", "ServiceUnavailableError")


def _refusal(status: int, message: str, kind: str = "BadRequestError") -> Response:
    return JSONResponse(wire.error(status, kind, message), status_code=status)


class _Generation(Response):
    """One answer, streamed or whole. A client that goes away aborts its request in the engine."""

    def __init__(self, engine: LiveEngine, asked: Asked) -> None:
        kind = "text/event-stream; charset=utf-8" if asked.stream else "application/json"
        super().__init__(media_type=kind)
        del self.headers["content-length"]
        self._engine = engine
        self._asked = asked
        self._id = f"{'chatcmpl' if asked.endpoint is Endpoint.CHAT else 'cmpl'}-{uuid4().hex}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked, setup = self._asked, self._engine.core.setup
        answer = answers.answer(
            asked.prompt,
            asked.text,
            asked.max_tokens,
            asked.ignore_eos,
            answers.wrong_chance(self._engine.core.profile.wrong, setup),
            answers.lossy_salt(setup),
        )
        now_s = asyncio.get_running_loop().time()
        request = Request(asked.prompt, answer.osl, now_s, answer.ends)
        sending = asyncio.ensure_future(
            self._stream(request, answer, send)
            if asked.stream
            else self._whole(request, answer, send)
        )
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            self._engine.abort(request)
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)

    async def _stream(self, request: Request, answer: Answer, send: Send) -> None:
        frames = Frames(self._id, int(time.time()), self._asked.model, self._asked.endpoint)
        mailbox = self._engine.submit(request, self._asked.max_tokens)
        await send(self._head())
        if opening := frames.opening():
            await send(_part(opening))
        sent = 0
        while sent < answer.osl:
            end = sent + await mailbox.get()
            finish = request.finish if end == answer.osl else None
            await send(_part(frames.tokens(answer.text(sent, end), finish)))
            sent = end
        if self._asked.include_usage:
            await send(_part(frames.usage(Usage(request.isl, sent))))
        await send({"type": "http.response.body", "body": wire.DONE})

    async def _whole(self, request: Request, answer: Answer, send: Send) -> None:
        mailbox = self._engine.submit(request, self._asked.max_tokens)
        got = 0
        while got < answer.osl:
            got += await mailbox.get()
        body = wire.whole(
            self._id,
            int(time.time()),
            self._asked,
            answer.text(0, got),
            answer.ends,
            Usage(request.isl, got),
        )
        await send(self._head())
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    def _head(self) -> Message:
        return {"type": "http.response.start", "status": 200, "headers": self.raw_headers}


def _part(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Marked:
    """Adds the header that says that this is a simulation."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def marking(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-simulated", b"true")]
            await send(message)

        await self._app(scope, receive, marking)
