"""Token embedding: one row of a table for each token.

    out[t] = table[token_ids[t]]

Rounding: none, rows are copied bit for bit. transformers does the same (`torch.nn.Embedding`).
"""

from __future__ import annotations

from reference.formats import Array


def embedding(
    token_ids: Array,  # i32 [T]
    table: Array,  # [V, H]
) -> Array:  # [T, H], the table's dtype
    """Look up rows. Every id must be in 0 .. V-1: a traced program has no way to complain about another."""
    xp = table.__array_namespace__()
    return xp.take(table, token_ids, axis=0)
