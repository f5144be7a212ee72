"""A compiled kernel: the object that is loaded, the PTX that is simulated and read, and what it takes of a chip.

As bytes it is a checksum, one line of JSON, and the parts one after another.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

_MAGIC = b"diptych kernel 1\n"
_DIGEST_SIZE = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Resources:
    """What a kernel takes, as its cubin and the host code that launches it say."""

    kernel: str  # its symbol
    registers: int  # of each thread
    shared_bytes: int  # of each block: static, and what a launch adds
    local_bytes: int  # of each thread: spilled registers, and arrays that are indexed at run time


@dataclass(frozen=True)
class Artifact:
    """Errors of `decode`: ValueError for bytes that are not a whole artifact."""

    function: str  # the symbol of the host function in `object`
    arch: str
    object: bytes  # host launcher and cubin, as `export_to_c` writes them
    ptx: str
    resources: tuple[Resources, ...]
    compile_seconds: float

    def encode(self) -> bytes:
        ptx = self.ptx.encode()
        head = {
            "function": self.function,
            "arch": self.arch,
            "sizes": [len(self.object), len(ptx)],
            "resources": [asdict(one) for one in self.resources],
            "compile_seconds": self.compile_seconds,
        }
        content = json.dumps(head).encode() + b"\n" + self.object + ptx
        return _MAGIC + hashlib.sha256(content).digest() + content

    @staticmethod
    def decode(data: bytes) -> Artifact:
        if not data.startswith(_MAGIC):
            raise ValueError("it does not begin as a compiled kernel does")
        start = len(_MAGIC) + _DIGEST_SIZE
        content = data[start:]
        if hashlib.sha256(content).digest() != data[len(_MAGIC) : start]:
            raise ValueError("its checksum does not match its content")
        head_line, _, parts = content.partition(b"\n")
        head = json.loads(head_line)
        object_size, ptx_size = head["sizes"]
        return Artifact(
            head["function"],
            head["arch"],
            parts[:object_size],
            parts[object_size : object_size + ptx_size].decode(),
            tuple(Resources(**one) for one in head["resources"]),
            head["compile_seconds"],
        )
