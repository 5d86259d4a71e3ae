"""Results that cost much to make, least recently used out first, bounded by bytes.

Knows neither what it keeps nor how large that is: `size_of` says. Shared results must not be written to. Not
thread-safe: one engine, one thread. Fed and read by the engine, once for prompts (`prompt_cache`) and once for media.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedCache(Generic[Key, Value]):
    """`bytes` never exceeds `max_bytes`; a value larger than that is not kept. `hits` and `misses` count `get`."""

    def __init__(self, max_bytes: int, size_of: Callable[[Value], int]) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self._size_of = size_of
        self._entries: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        value = self._entries.get(key)
        if value is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        return value

    def put(self, key: Key, value: Value) -> None:
        replaced = self._entries.pop(key, None)
        if replaced is not None:
            self.bytes -= self._size_of(replaced)
        if self._size_of(value) > self.max_bytes:
            return
        self._entries[key] = value
        self.bytes += self._size_of(value)
        while self.bytes > self.max_bytes:
            _, dropped = self._entries.popitem(last=False)
            self.bytes -= self._size_of(dropped)

    def clear(self) -> None:
        self._entries.clear()
        self.bytes = 0
