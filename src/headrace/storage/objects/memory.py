"""What the library leaves behind in the C library's allocator, given back to the system. Nothing of ours is in here.

The library's threads allocate and free the blocks of tables by the megabyte. glibc keeps what is freed, in an arena
for every few threads: over two million messages that came to 130 MB beside 55 MB in use.
"""

import contextlib
import ctypes
from typing import Any, Final

_M_ARENA_MAX: Final = -8
_ARENAS: Final = 2

_allocator: Final[Any] = ctypes.CDLL(None)


def use_few_arenas() -> None:
    """Have all threads share a few arenas. To be called before there are threads."""
    with contextlib.suppress(AttributeError):  # another C library has none
        _allocator.mallopt(_M_ARENA_MAX, _ARENAS)


def give_back() -> None:
    """Give what is free back to the system; takes some milliseconds."""
    with contextlib.suppress(AttributeError):
        _allocator.malloc_trim(0)
