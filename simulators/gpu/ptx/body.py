"""The statements between the braces of a kernel: its instructions, with the names in them resolved.

Source: PTX ISA, sections "Statements", "Control Flow Instructions", "Kernel Function Directives".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from simulators.gpu.errors import PtxSyntaxError
from simulators.gpu.ptx.debug import SourceFiles, skip_file, skip_pragma, skip_section
from simulators.gpu.ptx.declarations import LINKAGE, SPACES, registers, variables
from simulators.gpu.ptx.lexer import Words, is_name
from simulators.gpu.ptx.module import Instruction, Label, NotRegister, Operand, Place, Register, Variable
from simulators.gpu.ptx.operands import operand, predicate
from simulators.gpu.ptx.scopes import Scope

_WITH_LABELS = ("bra", "brx", "call")


@dataclass(frozen=True)
class _Table:
    """A `.branchtargets` list whose labels may yet follow."""

    scope: Scope
    label: str  # unique
    names: tuple[str, ...]
    place: Place


class Body:
    """Reads one kernel's body; the results are in its attributes."""

    def __init__(self, words: Words, files: SourceFiles, outer: Scope) -> None:
        self.instructions: list[Instruction] = []
        self.variables: list[Variable] = []
        self.labels: dict[str, int] = {}  # by their unique names
        self.branch_targets: dict[str, tuple[int, ...]] = {}
        self._words = words
        self._files = files
        self._scope = Scope(outer)
        self._scopes = 0  # inner ones that began
        self._branches: list[tuple[int, Scope]] = []  # indices of instructions whose labels are not resolved
        self._tables: list[_Table] = []
        files.forget()
        self._statements()
        for index, scope in self._branches:
            self.instructions[index] = self._resolved(self.instructions[index], scope)
        for table in self._tables:
            targets = (self._label(table.scope, name, table.place) for name in table.names)
            self.branch_targets[table.label] = tuple(label.target for label in targets)

    def _statements(self) -> None:
        """From the opening brace to the one that closes it."""
        words = self._words
        opened = [words.at]
        words.expect("{")
        outermost = self._scope
        while True:
            word = words.next
            if words.words[words.at + 1] == ":":
                self._place_label()
            elif word[:1] == ".":
                self._directive(word)
            elif word == "{":
                opened.append(words.at)
                words.take()
                self._scopes += 1
                self._scope = Scope(self._scope, suffix=f"@{self._scopes}")
            elif word == "}":
                words.take()
                if self._scope is outermost:
                    return
                opened.pop()
                assert self._scope.outer is not None
                self._scope = self._scope.outer
            elif word == "":
                raise words.expected(f"the '}}' of the '{{' in line {words.line(opened[-1])}")
            elif not words.accept(";"):
                self._instruction()

    def _place_label(self) -> None:
        words, scope = self._words, self._scope
        first = words.at
        name = words.name("a label")
        if name in scope.labels:
            raise words.error(f"the label {name} is placed twice", first)
        words.expect(":")
        scope.labels[name] = len(self.instructions)
        self.labels[name + scope.suffix] = len(self.instructions)
        if words.accept(".branchtargets"):
            names = [words.name("a label")]
            while words.accept(","):
                names.append(words.name("a label"))
            place = self._files.place(words.line(first))
            self._tables.append(_Table(scope, name + scope.suffix, tuple(names), place))
            words.expect(";")
        elif words.next in (".callprototype", ".calltargets"):
            while not words.accept(";"):  # only a call needs it, and what calls is no part of a parser
                if not words.take():
                    raise words.expected("';'")

    def _directive(self, word: str) -> None:
        words = self._words
        if word == ".reg":
            words.take()
            registers(words, self._scope)
        elif word == ".loc":
            self._files.loc(words)
        elif word in SPACES or word in LINKAGE:
            linkage = set()
            while words.next in LINKAGE:
                linkage.add(words.take())
            if words.next not in SPACES:
                raise words.expected("a state space")
            self.variables += variables(words, self._scope, linkage)
        elif word == ".pragma":
            skip_pragma(words)
        elif word == ".file":
            skip_file(words)
        elif word == ".section":
            skip_section(words)
        else:
            raise words.error(f"the directive {word} is not known within a kernel")

    def _instruction(self) -> None:
        words, scope = self._words, self._scope
        first = words.at
        guard: Register | NotRegister | None = None
        if words.accept("@"):
            guard = NotRegister(predicate(words, scope)) if words.accept("!") else predicate(words, scope)
        name = words.next
        opcode, modifiers = _opcode_and_modifiers(name)
        if not ("a" <= opcode[:1] <= "z" and is_name(opcode)):
            raise words.expected("an instruction")
        words.at += 1
        while words.next[:1] == ".":
            modifiers = (*modifiers, words.take()[1:])
        is_label = opcode in _WITH_LABELS
        operands: list[Operand] = []
        if words.next != ";":
            while True:
                operands.append(operand(words, scope, is_label))
                if words.next != ",":
                    break
                words.at += 1
        if words.next != ";":
            raise words.expected("',' or ';'")
        if is_label:
            self._branches.append((len(self.instructions), scope))
        place = self._files.place(words.line(first))
        text = words.written(first, words.at)
        words.at += 1
        self.instructions.append(Instruction(opcode, modifiers, tuple(operands), place, guard, text))

    def _resolved(self, branch: Instruction, scope: Scope) -> Instruction:
        return replace(
            branch,
            operands=tuple(
                self._label(scope, one.name, branch.place) if isinstance(one, Label) else one for one in branch.operands
            ),
        )

    def _label(self, scope: Scope, name: str, place: Place) -> Label:
        found = scope.label(name)
        if found is None:
            raise PtxSyntaxError(f"the label {name} is not placed where it can be reached from here", place)
        return Label(*found)


@lru_cache(maxsize=4096)
def _opcode_and_modifiers(name: str) -> tuple[str, tuple[str, ...]]:
    """`cp.async.bulk.shared::cluster` is "cp" and ("async", "bulk", "shared::cluster")."""
    opcode, *modifiers = name.split(".")
    return opcode, tuple(modifiers)
