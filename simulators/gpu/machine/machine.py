"""Running one launch: which threads go on, from where, and until when.

Threads that stand at one instruction and may go on form a group. The group at the lowest pc runs, as far as a branch
that splits it, an instruction at which it must wait, or a label at which another group stands: so threads that parted
come together again without any analysis. A group that goes back in a loop that polls memory waits until no other can
run. Nothing else makes threads converge: an instruction that needs several threads (`.sync`) waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Batch, Threads
from simulators.gpu.chip import Chip
from simulators.gpu.errors import SimulatorError
from simulators.gpu.launch import Launch
from simulators.gpu.machine.late_stores import LateStores
from simulators.gpu.machine.operation import Branch, Exit, IndexedBranch, Meeting, Straight
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
BATCH_THREADS = 1 << 14  # that run together where nothing asks for more: their registers stay in the CPU's cache
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
        self._schedule = schedule or LowestFirst()
        self._noise = noise
        self._resident_blocks = resident_blocks
        self._max_instructions = max_instructions
        self.num_started = 0  # blocks that have begun
        self.polled: dict[int, Access] = {}  # the latest look at what others may change, by the instruction's id
        self.batch: Batch
        self.ready: dict[int, list[Threads]]  # groups that may run, by the pc at which they stand
        self.registers: list[NDArray[Any]]
        self.shared: PerOwner
        self.spaces: Spaces
        self.state: dict[str, Rendezvous]  # of kinds of waiting, by name; as old as the batch

    # -- blocks ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Errors: SimulatorError."""
        with np.errstate(all="ignore"):
            while self.num_started < self.launch.num_blocks:
                self._begin(self._first_blocks())
                self._run_batch()

    def _first_blocks(self) -> int:
        left = self.launch.num_blocks - self.num_started
        if self.launch.is_cooperative:
            return left
        of_cluster = self.launch.cluster_blocks
        wanted = max(1, BATCH_THREADS // (self.launch.block_threads * of_cluster)) * of_cluster
        return min(left, wanted, self._resident_blocks)

    def _begin(self, count: int) -> None:
        self.batch = Batch(self.launch, self._next_blocks(count), self.program.register_types, self._noise)
        self._take_memory()
        self.ready = {}
        self._polling = Polling()
        self._parked: dict[int, list[Threads]] = {}
        self.state = {}
        for watcher in self.watchers:
            watcher.begin(self)
        self.add(0, self.batch.living())

    def _next_blocks(self, count: int) -> NDArray[np.int64]:
        """Blocks of a cluster are neighbours, by rank."""
        numbers = np.arange(self.num_started, self.num_started + count)
        self.num_started += count
        if self.launch.cluster_blocks == 1:
            return numbers
        return blocks_by_cluster(self.launch)[numbers]

    def _take_memory(self) -> None:
        shared_bytes = self.program.static_shared_bytes + self.launch.shared_bytes
        self.shared = PerOwner(self.batch.slots, shared_bytes, self._noise)
        local_owners = self.batch.num_threads if self.program.local_bytes else 0
        local = PerOwner(local_owners, self.program.local_bytes, self._noise)
        self.spaces = Spaces(self.batch, self.memory, self.shared, local, self.launch.parameters)
        self.registers = self.batch.registers

    def admit_more(self) -> bool:
        """Begin more blocks beside those that wait, as far as the chip has room."""
        living = len(np.unique(self.batch.slot[self.batch.alive]))
        room = self._resident_blocks - living
        count = min(self.launch.num_blocks - self.num_started, room) // self.launch.cluster_blocks
        count *= self.launch.cluster_blocks
        if count <= 0:
            return False
        for groups in (self.ready, self._polling.groups, self._parked):
            for pc, parts in groups.items():
                groups[pc] = [self.batch.numbers(part) for part in parts]
        first = self.batch.num_threads
        self.batch.extend(self._next_blocks(count))
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
        if not self._polling.looks_closely:
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
        return self._schedule.hurries()

    def _run_batch(self) -> None:
        while True:
            if self.late_stores is not None:
                self.late_stores.let_out_some()
            if self.ready:
                pc, threads = self._schedule.choose(self, self.ready)
                self._go(pc, threads)
            elif self._polling.groups:
                self._check_limit()
                self.ready = self._polling.look_again(self)
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
        return Deadlock(describe_waits(self, self._polling.groups, self._parked))

    def _check_limit(self) -> None:
        if self.ticks <= self._max_instructions:
            return
        groups = sorted({**self.ready, **self._polling.groups})
        places = [f"{one.place}: {one.text}" for one in (self.program.operations[pc].instruction for pc in groups)]
        raise SimulatorError(
            f"the launch has not ended after {self.ticks} instructions (max_instructions allows "
            f"{self._max_instructions}); threads are at\n" + "\n".join(f"  {place}" for place in places)
        )

    def without(self, threads: Threads, some: Threads) -> Threads:
        """The rest of a set."""
        left = self.batch.count(threads) - self.batch.count(some)
        if left == 0:
            return np.empty(0, np.intp)
        if self.batch.count(some) == 0:
            return threads
        member = np.zeros(self.batch.num_threads, np.bool_)
        member[threads] = True
        member[some] = False
        return np.flatnonzero(member)

    # -- instructions ---------------------------------------------------------------------------------------------

    def _go(self, pc: int, threads: Threads) -> None:
        """Run a group until it splits, waits, ends, or comes to where others stand."""
        operations = self.program.operations
        while pc < len(operations):
            operation = operations[pc]
            after = self._STEPS[type(operation)](self, pc, operation, threads)
            if after is None:
                return
            pc, threads = after
            if self.ready and self._schedule.gives_way(self, pc, self.ready):
                self.add(pc, threads)
                return
        self._end(threads)

    # Each does what a group does that stands at an operation of one kind, and says where the group, or what is left of
    # it, goes on at once: None if it does not.

    def _pass_segment(self, pc: int, operation: Straight, threads: Threads) -> tuple[int, Threads] | None:
        end = self.program.segment_end[pc]
        self._run_segment(pc, end, threads)
        return end, threads

    def _branch(self, pc: int, operation: Branch, threads: Threads) -> tuple[int, Threads] | None:
        self._count(pc, pc + 1, threads)
        taken = self._taken(pc, threads)
        if self.batch.count(taken) == 0:
            return pc + 1, threads
        waits = self._polling.goes_round(self, pc, operation.target, taken)
        if self.batch.count(taken) == self.batch.count(threads):
            if not waits:
                return operation.target, threads
            self._polling.groups.setdefault(operation.target, []).append(threads)
            return None
        rest = self.without(threads, taken)
        for watcher in self.watchers:
            watcher.diverged(self, operation.instruction, taken, rest)
        groups = self._polling.groups if waits else self.ready
        groups.setdefault(operation.target, []).append(taken)
        self.add(pc + 1, rest)
        return None

    def _meet(self, pc: int, operation: Meeting, threads: Threads) -> tuple[int, Threads] | None:
        self._count(pc, pc + 1, threads)
        here = self._taken(pc, threads)
        self.add(pc + 1, self.without(threads, here))
        if self.batch.count(here) == 0:
            return None
        going = operation.meet(self, here)
        return (pc + 1, going) if self.batch.count(going) else None

    def _go_by_index(self, pc: int, operation: IndexedBranch, threads: Threads) -> tuple[int, Threads] | None:
        self._count(pc, pc + 1, threads)
        numbers = self.batch.numbers(self._taken(pc, threads))
        self.add(pc + 1, self.without(threads, numbers))
        index = np.broadcast_to(np.asarray(operation.index(self, numbers)), len(numbers))
        for one in np.unique(index):
            if one >= len(operation.targets):
                raise SimulatorError(f"branch index {one} of {len(operation.targets)}", operation.instruction.place)
            target = operation.targets[int(one)]
            waits = self._polling.goes_round(self, pc, target, numbers)
            groups = self._polling.groups if waits else self.ready
            groups.setdefault(target, []).append(numbers[index == one])
        return None

    def _leave(self, pc: int, operation: Exit, threads: Threads) -> tuple[int, Threads] | None:
        self._count(pc, pc + 1, threads)
        leaving = self._taken(pc, threads)
        self.add(pc + 1, self.without(threads, leaving))
        self._end(leaving)
        return None

    _STEPS: ClassVar[Mapping[type, Callable[..., tuple[int, Threads] | None]]] = {
        Straight: _pass_segment,
        Branch: _branch,
        Meeting: _meet,
        IndexedBranch: _go_by_index,
        Exit: _leave,
    }

    def _run_segment(self, pc: int, end: int, threads: Threads) -> None:
        runs = self.program.runs
        self._count(pc, end, threads)
        for i in range(pc, end):
            runs[i](self, threads)  # type: ignore[misc] # a segment holds straight operations only

    def _count(self, first: int, end: int, threads: Threads) -> None:
        self.ticks += end - first
        self.thread_instructions += (end - first) * self.batch.count(threads)
        for watcher in self.watchers:
            watcher.executed(self, first, end, threads)

    def _taken(self, pc: int, threads: Threads) -> Threads:
        """Those of them whose guard holds."""
        guard = self.program.guards[pc]
        if guard is None:
            return threads
        condition = self.registers[guard.number]
        return self.batch.where(threads, ~condition if guard.is_inverted else condition)

    def _end(self, threads: Threads) -> None:
        if self.batch.count(threads) == 0:
            return
        self.batch.exit(threads)
        self.changes += 1
        # Who waits for a thread that is no more waits for one less.
        for pc in list(self._parked):
            for part in self._parked.pop(pc):
                self.add(pc, part)
        for rendezvous in self.state.values():
            rendezvous.exited(self)

    def fault(self, instruction: Instruction, thread: int, message: str) -> SimulatorError:
        """An error that says where and by whom."""
        return SimulatorError(f"{self.batch.describe(thread)}: {message}: {instruction.text}", instruction.place)


def blocks_by_cluster(launch: Launch) -> NDArray[np.int64]:
    """The numbers of all blocks, cluster after cluster, by rank within each."""
    (gx, gy, gz), (cx, cy, cz) = launch.grid, launch.cluster
    number = np.arange(launch.num_blocks).reshape(gz // cz, cz, gy // cy, cy, gx // cx, cx)
    return number.transpose(0, 2, 4, 1, 3, 5).ravel()
