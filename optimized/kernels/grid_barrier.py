"""A barrier over all blocks of one launch, all of which must be resident (a cooperative launch).

One int32 in global memory is the barrier. Each block adds to it once a barrier: block 0 adds 2^31 - (n - 1), each of
the other n - 1 blocks adds 1. So a barrier adds 2^31 in all: it flips the top bit and leaves the other bits as they
were, 0. A block waits until the top bit differs from what its own addition found.

Why that is right:
- The top bit flips with the last arrival, whichever block that is, and not before: any sum without one of the terms is
  below 2^31.
- The counter needs no reset, neither between barriers nor between launches, and launches may have different numbers of
  blocks: after each barrier the lower bits are 0, and only the change of the top bit counts.
- A block that still waits when others already arrive at the next barrier is not misled: that barrier lacks its
  addition, so the top bit stays.
- What a block wrote before is seen by all after: its threads meet (`sync_threads`) before thread 0 adds with release
  semantics at gpu scope; the additions are one chain of read-modify-writes, so whoever reads its end with acquire
  semantics has synchronized with every block; and thread 0 meets its block's threads again. What was written must be
  read by ordinary loads, not by those of the non-coherent path.

The counter must be 0 when it is first used, and two launches that may run at the same time must not share it. So a
device has a pool of counters, zeroed before anything is launched on it, and `Device.barrier_counter` says which one a
launch takes (`optimized.counters` has the rule):
- A launch that is made now takes the one of the current stream: launches of a stream follow each other. One that is
  let begin before the one before it has ended (programmatic dependent launch) must wait for that end before it comes to
  a barrier. It cannot keep a block of that one from starting: it is let begin by all of that one's blocks, so that all
  are resident, or have ended, by then.
- A launch that is captured into a graph takes one of its own, which no other launch ever gets, captured or not. Replays
  of one graph follow each other, and two graphs share none. It is a graph that was instantiated once, as torch does;
  two instances of one captured graph must not be replayed at once.
- The pool does not grow: when all counters are taken, a RuntimeError says so. The device makes it when it is first
  used; if that is while a graph is captured, a RuntimeError says so too.
A launch that is killed between its barriers may leave a counter that is no longer right: what comes after a failed
launch needs a new process, as it does for CUDA itself.
"""

from __future__ import annotations

import cutlass
from cutlass import cute

_HALF = 2**31


@cute.jit
def grid_barrier(
    mCounter: cute.Tensor,  # i32 [1], see above
    blocks: cutlass.Constexpr,  # of the launch
) -> None:
    """Every thread of every block waits until all have come here; then each sees what any of them wrote before."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.sync_threads()
    if thread == 0:
        arrival = cutlass.Int32(1)
        if block == 0:
            arrival = cutlass.Int32(_HALF - (blocks - 1) if blocks > 1 else -_HALF)
        found = cute.arch.atomic_add(mCounter.iterator, arrival, sem="acq_rel", scope="gpu")
        now = found
        while (now ^ found) >= 0:
            now = cute.arch.load(mCounter.iterator, cutlass.Int32, sem="acquire", scope="gpu")
    cute.arch.sync_threads()
