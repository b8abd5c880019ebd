"""When Python's collector looks for objects that only refer to each other. It stops everybody, so it must look at few.

Messages are freed without it. Objects that survived a look through all of them are set aside: 20,000 queues are a
million objects, and each look at all of these took 250 to 320 ms. Now and then they are looked through all the same,
for what was set aside and is garbage by then.
"""

import gc
from typing import Final, final

from headrace.clock import Clock

_COLLECT_EVERY: Final = (10_000, 2, 625)
"""After how many objects it looks through the youngest, and how often through more of them. Looking every 700 objects
took 5 to 10 % of the time for filling or reading a queue; 10,000 take 2 ms, and three times as many 6 ms. Every 25,000
took as much time altogether, but up to 15 ms of it at once."""
_ASIDE_US: Final = 600 * 1_000_000
"""How long objects are set aside at least."""
_OLDEST: Final = 2


@final
class Aside:
    """Sets objects aside that survived: called by the collector before and after each look."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_us = clock.monotonic_us()

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != _OLDEST:
            return
        if phase == "stop":
            gc.freeze()
        elif self._clock.monotonic_us() >= self._since_us + _ASIDE_US:
            self._since_us = self._clock.monotonic_us()
            gc.unfreeze()


def settle_memory(clock: Clock) -> None:
    """What is there now stays: set it aside, and from now on what comes to it and survives."""
    if not any(isinstance(each, Aside) for each in gc.callbacks):
        gc.callbacks.append(Aside(clock))
    gc.collect()
    gc.set_threshold(*_COLLECT_EVERY)
