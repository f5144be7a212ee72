"""Answers in a given language: JSON of a schema, a regular expression, a grammar, calls of tools.

    GrammarCompiler   source (schema, regex, ...) -> Constraint       compiler.py, from what schema.py lets through
                      a hostile source fails in a process of its own  trial.py
    Grammar           a Constraint; its states know what may follow   grammar.py
    tool_calls        the language of calls of given tools            tool_calls.py
    calls_in_text     a Constraint for such calls in free text        calls_in_text.py
    after_reasoning   a Constraint that begins after a thought        reasoning.py
    Spelled           keeps their tags from other tokens              spelled.py

The work is done by the library llguidance: an Earley parser over the bytes of tokens, with a lexer of derivatives.
A special token is no text: no string of a JSON answer can hold one, only a grammar that names it.
"""

from engine.grammar.calls_in_text import calls_in_text
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.reasoning import after_reasoning
from engine.grammar.tool_calls import tool_calls

__all__ = ["GrammarCompiler", "after_reasoning", "calls_in_text", "tool_calls"]
