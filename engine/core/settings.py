"""What can be chosen about an engine."""

from __future__ import annotations

from dataclasses import dataclass

from reference.serving.runner import MAX_ROWS


@dataclass(frozen=True)
class EngineSettings:
    """Errors: ValueError that names the setting."""

    max_num_seqs: int = 64  # samples that run at once
    max_num_batched_tokens: int = 1024  # tokens of one step; longer prompts are computed in chunks
    prefix_cache: bool = True  # keep full KV blocks for prompts that begin alike
    overlap: bool = True  # prepare a step while the one before is computed

    def __post_init__(self) -> None:
        if not 1 <= self.max_num_seqs <= MAX_ROWS:
            raise ValueError(f"max_num_seqs is {self.max_num_seqs}; it must lie in [1, {MAX_ROWS}]")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}; with max_num_seqs {self.max_num_seqs} it "
                f"must be at least that, so that every running sample gets a token in every step"
            )
