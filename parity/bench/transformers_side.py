"""The peer on a CPU: transformers' `generate` over static batches, with the same weights."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parity.bench.workload import Work


class TransformersPeer:
    """A Qwen3 model in transformers, from a config.json and a checkpoint's tensors."""

    def __init__(self, config_file: Path, tensors: Mapping[str, np.ndarray], dtype: str) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        self._torch = torch
        config = AutoConfig.from_pretrained(str(config_file), dtype=dtype)
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
        model = model.to_empty(device="cpu").eval()
        state = {name: self._tensor(tensors[name], dtype) for name in tensors if not name.startswith("mtp.")}
        missing, unexpected = model.load_state_dict(state, strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
        model.tie_weights()
        model.model.rotary_emb = type(model.model.rotary_emb)(config)  # buffers are not in a checkpoint
        model.generation_config.eos_token_id = None
        self._model = model

    def _tensor(self, array: np.ndarray, dtype: str) -> Any:
        torch = self._torch
        return torch.from_numpy(np.ascontiguousarray(array.astype(np.float32))).to(getattr(torch, dtype))

    def serve(self, work: Sequence[Work], concurrency: int) -> float:
        """Seconds for all requests in batches of `concurrency`: prompts padded on the left, and all rows generated
        until the longest answer of the batch is done."""
        torch = self._torch
        start = time.perf_counter()
        with torch.inference_mode():
            for first in range(0, len(work), concurrency):
                batch = work[first : first + concurrency]
                longest = max(len(one.prompt_token_ids) for one in batch)
                ids = torch.zeros((len(batch), longest), dtype=torch.long)
                mask = torch.zeros_like(ids)
                for row, one in enumerate(batch):
                    ids[row, longest - len(one.prompt_token_ids) :] = torch.tensor(one.prompt_token_ids)
                    mask[row, longest - len(one.prompt_token_ids) :] = 1
                num_new = max(one.num_output for one in batch)
                out = self._model.generate(
                    input_ids=ids, attention_mask=mask, max_new_tokens=num_new, do_sample=False, pad_token_id=0
                )
                assert out.shape[1] == longest + num_new
        return time.perf_counter() - start
