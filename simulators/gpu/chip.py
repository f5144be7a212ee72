"""What a GPU has, as far as a launch depends on it. Source: CUDA C++ Programming Guide, "Compute Capabilities"."""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32  # threads


@dataclass(frozen=True)
class Chip:
    """One GPU. Sizes in bytes."""

    name: str
    capability: tuple[int, int]
    num_sms: int
    threads_per_sm: int = 2048
    blocks_per_sm: int = 32
    registers_per_sm: int = 65536
    shared_per_sm: int = 228 * 1024
    shared_per_block: int = 227 * 1024  # at most, when asked for by attribute
    shared_reserved: int = 1024  # that the system takes of each block's
    threads_per_block: int = 1024
    blocks_per_cluster: int = 16  # beyond 8 only when asked for by attribute
    global_bytes: int = 141 * 10**9
    l2_bytes: int = 60 * 1024 * 1024

    @property
    def arch(self) -> str:
        """The target of PTX that is compiled for this very chip."""
        return f"sm_{self.capability[0]}{self.capability[1]}a"

    def blocks_resident(self, block_threads: int, shared_bytes: int, registers: int = 0) -> int:
        """Blocks that can be on the chip at once. registers: of each thread; 0 if they are not known."""
        warps = -(-block_threads // WARP)
        by_threads = self.threads_per_sm // (warps * WARP)
        by_shared = self.shared_per_sm // (shared_bytes + self.shared_reserved)
        of_each = min(by_threads, by_shared, self.blocks_per_sm)
        if registers:
            # Registers are given to a warp in units of 256.
            of_each = min(of_each, self.registers_per_sm // (-(-registers * WARP // 256) * 256 * warps))
        return of_each * self.num_sms


H200 = Chip("NVIDIA H200", (9, 0), 132)
B200 = Chip("NVIDIA B200", (10, 0), 148, global_bytes=180 * 10**9, l2_bytes=126 * 1024 * 1024)
B300 = Chip("NVIDIA B300", (10, 3), 148, global_bytes=288 * 10**9, l2_bytes=126 * 1024 * 1024)
CHIPS = {chip.arch: chip for chip in (H200, B200, B300)}
