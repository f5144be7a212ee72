"""Running one launch: which blocks are there, which threads may go on, and until when.

Threads that stand at one instruction and may go on form a group (`groups` says what one does). The group at the lowest
pc runs, as far as a branch that splits it, an instruction at which it must wait, or a label at which another group
stands: so threads that parted come together again without any analysis. A group that goes back in a loop that polls
memory waits until no other can run. Nothing else makes threads converge: an instruction that needs several threads
(`.sync`) waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import NONE, Batch, Threads
from simulators.gpu.chip import Chip
from simulators.gpu.errors import SimulatorError
from simulators.gpu.launch import Launch
from simulators.gpu.machine.block_queue import BlockQueue
from simulators.gpu.machine.groups import go
from simulators.gpu.machine.late_stores import LateStores
from simulators.gpu.machine.operation import Meeting
from simulators.gpu.machine.polling import Polling
from simulators.gpu.machine.program import Program
from simulators.gpu.machine.schedule import LowestFirst, Schedule
from simulators.gpu.machine.waiting import Deadlock, Rendezvous, describe_waits
from simulators.gpu.memory.buffer import Buffer, Indices
from simulators.gpu.memory.global_memory import GlobalMemory
from simulators.gpu.memory.spaces import PerOwner, Spaces
from simulators.gpu.ptx.module import Instruction
from simulators.gpu.watch import Access, Watcher

R = TypeVar("R", bound=Rendezvous)
MAX_INSTRUCTIONS = 10**9  # of a launch, whatever number of threads executes each


class Machine:
    """A chip while it runs one launch."""

    def __init__(
        self,
        chip: Chip,
        memory: GlobalMemory,
        program: Program,
        launch: Launch,
        *,
        resident_blocks: int,
        num_launches: int = 0,
        schedule: Schedule | None = None,
        late_stores: LateStores | None = None,
        noise: np.random.Generator | None = None,
        watchers: Sequence[Watcher] = (),
        max_instructions: int = MAX_INSTRUCTIONS,
    ) -> None:
        self.chip = chip
        self.memory = memory
        self.program = program
        self.launch = launch
        self.num_launches = num_launches
        self.watchers = tuple(watchers)
        self.ticks = 0  # instructions, whatever number of threads executed each
        self.thread_instructions = 0
        self.changes = 0  # of memory and of who waits: while there are none, who polls finds nothing new
        self.late_stores = late_stores
        if late_stores is not None:
            late_stores.write = self.write
        self.schedule = schedule or LowestFirst()
        self.blocks = BlockQueue(launch, resident_blocks)
        self._noise = noise
        self._max_instructions = max_instructions
        self.polled: dict[int, Access] = {}  # the latest look at what others may change, by the instruction's id
        self.batch: Batch
        self.ready: dict[int, list[Threads]]  # groups that may run, by the pc at which they stand
        self.polling: Polling
        self.registers: list[NDArray[Any]]
        self.shared: PerOwner
        self.spaces: Spaces
        self.state: dict[str, Rendezvous]  # of kinds of waiting, by name; as old as the batch

    # -- blocks ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Errors: SimulatorError."""
        with np.errstate(all="ignore"):
            while self.blocks.num_left:
                self._begin(self.blocks.first())
                self._run_batch()

    def _begin(self, numbers: NDArray[np.int64]) -> None:
        self.batch = Batch(self.launch, numbers, self.program.register_types, self._noise)
        self._take_memory()
        self.ready = {}
        self.polling = Polling()
        self._parked: dict[int, list[Threads]] = {}
        self.state = {}
        for watcher in self.watchers:
            watcher.begin(self)
        self.add(0, self.batch.living())

    def _take_memory(self) -> None:
        shared_bytes = self.program.static_shared_bytes + self.launch.shared_bytes
        local_bytes, keeps_track = self.program.local_bytes, bool(self.watchers)
        self.shared = PerOwner(self.batch.slots, shared_bytes, self._noise, keeps_track=keeps_track)
        local_owners = self.batch.num_threads if local_bytes else 0
        local = PerOwner(local_owners, local_bytes, self._noise, keeps_track=keeps_track)
        self.spaces = Spaces(self.batch, self.memory, self.shared, local, self.launch.parameters)
        self.registers = self.batch.registers

    def admit_more(self) -> bool:
        """Begin more blocks beside those that wait, as far as the chip has room."""
        numbers = self.blocks.more(beside=int(np.count_nonzero(~self.batch.ended)))
        if not len(numbers):
            return False
        for groups in (self.ready, self.polling.groups, self._parked):
            for pc, parts in groups.items():
                groups[pc] = [self.batch.numbers(part) for part in parts]
        first = self.batch.num_threads
        self.batch.extend(numbers)
        self.spaces.extend(self.batch)
        self.registers = self.batch.registers
        for watcher in self.watchers:
            watcher.extend(self)
        new = np.arange(first, self.batch.num_threads)
        self.add(0, new[self.batch.alive[first:]])
        return True

    # -- groups ---------------------------------------------------------------------------------------------------

    def add(self, pc: int, threads: Threads) -> None:
        """They may go on from there."""
        if self.batch.count(threads):
            self.ready.setdefault(pc, []).append(threads)

    def resume(self, threads: NDArray[np.intp]) -> None:
        """Threads that waited, each at its `batch.pc`, go on after it."""
        self.changes += 1
        places = self.batch.pc[threads]
        for pc in np.unique(places):
            self.add(int(pc) + 1, threads[places == pc])

    def write(self, buffer: Buffer, offsets: Indices, values: tuple[NDArray[Any], ...], width: int) -> None:
        """Stores that others see from now on."""
        if not self.polling.looks_closely:
            self.changes += 1
            buffer.scatter(offsets, values, width)
            return
        before = buffer.gather(offsets, width, len(values))
        buffer.scatter(offsets, values, width)
        after = buffer.gather(offsets, width, len(values))
        self.changes += any(not np.array_equal(*pair) for pair in zip(before, after, strict=True))

    def park(self, pc: int, threads: NDArray[np.intp]) -> None:
        """They wait for others to come to this instruction, which must take them up again by `unpark`."""
        self._parked.setdefault(pc, []).append(threads)

    def unpark(self, pc: int) -> list[Threads]:
        return self._parked.pop(pc, [])

    def rendezvous(self, name: str, make: Callable[[], R]) -> R:
        """Where threads of the resident blocks meet, made when the first ones come."""
        if name not in self.state:
            self.state[name] = make()
        return self.state[name]  # type: ignore[return-value] # each name is used with one kind

    def hurries(self) -> bool:
        """Is an asynchronous copy done when it is asked for, or not before something waits for it?"""
        return self.schedule.hurries()

    def _run_batch(self) -> None:
        while True:
            if self.late_stores is not None:
                self.late_stores.let_out_some()
            if self.ready:
                pc, threads = self.schedule.choose(self, self.ready)
                go(self, pc, threads)
            elif self.polling.groups:
                self._check_limit()
                self.ready = self.polling.look_again(self)
            elif self.batch.num_alive == 0:
                break
            elif not self.admit_more():
                raise self.deadlock()
        if self.late_stores is not None:
            self.late_stores.let_out_all()
        for watcher in self.watchers:
            watcher.end(self)

    def deadlock(self) -> Deadlock:
        """Nobody can go on."""
        return Deadlock(describe_waits(self, self.polling.groups, self._parked))

    def _check_limit(self) -> None:
        if self.ticks <= self._max_instructions:
            return
        groups = sorted({**self.ready, **self.polling.groups})
        places = [f"{one.place}: {one.text}" for one in (self.program.operations[pc].instruction for pc in groups)]
        raise SimulatorError(
            f"the launch has not ended after {self.ticks} instructions (max_instructions allows "
            f"{self._max_instructions}); threads are at\n" + "\n".join(f"  {place}" for place in places)
        )

    def end(self, threads: Threads) -> None:
        """They are no more: who waits for them waits for fewer."""
        if self.batch.count(threads) == 0:
            return
        self.batch.exit(threads)
        self.changes += 1
        for pc in list(self._parked):
            operation = self.program.operations[pc]
            assert isinstance(operation, Meeting)
            self.add(pc + 1, operation.meet(self, NONE))
        for rendezvous in self.state.values():
            rendezvous.exited(self)

    def fault(self, instruction: Instruction, thread: int, message: str) -> SimulatorError:
        """An error that says where and by whom."""
        return SimulatorError(f"{self.batch.describe(thread)}: {message}: {instruction.text}", instruction.place)
