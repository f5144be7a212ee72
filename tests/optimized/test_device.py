"""Tensors of every kind have parts, and cross to arrays and back."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from optimized.device import part_of
from parity.executors.placement import as_array, as_tensor


def test_a_tensor_of_torch_has_parts_whatever_device_it_says_it_is_on() -> None:
    tensor = torch.arange(24.0)
    for panel_device in (None, object()):
        tensor.panel_device = panel_device  # type: ignore[attr-defined]
        part = part_of(tensor[2:], (2, 3), (8, 1), 1)
        assert part.tolist() == [[3, 4, 5], [11, 12, 13]] and part.data_ptr() == tensor[3:].data_ptr()


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32, np.int32, np.uint32])
def test_arrays_cross_to_torch_and_back_bit_for_bit(dtype: type) -> None:
    array = np.arange(-6, 6).astype(dtype).reshape(3, 4)
    tensor = as_tensor(array)
    for there, back in ((tensor, array), (tensor[1:, ::2], array[1:, ::2]), (tensor[:0], array[:0])):
        found = as_array(there)
        assert found.dtype == array.dtype and found.tobytes() == np.ascontiguousarray(back).tobytes()
