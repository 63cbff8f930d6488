"""Iteration-level continuous batching, as vLLM's scheduler does it: no sockets, no clock.

Each iteration serves running requests first (one token and the drafts, or a chunk of prompt), then
admits waiting ones, within a budget of tokens, of sequences and of KV blocks. Where blocks run out
the youngest running request is preempted and computes its tokens anew. Times are arguments, in
seconds of the caller's clock; randomness is the seed's. One caller at a time.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from domain.study import EngineCounters
from serving.simulator.blocks import Blocks, chain
from serving.simulator.performance import Work
from serving.simulator.setup import Setup


class Finish(Enum):
    """Why a request ended, in vLLM's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Request:
    """One request on its way through the engine; only the Scheduler changes it.

    It ends after ``osl`` tokens with the reason ``ends``; ``finish`` is ``None`` until then.
    """

    __slots__ = (
        "arrived_s", "cached", "capacity", "ends", "finish", "first_s", "generated", "keys",
        "last_s", "length", "osl", "preemptions", "private", "prompt", "scheduled_s", "shared",
        "to_compute",
    )  # fmt: skip

    def __init__(
        self, prompt: Sequence[int], osl: int, arrived_s: float, ends: Finish = Finish.LENGTH
    ) -> None:
        self.prompt = prompt
        self.osl = osl
        self.arrived_s = arrived_s
        self.ends = ends
        self.finish: Finish | None = None
        self.scheduled_s: float | None = None
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.generated = 0
        self.preemptions = 0
        self.cached = 0
        self.length = 0
        self.to_compute = 0
        self.capacity = 0
        self.keys: tuple[int, ...] = ()
        self.shared: list[int] = []
        self.private = 0

    @property
    def isl(self) -> int:
        return len(self.prompt)


class Chunk(NamedTuple):
    """Tokens of one request's prompt that an iteration computes."""

    request: Request
    tokens: int


class Batch(NamedTuple):
    """One iteration: who decodes, who prefills, and the sums that its duration depends on."""

    decodes: list[Request]
    chunks: list[Chunk]
    work: Work


class Advance(NamedTuple):
    """Tokens that one request got; ``since_s`` after its previous ones, ``None`` for the first."""

    request: Request
    tokens: int
    since_s: float | None


