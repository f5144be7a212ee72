"""What a kernel of this panel is: a frozen dataclass whose fields are its compile-time constants.

    @dataclass(frozen=True)
    class RmsNorm(Kernel):
        hidden_size: int
        ...
        def arguments(self): ...                # fake tensors: what it may be called with
        @cute.jit
        def __call__(self, mX, ..., stream): ...  # host code: the grid
        @cute.kernel
        def kernel(self, mX, ...): ...          # device code

Fields are what JSON holds (numbers, text, booleans), so that they can be a key. Everything else is decided by a launch.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Kernel(ABC):
    """One kernel, specialized by its constants."""

    @abstractmethod
    def arguments(self) -> tuple[Any, ...]:
        """Fake tensors for what it is called with, in order, without the stream."""

    @abstractmethod
    def __call__(self, *arguments: Any) -> None:
        """Host code, compiled: launches with the tensors and, last, the stream."""

    @property
    def widest_access(self) -> int:
        """Bytes of the widest global load that its PTX must hold, and of the widest store; 0 promises none."""
        return 0

    @property
    def widest_store(self) -> int:
        """Where what is stored is narrower than what is loaded."""
        return self.widest_access

    @property
    def waiting_blocks(self) -> int:
        """Blocks that wait for each other, so that all must be resident at once; 0 if none waits."""
        return 0

    @property
    def is_cooperative(self) -> bool:
        return self.waiting_blocks > 0

    @property
    def constants(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def symbol(self) -> str:
        """A C name that no other constants share: two widths of one kernel may live in one process."""
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()
        digest = hashlib.sha256(json.dumps(self.constants, sort_keys=True).encode()).hexdigest()
        return f"diptych_{name}_{digest[:16]}"
