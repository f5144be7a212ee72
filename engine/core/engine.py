"""The engine: many requests at once over one runner. It is a `Core`, and gives what the specification gives.

    step:   plan (scheduler) -> batch (rows) -> submit          while the batch before is computed
            result of the batch before -> tokens, text, endings -> outputs

With overlap two batches are in flight: the second feeds what the first samples to the model before anyone has seen
it. Whoever ends by the first has a row too many in the second, whose result is dropped. Blocks are given up at once:
batches run in order, so the one that still writes to a block comes before any that could get it next.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from engine.core.admit import check_request
from engine.core.blocks import BlockPool
from engine.core.logprobs import token_logprobs
from engine.core.masks import combined_mask
from engine.core.observer import CoreObserver, Silent
from engine.core.rows import Rows
from engine.core.scheduler import Plan, Scheduler
from engine.core.sequence import Sequence
from engine.core.settings import EngineSettings
from engine.core.text import DetokenizerFactory, TextStream
from reference.serving.request import (
    NOTHING_ALLOWED_ERROR,
    UNUSABLE_LOGITS_ERROR,
    FinishReason,
    Request,
    RequestError,
    RequestOutput,
)
from reference.serving.runner import NOTHING_ALLOWED, UNUSABLE_LOGITS, Batch, Runner, Ticket, TokenScores

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _InFlight:
    ticket: Ticket
    batch: Batch
    rows: list[tuple[Sequence, int]]


class Engine:
    """Serves requests from one runner. One thread calls it."""

    def __init__(
        self,
        runner: Runner,
        detokenizers: DetokenizerFactory,
        *,
        eos_token_ids: Iterable[int],
        num_token_ids: int,
        max_model_len: int,
        settings: EngineSettings | None = None,
        observer: CoreObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """max_model_len: tokens of prompt and output together; less where the runner's KV memory holds no more."""
        self.runner = runner
        self.settings = settings or EngineSettings()
        self.kv_capacity = runner.num_blocks * runner.block_size  # tokens
        self.max_model_len = min(max_model_len, self.kv_capacity)
        self._detokenizers = detokenizers
        self._eos_token_ids = frozenset(eos_token_ids)
        self._num_token_ids = num_token_ids
        self.observer: CoreObserver = observer or Silent()
        self._clock = clock
        self._requests: dict[str, list[Sequence]] = {}  # samples that have not ended
        self._num_added = 0
        self._start_over()

    def _start_over(self) -> None:
        self.pool = BlockPool(self.runner.num_blocks)
        self.scheduler = Scheduler(self.settings, self.pool, self.runner.block_size)
        self._rows = Rows(
            self.settings.max_num_seqs,
            self.max_model_len,
            self.runner.block_size,
            self._num_token_ids,
            self._eos_token_ids,
        )
        self._in_flight: deque[_InFlight] = deque()
        self._requests.clear()

    def add(self, request: Request) -> None:
        """Take a request. Errors: RequestError; others are unharmed."""
        if request.request_id in self._requests:
            raise RequestError("request_id", f"request {request.request_id!r} is still running; ids must differ")
        check_request(
            request,
            max_model_len=self.max_model_len,
            num_token_ids=self._num_token_ids,
            eos_token_ids=self._eos_token_ids,
        )
        prompt_hashes: list[bytes] = []
        sequences = [self._sequence(request, index, prompt_hashes) for index in range(request.params.n)]
        self._requests[request.request_id] = sequences
        for sequence in sequences:
            self.scheduler.add(sequence)

    def _sequence(self, request: Request, index: int, prompt_hashes: list[bytes]) -> Sequence:
        params = request.params
        context_left = self.max_model_len - len(request.prompt_token_ids)
        sequence = Sequence(
            request,
            index,
            arrival=self._num_added,
            added_at=self._clock(),
            budget=context_left if params.max_tokens is None else min(params.max_tokens, context_left),
            text=TextStream.of(params, self._detokenizers),
            constraint=None if params.constraint is None else params.constraint.begin(),
            tokens=array("i", request.prompt_token_ids),
            prompt_hashes=prompt_hashes,
        )
        sequence.mask = combined_mask(params.allowed_token_ids, sequence.constraint, self._num_token_ids)
        self._num_added += 1
        return sequence

    def abort(self, request_id: str) -> None:
        """Drop a request and all it holds, at once. One that is unknown or has ended is no error."""
        for sequence in self._requests.pop(request_id, ()):
            self._remove(sequence)

    def has_work(self) -> bool:
        """Is any request unfinished, or any batch in flight?"""
        return bool(self._requests or self._in_flight)

    def step(self) -> list[RequestOutput]:
        """Submit the next batch; take the result of the one before (without overlap: of this one).

        Errors: whatever the runner raises. All requests are dropped then, and the engine is as new.
        """
        try:
            submitted = self._submit()
            if not submitted and not self._in_flight and self._requests:
                raise RuntimeError(f"{len(self._requests)} requests are unfinished, and none can run")
            if not submitted or len(self._in_flight) > self.settings.overlap:
                return self._take_result() if self._in_flight else []
            return []
        except Exception:
            self._start_over()
            self.runner.reset()
            raise

    def _submit(self) -> bool:
        """Start on the next batch, if there is anything to run."""
        plan = self.scheduler.plan()
        self._follow(plan)
        if not plan.rows:
            return False
        rows = sorted(plan.rows, key=lambda row: row[1] > 1)
        batch = self._rows.batch(rows)
        self._in_flight.append(_InFlight(self.runner.submit(batch), batch, rows))
        for number, ((sequence, _), samples) in enumerate(zip(rows, batch.sampling.samples.tolist(), strict=True)):
            sequence.num_in_flight += 1
            sequence.num_pending += samples
            sequence.row = number
        return True

    def _follow(self, plan: Plan) -> None:
        """What a plan means for slots, and for those who watch."""
        for sequence in plan.preempted:
            self._rows.leave(sequence)
            self.observer.preempted()
        for sequence, num_cached in plan.admitted:
            self._rows.enter(sequence)
            self.observer.prefix_lookup(len(sequence.tokens), num_cached)
            if not sequence.has_run:
                sequence.has_run = True
                self.observer.scheduled(self._clock() - sequence.added_at)
        self.observer.stepped(
            num_running=len(self.scheduler.running),
            num_waiting=self.scheduler.num_waiting,
            num_batched_tokens=sum(num_tokens for _, num_tokens in plan.rows),
            kv_usage=self.pool.usage,
        )

    def _take_result(self) -> list[RequestOutput]:
        """Wait for the oldest batch, and apply it."""
        done = self._in_flight.popleft()
        result = self.runner.result(done.ticket)
        samples = done.batch.sampling.samples.tolist()
        for (sequence, _), sampled in zip(done.rows, samples, strict=True):
            sequence.num_in_flight -= 1
            sequence.num_pending -= sampled
        outputs = []
        if result.prompt_scores is not None:
            outputs += self._take_prompt_scores(done, result.prompt_scores)
        for row, ((sequence, _), token_id) in enumerate(zip(done.rows, result.token_ids.tolist(), strict=True)):
            # One that has ended was aborted, or ended by the batch before, and this row was one too many.
            if samples[row] and not sequence.ended:
                outputs.append(self._take_token(sequence, token_id, result.scores, row))
        return outputs

    def _take_prompt_scores(self, done: _InFlight, scores: TokenScores) -> list[RequestOutput]:
        """Keep what was said of prompts; the outputs of those whose logits were unusable."""
        failed = []
        batch = done.batch
        bounds = np.searchsorted(batch.score_index, batch.query_start).tolist()
        for row, (sequence, _) in enumerate(done.rows):
            for number in range(bounds[row], bounds[row + 1]):
                if sequence.ended:
                    break
                if scores.ranks[number] == 0:
                    position = len(sequence.prompt_logprobs)
                    failed.append(self._fail(sequence, UNUSABLE_LOGITS_ERROR.format(position=position)))
                else:
                    token_id, num_top = int(batch.score_target[number]), sequence.params.prompt_logprobs or 0
                    sequence.prompt_logprobs.append(token_logprobs(scores, number, token_id, num_top))
        return failed

    def _take_token(self, sequence: Sequence, token_id: int, scores: TokenScores | None, row: int) -> RequestOutput:
        """What a sampled token adds to its sample."""
        params = sequence.params
        if token_id < 0:
            position = len(sequence.tokens)
            message = {UNUSABLE_LOGITS: UNUSABLE_LOGITS_ERROR, NOTHING_ALLOWED: NOTHING_ALLOWED_ERROR}[token_id]
            return self._fail(sequence, message.format(position=position))
        sequence.tokens.append(token_id)
        num_output = len(sequence.tokens) - sequence.num_prompt
        is_eos = token_id in self._eos_token_ids and not params.ignore_eos
        is_ending_id = is_eos or token_id in params.stop_token_ids
        finish_reason: FinishReason | None = None
        stop_reason: int | str | None = None
        if is_ending_id or num_output >= sequence.budget:
            hides = is_ending_id and not params.include_stop_str_in_output
            text, stop = sequence.text.finish(None if hides else token_id)
            finish_reason = FinishReason.STOP if is_ending_id else FinishReason.LENGTH
            stop_reason = token_id if is_ending_id and not is_eos else None
        else:
            text, stop = sequence.text.push(token_id)
        if stop is not None:
            finish_reason, stop_reason = FinishReason.STOP, stop
        logprobs = None
        if params.logprobs is not None:
            assert scores is not None, "the runner left out log-probabilities that were asked for"
            logprobs = (token_logprobs(scores, row, token_id, params.logprobs),)
        error = None
        if finish_reason is None and sequence.constraint is not None:
            error = self._advance_constraint(sequence, token_id)
            if error is not None:
                finish_reason, text = FinishReason.ERROR, text + sequence.text.rest()
        if finish_reason is not None:
            self._finish(sequence)
        return RequestOutput(
            sequence.request.request_id,
            sequence.index,
            (token_id,),
            text,
            logprobs,
            tuple(sequence.prompt_logprobs) if num_output == 1 and params.prompt_logprobs is not None else None,
            finish_reason,
            stop_reason,
            error,
        )

    def _advance_constraint(self, sequence: Sequence, token_id: int) -> str | None:
        """Accept a token, and find what may follow it. What goes wrong in a grammar is the matter of its sample alone:
        it is returned, and not raised."""
        assert sequence.constraint is not None
        try:
            sequence.constraint.accept(token_id)
            sequence.mask = combined_mask(sequence.params.allowed_token_ids, sequence.constraint, self._num_token_ids)
        except Exception as error:
            log.exception("the grammar of request %s failed", sequence.request.request_id)
            return f"the grammar of the answer failed: {error}"
        return None

    def _fail(self, sequence: Sequence, message: str) -> RequestOutput:
        """End a sample with an error: an output of no token, with the text that was held back."""
        self._finish(sequence)
        return RequestOutput(
            sequence.request.request_id,
            sequence.index,
            token_ids=(),
            text=sequence.text.rest(),
            logprobs=None if sequence.params.logprobs is None else (),
            finish_reason=FinishReason.ERROR,
            error=message,
        )

    def _finish(self, sequence: Sequence) -> None:
        self._remove(sequence)
        samples = self._requests[sequence.request.request_id]
        samples.remove(sequence)
        if not samples:
            del self._requests[sequence.request.request_id]

    def _remove(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        if sequence.slot >= 0:
            self._rows.leave(sequence)
