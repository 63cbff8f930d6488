"""The KV cache's blocks: how many are taken, and which hold a prefix that others may share.

Only prompts are shared; blocks of generated tokens are not. Blocks have no identity here: a count
of private ones and a table of shared ones are enough to know when the cache is full. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


def chain(tokens: Sequence[int], block_tokens: int) -> tuple[int, ...]:
    """A key for each full block of ``tokens`` that also stands for all blocks before it."""
    keys = []
    key = 0
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        key = hash((key, *tokens[end - block_tokens : end]))
        keys.append(key)
    return tuple(keys)


class Blocks:
    """``used`` counts blocks that a request holds; ``_idle`` keeps, least recently used first,
    those that only a later request with the same prefix would want. The two never exceed
    ``capacity``."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._holders: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def usage(self) -> float:
        """Share of the cache that requests hold, 0–1."""
        return self.used / self.capacity if self.capacity else 0.0

    def leading(self, keys: Sequence[int]) -> int:
        """How many of ``keys``, from the first on, are in the cache."""
        for hits, key in enumerate(keys):
            if key not in self._holders and key not in self._idle:
                return hits
        return len(keys)

    def take(self, shared: Sequence[int], private: int) -> bool:
        """Hold ``shared`` blocks, which are in the cache, and ``private`` new ones; all or none."""
        revived = sum(key in self._idle for key in shared)
        if self.used + revived + private > self.capacity:
            return False
        for key in shared:
            if key in self._idle:
                del self._idle[key]
                self.used += 1
            self._holders[key] = self._holders.get(key, 0) + 1
        self.used += private
        while self.used + len(self._idle) > self.capacity:
            self._idle.popitem(last=False)
        return True

    def publish(self, key: int) -> bool:
        """Make one private block shareable; False where the same content is shared already."""
        if key in self._holders or key in self._idle:
            return False
        self._holders[key] = 1
        return True

    def release(self, shared: Sequence[int], private: int) -> None:
        """Give blocks back; shared ones stay for later until their place is needed."""
        self.used -= private
        for key in reversed(shared):
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key]
                self._idle[key] = None
                self.used -= 1

    def forget(self) -> bool:
        """Drop every shared prefix; False, and nothing done, while a request holds one."""
        if self._holders:
            return False
        self._idle.clear()
        return True
