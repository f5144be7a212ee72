"""A model's sizes on one of several tensor-parallel ranks: what the benchmark takes its configurations from."""

from __future__ import annotations

from dataclasses import dataclass

from reference.model.config import ModelConfig

BLOCK_SIZE = 128  # slots of a block of the KV cache
MOST_DECODES = 512  # tokens up to which a step is taken for one of decode, in which each belongs to another sequence


@dataclass(frozen=True)
class Shape:
    """Sizes in elements; heads, intermediate: of one rank."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int  # of one expert, where there are experts
    vocab: int
    positions: int  # of the longest sequence
    experts: int  # 0: dense
    top_k: int

    @staticmethod
    def of(name: str, config: ModelConfig, ranks: int = 1) -> Shape:
        sparse = config.num_experts > 0
        intermediate = config.moe_intermediate_size if sparse else config.intermediate_size
        return Shape(
            name if ranks == 1 else f"{name} TP{ranks}",
            config.hidden_size,
            config.num_heads // ranks,
            max(1, config.num_kv_heads // ranks),
            config.head_dim,
            intermediate // ranks,
            config.vocab_size,
            config.max_position_embeddings,
            config.num_experts if sparse else 0,
            config.num_experts_per_token if sparse else 0,
        )

    @property
    def token_stride(self) -> int:
        """Elements from one token to the next where q, k and v are parts of one projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim
