"""What a kernel takes of a chip, read from its cubin: an ELF file whose `.nv.info` sections say it.

A section `.nv.info` is a list of attributes: format (1 byte), id (1 byte), then a value of 2 bytes, or its size in
2 bytes and the value. Those of size 8 name a symbol and a number. A section `.nv.shared.KERNEL` has the size of the
kernel's static shared memory; from sm_90 on, the 1 KiB that the system takes of each block lies before it and is
counted, which a section `.nv.shared.reserved.0` tells. Source: the layout that `cuobjdump -elf` prints, beside what
`ptxas -v` says.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from optimized.compile.artifact import Resources

_SIZED = 4  # the format whose value has a size of its own
_SYSTEM_SHARED = 1024  # bytes
_FRAME_SIZE, _REGISTERS = 0x11, 0x2F  # ids: bytes of local memory a thread, registers a thread


@dataclass(frozen=True)
class _Section:
    name: str
    content: bytes
    size: int


def resources_of(cubin: bytes) -> tuple[Resources, ...]:
    """One entry a kernel. Errors: ValueError for bytes that are no cubin."""
    sections = _sections(cubin)
    symbols = _symbols(sections)
    registers: dict[int, int] = {}
    local: dict[int, int] = {}
    for attribute, symbol, value in _attributes(sections[".nv.info"].content):
        if attribute == _REGISTERS:
            registers[symbol] = value
        elif attribute == _FRAME_SIZE:
            local[symbol] = value
    kernels = {index: symbols[index] for index in registers if f".text.{symbols[index]}" in sections}
    system = _SYSTEM_SHARED if ".nv.shared.reserved.0" in sections else 0

    def shared(name: str) -> int:
        section = sections.get(f".nv.shared.{name}")
        return 0 if section is None else section.size - system

    return tuple(
        Resources(name, registers[index], shared(name), local.get(index, 0))
        for index, name in sorted(kernels.items(), key=lambda kernel: kernel[1])
    )


def _sections(elf: bytes) -> dict[str, _Section]:
    if elf[:5] != b"\x7fELF\x02":
        raise ValueError("a cubin is an ELF file of 64 bits; this is none")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + number * entry_size) for number in range(count)]
    names = headers[names_index][4]

    def section(header: tuple[int, ...]) -> _Section:
        name, kind, _, _, offset, size = header
        start = names + name
        has_no_content = 8  # SHT_NOBITS
        content = b"" if kind == has_no_content else elf[offset : offset + size]
        return _Section(elf[start : elf.index(b"\0", start)].decode(), content, size)

    return {one.name: one for one in map(section, headers)}


def _symbols(sections: dict[str, _Section]) -> list[str]:
    table, names = sections[".symtab"].content, sections[".strtab"].content
    starts = [start for (start,) in (struct.unpack_from("<I", table, at) for at in range(0, len(table), 24))]
    return [names[start : names.index(b"\0", start)].decode() for start in starts]


def _attributes(info: bytes) -> Iterator[tuple[int, int, int]]:
    """(id, symbol, value) of the attributes that are of a symbol."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _SIZED:
            if size == 8:
                yield attribute, *struct.unpack_from("<II", info, at)
            at += size