class Scheduler:
    """``thresholds`` are the probabilities, rising, that at least k, …, 1 drafts are accepted."""

    def __init__(
        self, setup: Setup, blocks: int, block_tokens: int, thresholds: Sequence[float], seed: int
    ) -> None:
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.blocks = Blocks(blocks)
        self.accepted_by_position = [0] * len(thresholds)
        self._setup = setup
        self._block_tokens = block_tokens
        self._thresholds = thresholds
        self._random = random.Random(seed)
        self.requests = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.drafts = 0
        self.preemptions = 0

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        if self._setup.prefix_caching:
            request.keys = chain(request.prompt, self._block_tokens)
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """End a request early; nothing happens where it has ended."""
        if request.finish is not None:
            return
        request.finish = Finish.ABORT
        self._release(request)
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)

    def plan(self, now_s: float) -> Batch:
        """Choose the next iteration's work; it may admit and preempt requests."""
        decodes: list[Request] = []
        chunks: list[Chunk] = []
        budget = self._setup.max_num_batched_tokens
        width = 1 + self._setup.drafts
        context = 0
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            if request.to_compute:
                chunks.append(Chunk(request, min(request.to_compute, budget)))
                budget -= chunks[-1].tokens
            elif budget < width:
                break
            else:
                if request.length + width > request.capacity and not self._grow(request, width):
                    self._preempt()
                    continue
                decodes.append(request)
                context += request.length
                budget -= width
            index += 1
        self._admit(chunks, budget, now_s)
        tokens = sum(chunk.tokens for chunk in chunks)
        return Batch(decodes, chunks, Work(len(decodes), len(chunks), tokens, context))

    def _grow(self, request: Request, width: int) -> bool:
        needed = -(-(request.length + width - request.capacity) // self._block_tokens)
        if not self.blocks.take((), needed):
            return False
        request.private += needed
        request.capacity += needed * self._block_tokens
        return True

    def _preempt(self) -> None:
        """Put the youngest running request back in front of the queue, to compute all anew."""
        victim = self.running.pop()
        self._release(victim)
        victim.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(victim)

    def _admit(self, chunks: list[Chunk], budget: int, now_s: float) -> None:
        while self.waiting and budget > 0 and len(self.running) < self._setup.max_num_seqs:
            request = self.waiting[0]
            total = request.isl + request.generated
            # The last token is computed in any case: its output is the next token.
            hits = self.blocks.leading(request.keys[: (total - 1) // self._block_tokens])
            needed = -(-total // self._block_tokens)
            if not self.blocks.take(request.keys[:hits], needed - hits):
                return
            self.waiting.popleft()
            self.running.append(request)
            request.shared = list(request.keys[:hits])
            request.private = needed - hits
            request.capacity = needed * self._block_tokens
            request.length = hits * self._block_tokens
            request.to_compute = total - request.length
            if request.scheduled_s is None:
                request.scheduled_s = now_s
                request.cached = request.length
                if self._setup.prefix_caching:
                    self.prefix_queries += request.isl
                    self.prefix_hits += request.length
            chunks.append(Chunk(request, min(request.to_compute, budget)))
            budget -= chunks[-1].tokens

    def complete(self, batch: Batch, now_s: float) -> list[Advance]:
        """Book what a planned iteration has computed by ``now_s``; ended requests leave."""
        advances: list[Advance] = []
        ended = False
        thresholds, drafts, draw = self._thresholds, self._setup.drafts, self._random.random
        for request in batch.decodes:
            if request.finish is not None:
                continue
            tokens = 1
            if drafts:
                accepted = drafts - bisect_right(thresholds, draw())
                self.drafts += 1
                tokens += accepted
                for position in range(accepted):
                    self.accepted_by_position[position] += 1
            request.length += tokens
            ended |= self._advance(request, tokens, now_s, advances)
        for request, tokens in batch.chunks:
            if request.finish is not None:
                continue
            request.to_compute -= tokens
            request.length += tokens
            self._publish(request)
            if not request.to_compute:
                if request.first_s is None:
                    self.prompt_tokens += request.isl
                ended |= self._advance(request, 1, now_s, advances)
        if ended:
            self.running = [request for request in self.running if request.finish is None]
        return advances

    def _advance(
        self, request: Request, tokens: int, now_s: float, advances: list[Advance]
    ) -> bool:
        """Give a request its tokens; True when they were its last."""
        tokens = min(tokens, request.osl - request.generated)
        request.generated += tokens
        self.generation_tokens += tokens
        since_s = None if request.last_s is None else now_s - request.last_s
        if request.first_s is None:
            request.first_s = now_s
        request.last_s = now_s
        advances.append(Advance(request, tokens, since_s))
        if request.generated < request.osl:
            return False
        request.finish = request.ends
        self.requests += 1
        self._release(request)
        return True

    def _publish(self, request: Request) -> None:
        """Offer the prompt's blocks that are now computed to later requests."""
        for key in request.keys[len(request.shared) : request.length // self._block_tokens]:
            if not self.blocks.publish(key):
                return
            request.shared.append(key)
            request.private -= 1

    def _release(self, request: Request) -> None:
        self.blocks.release(request.shared, request.private)
        request.shared, request.private, request.capacity = [], 0, 0
        request.length = request.to_compute = 0

    def counters(self) -> EngineCounters:
        """All counts since the start; those of a feature that is off are ``None``."""
        caching, drafting = self._setup.prefix_caching, self._setup.drafts > 0
        return EngineCounters(
            requests=self.requests,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            prefix_queries=self.prefix_queries if caching else None,
            prefix_hits=self.prefix_hits if caching else None,
            draft_tokens=self.drafts * self._setup.drafts if drafting else None,
            accepted_tokens=sum(self.accepted_by_position) if drafting else None,
            preemptions=self.preemptions,
        )
