"""Which release this is, and in which form it runs."""

from typing import Final

from headrace import model

__version__ = "0.1.0"
IS_COMPILED: Final = not model.__file__.endswith(".py")
"""Whether the hot rooms are machine code; without a C compiler at installation they are plain Python."""
