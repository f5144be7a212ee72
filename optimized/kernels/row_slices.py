"""A long row cut into slices, each for one block of threads: how a block's threads share its slice."""

from __future__ import annotations

QUAD = 4  # elements of an access to shared memory, and of a group that shares its random numbers
UNIT = 32  # a slice's length is a multiple of so many elements: of an access, and of a word of a mask


class RowSlices:
    """A kernel over slices of rows. Elements are float32."""

    row_length: int
    vector: int
    threads: int  # of a block
    slice: int  # elements; the last may have fewer

    @property
    def quads(self) -> int:
        """Of each thread, in its part of a slice; some of them may lie beyond its end."""
        return -(-self.slice // (QUAD * self.threads))

    @property
    def vectors(self) -> int:
        """Accesses to memory of each thread, for a slice."""
        return -(-self.slice // (self.vector * self.threads))

    @property
    def batch(self) -> int:
        """Accesses to memory that a thread makes at a time."""
        most = max(1, 20 // self.vector)
        return -(-self.vectors // -(-self.vectors // most))

    @property
    def widest_access(self) -> int:
        return 4 * self.vector

    @property
    def widest_store(self) -> int:
        return 4
