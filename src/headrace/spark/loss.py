"""What happens when messages that were to be read are gone: an error, or reading on behind them. One place for both."""

from headrace.errors import Truncated


def check_loss(is_loss: bool, queue: str, wanted: int, first: int) -> int:
    """Where to read on when `wanted` was to be read next and the queue begins at `first`.

    Raises Truncated when messages in between are gone and that is a loss to whoever reads.
    """
    if wanted >= first:
        return wanted
    if is_loss:
        raise Truncated(
            f"offsets {wanted} to {first - 1} of queue {queue!r} are gone: retention, consumers or a purge took them. "
            f"Start anew from earliest, or set option failOnDataLoss=false to read on at {first}"
        )
    return first
