"""The release, and the form in which it runs."""

from typing import Final

from headrace import model

__version__ = "0.1.0"
IS_COMPILED: Final = not model.__file__.endswith(".py")
"""True if the hot rooms are machine code; an installation without a C compiler leaves them plain Python."""
