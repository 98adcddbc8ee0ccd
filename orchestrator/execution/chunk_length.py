"""The length of a chunk: a fixed number of batches, or about ten seconds at the measured pace."""

from orchestrator.config.schema import AUTO_CHUNK

SECONDS = 10.0
"""The length of a chunk in seconds, which a lost process costs at most."""
_FIRST = 1
_GROWTH = 8
_TOLERANCE = 1.4


class ChunkLength:
    """The number of batches of the next chunk, on which no result depends: the protocol learns batch by batch.

    The first chunk of a process is one batch, so that the screen soon shows progress; each later one is at most
    eight times as long as the one before, since the first batches of a process are slower than the rest. A length that
    is right within a factor of 1.4 is kept: the stream actor fetches as many batches ahead.

    Args:
        chunk: a number of batches, or `auto`.
    """

    def __init__(self, chunk: int | str) -> None:
        self._adapts = chunk == AUTO_CHUNK
        self.batches = _FIRST if isinstance(chunk, str) else chunk

    def measured(self, batches: int, seconds: float) -> None:
        """Adapt to the duration of a chunk.

        >>> length = ChunkLength("auto")
        >>> length.measured(1, 0.5)
        >>> length.batches
        8
        >>> length.measured(8, 0.4)
        >>> length.batches
        64
        >>> length.measured(64, 3.2)
        >>> length.batches
        200
        """
        if not self._adapts or batches < 1:
            return
        target = SECONDS * batches / max(seconds, 1e-9)
        if target < self.batches / _TOLERANCE or target > self.batches * _TOLERANCE:
            self.batches = max(1, int(min(target, _GROWTH * self.batches)))
