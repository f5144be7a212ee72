"""The one seam between an engine and a panel: batches go in, sampled tokens come out. Declarations only: no JAX.

    engine                                   runner
    scheduler, block ids, text   --Batch-->  model, KV memory, sampling
                                 <--StepOutput--

A runner is handed one batch of tokens after another and takes up to two at a time, so that an engine can prepare the
next while this one is computed. The engine decides which tokens, where their keys and values go (`slot_mapping`) and
where earlier ones are (`block_table`); the runner owns the memory behind these numbers, and knows no requests.

A batch is all that its result depends on, beside the memory and the tokens sampled by the batch before. So a request
that was preempted, moved or batched with others is drawn for with the same random numbers; and from the same logits,
where a runner's do not depend on what else is in a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

# What stands in `StepOutput.token_ids` where no token could be sampled.
UNUSABLE_LOGITS = -1  # the model's logits hold NaN or +inf, or nothing but -inf
NOTHING_ALLOWED = -2  # every token that may be sampled has probability 0
NOT_SAMPLED = -3  # the row did not ask for one: more of its prompt is to come

MAX_ROWS = 1024  # of a batch
MAX_IN_FLIGHT = 2  # batches that were submitted and whose result was not taken


@dataclass(frozen=True, eq=False)
class Sampling:
    """How each of R rows samples: `SamplingParams` as arrays. Of rows that do not sample, only that is read.

    The drawn token of row r will stand at position seq_lens[r]. Words of a mask hold 32 token ids, the lowest in the
    lowest bit.
    """

    samples: np.ndarray  # bool [R]: false for a row whose prompt goes on in a later batch
    temperature: np.ndarray  # f32 [R]
    top_k: np.ndarray  # i32 [R], 0 keeps all
    top_p: np.ndarray  # f32 [R]
    min_p: np.ndarray  # f32 [R]
    repetition_penalty: np.ndarray  # f32 [R]
    presence_penalty: np.ndarray  # f32 [R]
    frequency_penalty: np.ndarray  # f32 [R]
    seed: np.ndarray  # u32 [R, 2], low word and high word
    sample_index: np.ndarray  # i32 [R]
    num_logprobs: np.ndarray  # i32 [R]: likeliest tokens to report beside the sampled one; -1 reports nothing
    # The tokens of rows that have a penalty, one row after another: the output, and the prompt before it where its
    # repetition is penalized. Rows without a penalty have none.
    history: np.ndarray  # i32 [H]; -1 - r means: what row r of the previous batch sampled
    history_start: np.ndarray  # i32 [R + 1]: row r has history[history_start[r] : history_start[r + 1]]
    prompt_lens: np.ndarray  # i32 [R]: how many of a row's history are its prompt
    bias_ids: np.ndarray  # i32 [R, B], -1 pads
    bias: np.ndarray  # f32 [R, B]
    banned_ids: np.ndarray  # i32 [R, N], -1 pads: never sampled in this step
    mask: np.ndarray  # u32 [M, ceil(V / 32)]: allowed ids, for the rows that have a mask
    mask_row: np.ndarray  # i32 [R]: which row of `mask`; -1 allows all


@dataclass(frozen=True, eq=False)
class Batch:
    """T tokens of R rows, row after row; a row is the next tokens of one sequence. Rows of one token come first.
    There are at most MAX_ROWS rows.

    Every token's key and value are written to its slot; then its query sees the keys of its row at positions up to its
    own, all of which this batch or an earlier one has written.
    """

    token_ids: np.ndarray  # i32 [T]; -1 - r means: what row r of the previous batch sampled
    positions: np.ndarray  # i32 [T]
    query_start: np.ndarray  # i32 [R + 1]: row r has the tokens query_start[r] .. query_start[r + 1] - 1
    seq_lens: np.ndarray  # i32 [R]: tokens of the row's sequence up to and with its last in this batch
    block_table: np.ndarray  # i32 [R, M], -1 pads: the blocks that hold the sequence's keys and values, in order
    slot_mapping: np.ndarray  # i64 [T]: block * block_size + offset, -1 writes nothing
    sampling: Sampling
    # Log-probabilities of given tokens (a prompt's), N of them: the token after token `score_index[i]` of the batch.
    score_index: np.ndarray  # i32 [N]
    score_target: np.ndarray  # i32 [N], the token id to judge
    score_num_top: int = 0  # likeliest tokens to report beside each

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_rows(self) -> int:
        return len(self.seq_lens)

    @property
    def num_decode_rows(self) -> int:
        """Rows of one token, which come first."""
        return int((np.diff(self.query_start) == 1).sum())

    def check_rows(self) -> None:
        """Errors: ValueError for too many rows, and where one of one token comes after a longer one."""
        if self.num_rows > MAX_ROWS:
            raise ValueError(f"a batch has {self.num_rows} rows; at most {MAX_ROWS} are supported")
        if (np.diff(self.query_start[: self.num_decode_rows + 1]) != 1).any():
            raise ValueError("rows of one token come before longer ones")


@dataclass(frozen=True, eq=False)
class TokenScores:
    """Log-probabilities of N tokens, of the raw logits (natural, float32), as `TokenLogprobs` has them."""

    logprobs: np.ndarray  # f32 [N]; NaN where there is no token
    ranks: np.ndarray  # i32 [N]; 0 where there is no token, and where the logits were unusable
    top_ids: np.ndarray  # i32 [N, K]
    top_logprobs: np.ndarray  # f32 [N, K]

    def at_rows(self, rows: np.ndarray, num_rows: int) -> TokenScores:
        """These N scores at the places `rows` of so many, where there is no token elsewhere."""

        def spread(values: np.ndarray, fill: float) -> np.ndarray:
            out = np.full((num_rows, *values.shape[1:]), fill, values.dtype)
            out[rows] = values
            return out

        return TokenScores(
            spread(self.logprobs, np.nan),
            spread(self.ranks, 0),
            spread(self.top_ids, -1),
            spread(self.top_logprobs, np.nan),
        )


@dataclass(frozen=True, eq=False)
class StepOutput:
    """What a batch gave."""

    token_ids: np.ndarray  # i32 [R]; negative: UNUSABLE_LOGITS, NOTHING_ALLOWED or NOT_SAMPLED
    scores: TokenScores | None  # of the sampled tokens, R rows; None if no row asks for log-probabilities
    prompt_scores: TokenScores | None  # of `score_target`, N rows; None if N is 0


class Refused(ValueError):
    """A model that a panel cannot take, as it is or on this machine; the message says what could, or what would fit."""


class DeviceLost(RuntimeError):
    """What a runner computes on has failed for good: another process may use it again, this one cannot."""


Ticket = Any  # what `submit` gives for `result` to take; the runner's own


class Runner(Protocol):
    """A model behind the seam. One thread calls it.

    KV memory is `num_blocks` blocks of `block_size` tokens, keys and values apart, one pair a layer, each
    [block, kv_head, token, head_dim] in the model's dtype. A block that is opened (its first slot written) is
    zero-filled. A block may be given to another sequence while a batch that still writes to it is in flight: batches
    run in order.
    """

    block_size: int
    num_blocks: int
    vocab_size: int

    def submit(self, batch: Batch) -> Ticket:
        """Start on a batch. At most two are in flight.

        Errors, of this and of `result`: ValueError for a batch that breaks the contract; DeviceLost."""

    def result(self, ticket: Ticket) -> StepOutput:
        """Wait for a batch. Tickets are taken in the order they were given."""

    def reset(self) -> None:
        """Forget what is in flight, after an error. What KV memory holds is undefined then."""
