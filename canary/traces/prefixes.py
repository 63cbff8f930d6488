"""What a trace's blocks tell: how much a prefix cache could find, and who continued whom. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise, takewhile

from domain.trace import Trace, TracedRequest

# A prompt's last whole block is followed by that prompt's own rest, by the next turn, perhaps by
# another try at that turn. What more blocks follow is a system prompt.
_MOST_FOLLOWERS = 3


def ideal_reuse(trace: Trace, *, from_s: float = 0.0) -> float | None:
    """The share (0–1) of prompt tokens in blocks that an earlier request's prompt began with.

    Requests before ``from_s`` fill the cache and are not counted. ``None`` where the trace has no
    blocks, does not tell lengths, or no request is left.
    """
    if not trace.block_tokens:
        return None
    known: set[int] = set()
    hits = total = 0
    for request in trace.requests:
        found = sum(1 for _ in takewhile(known.__contains__, request.blocks))
        known.update(request.blocks)
        if request.isl is not None and request.offset_s >= from_s:
            hits += min(found * trace.block_tokens, request.isl - 1)
            total += request.isl
    return hits / total if total else None


def with_sessions(trace: Trace) -> Trace:
    """``trace`` with the sessions and turns that its prefixes betray.

    A request continues the conversation whose last prompt it holds wholly, but for that prompt's
    last part of a block; where several match, the longest. Prompts that nothing but a system prompt
    links are conversations of their own. Sessions that the trace names are kept.
    """
    followers: dict[int, set[int]] = defaultdict(set)
    for request in trace.requests:
        for block, after in pairwise(request.blocks):
            followers[block].add(after)
    tips: dict[int, tuple[str, int]] = {}
    known: set[int] = set()
    requests = []
    for number, request in enumerate(trace.requests):
        if request.session is None:
            request = _continued(request, tips, str(number))
        whole = _whole_blocks(request, trace.block_tokens)
        # A prompt that ends inside what others share is nobody's own: many would seem to follow it.
        own = whole and (whole[-1] not in known or request.turn > 0)
        if own and len(followers[whole[-1]]) <= _MOST_FOLLOWERS:
            tips[whole[-1]] = (request.session or "", request.turn)
        known.update(request.blocks)
        requests.append(request)
    return replace(trace, requests=tuple(requests))


def _continued(
    request: TracedRequest, tips: dict[int, tuple[str, int]], fresh: str
) -> TracedRequest:
    """``request`` with its session; the tip it goes on from is used up."""
    for block in reversed(request.blocks):
        if block in tips:
            session, turn = tips.pop(block)
            return replace(request, session=session, turn=turn + 1)
    return replace(request, session=fresh, turn=0)


def _whole_blocks(request: TracedRequest, block_tokens: int) -> tuple[int, ...]:
    if not block_tokens or request.isl is None:
        return request.blocks
    return request.blocks[: request.isl // block_tokens]
