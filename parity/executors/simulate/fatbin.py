"""The cubin within machine code that host code loads."""

from __future__ import annotations

import ctypes

from parity.executors.simulate.cuda import Code, CudaError, FatbinEntry, FatbinHeader

_HEADER, _ENTRY = ctypes.sizeof(FatbinHeader), ctypes.sizeof(FatbinEntry)


def cubin_at(address: int) -> bytes:
    """That of the first entry. Errors: CudaError for anything that is not a plain cubin in a fatbin."""
    header = FatbinHeader.from_buffer_copy(ctypes.string_at(address, _HEADER))
    if header.magic != FatbinHeader.MAGIC:
        raise CudaError(
            Code.cudaErrorInvalidKernelImage, f"machine code begins with {header.magic:#x}; it is no fatbin"
        )
    entry = FatbinEntry.from_buffer_copy(ctypes.string_at(address + _HEADER, _ENTRY))
    cubin = ctypes.string_at(address + _HEADER + entry.header_size, entry.size)
    if not cubin.startswith(b"\x7fELF"):
        raise CudaError(Code.cudaErrorInvalidKernelImage, "the first entry of a fatbin is compressed, or no cubin")
    return cubin
