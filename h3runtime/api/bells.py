"""What happens in other threads, awaited on the loop without a thread for each who waits.

A `Bell` is one request's; the table of jobs rings it. The `Service` hands them out.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Bell:
    """Made and awaited on one loop, rung from any thread."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def ring(self) -> None:
        # The loop may be gone by now; then nobody listens.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._rung.set)

    async def wait(self, seconds: float | None = None) -> bool:
        """Until it rings, or for so many seconds; whether it rang. It can ring again afterwards."""
        try:
            await asyncio.wait_for(self._rung.wait(), seconds)
        except TimeoutError:
            return False
        self._rung.clear()
        return True
