"""From a PTX text to a module.

What the text declares without ever being data of a kernel is passed over: debug sections, pragmas, declarations of
device functions without a body. A device function with a body is refused; a call is an instruction like any other,
left to who runs it.
Source: PTX ISA, sections "PTX Module Directives", "Kernel Function Directives", "Performance-Tuning Directives".
"""

from __future__ import annotations

import re

from simulators.gpu.ptx.body import Body
from simulators.gpu.ptx.constants import integer
from simulators.gpu.ptx.debug import SourceFiles, skip_file, skip_pragma, skip_section
from simulators.gpu.ptx.declarations import LINKAGE, SPACES, parameters, variables
from simulators.gpu.ptx.lexer import Words
from simulators.gpu.ptx.module import Kernel, Module, Variable
from simulators.gpu.ptx.scopes import Scope

_SIZES = ("reqntid", "maxntid", "reqnctapercluster")  # of up to three dimensions; those not told are 1
_NUMBERS = ("minnctapersm", "maxnctapersm", "maxnreg", "maxclusterrank")
_FLAGS = ("explicitcluster", "blocksareclusters", "noreturn")
_VERSION = re.compile(r"[0-9]+\.[0-9]+")


def parse(text: str) -> Module:
    """The module that a PTX text describes.

    Raises PtxSyntaxError, with the line, for what is no PTX and for what this parser refuses. Whether instructions and
    their operands make sense together is not checked.
    """
    return _Parser(text).module()


class _Parser:
    def __init__(self, text: str) -> None:
        self._words = Words(text)
        self._files = SourceFiles(self._words)
        self._scope = Scope()
        self._kernels: dict[str, Kernel] = {}
        self._variables: list[Variable] = []

    def module(self) -> Module:
        words = self._words
        words.expect(".version")
        version = words.next
        if not _VERSION.fullmatch(version):
            raise words.expected("a version such as 8.8")
        words.take()
        words.expect(".target")
        target = words.name("a target such as sm_90a")
        while words.accept(","):
            words.name("an option of the target")
        while words.next:
            self._directive(words.next)
        return Module(version, target, self._kernels, tuple(self._variables))

    def _directive(self, word: str) -> None:
        words = self._words
        if word == ".address_size":
            words.take()
            if not words.accept("64"):
                raise words.error("only addresses of 64 bits are supported")
        elif word == ".file":
            skip_file(words)
        elif word == ".loc":
            self._files.loc(words)
        elif word == ".pragma":
            skip_pragma(words)
        elif word == ".section":
            skip_section(words)
        else:
            self._linked()

    def _linked(self) -> None:
        """A kernel, a function or variables of the module."""
        words = self._words
        linkage = set()
        while words.next in LINKAGE:
            linkage.add(words.take())
        if words.accept(".entry"):
            self._kernel()
        elif words.accept(".func"):
            self._function()
        elif words.next in SPACES and words.next != ".param":
            self._variables += variables(words, self._scope, linkage)
        else:
            raise words.expected("a directive of a module")

    def _kernel(self) -> None:
        words = self._words
        first = words.at
        name = words.name("a kernel's name")
        if name in self._kernels:
            raise words.error(f"the kernel {name} is declared already", first)
        scope = Scope(self._scope)
        declared = parameters(words, scope) if words.accept("(") else ()
        directives = self._tuning()
        if words.accept(";"):
            return  # its body follows elsewhere
        body = Body(words, self._files, scope)
        self._kernels[name] = Kernel(
            name,
            declared,
            tuple(body.instructions),
            tuple(body.variables),
            directives,
            body.labels,
            body.branch_targets,
        )

    def _tuning(self) -> dict[str, tuple[int, ...]]:
        """The directives between a kernel's parameters and its body."""
        words = self._words
        found: dict[str, tuple[int, ...]] = {}
        while words.next[:1] == ".":
            key = words.next[1:]
            if key == "pragma":
                skip_pragma(words)
                continue
            if key not in (*_SIZES, *_NUMBERS, *_FLAGS):
                raise words.error(f"the directive .{key} of a kernel is not known")
            words.take()
            values = [] if key in _FLAGS else [integer(words, "a number")]
            if key in _SIZES:
                while len(values) < 3 and words.accept(","):
                    values.append(integer(words, "a number"))
                values += [1] * (3 - len(values))
            found[key] = tuple(values)
        return found

    def _function(self) -> None:
        """`.func (.param .b32 result) name (.param .b64 a);` makes its name known."""
        words = self._words
        first = words.at
        if words.accept("("):
            self._skip_to(")")
        name = words.name("a function's name")
        if words.accept("("):
            self._skip_to(")")
        self._tuning()
        if words.next == "{":
            raise words.error(f"the device function {name} has a body, which is not supported", first)
        words.expect(";")
        self._scope.declare_symbol(name)

    def _skip_to(self, end: str) -> None:
        words = self._words
        while not words.accept(end):
            if not words.take():
                raise words.expected(f"{end!r}")
