"""The launch policy of kernels over heads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimized.compile.launch_policy import WARP
from optimized.kernels.heads import head_launch


@given(
    num_sms=st.integers(1, 200),
    num_tokens=st.integers(1, 100_000),
    heads=st.tuples(st.integers(1, 64), st.integers(1, 16)),
    head_dim=st.sampled_from([16, 64, 96, 128, 256]),
    itemsize=st.sampled_from([2, 4]),
    power=st.integers(0, 3),
)
def test_a_launch_covers_its_heads(
    num_sms: int, num_tokens: int, heads: tuple[int, int], head_dim: int, itemsize: int, power: int
) -> None:
    launch = head_launch(num_sms, num_tokens, heads, head_dim=head_dim, itemsize=itemsize, vector=1 << power)
    assert launch.vector * launch.vectors * launch.lanes == head_dim
    assert WARP % launch.lanes == 0, "a butterfly stays within a warp"
    assert launch.vectors % 2 == 0, "a lane holds both channels of a pair"
    assert all(launch.parts(count) * launch.heads >= count for count in heads)


def test_the_launches_that_were_measured_to_be_best() -> None:
    """docs/launch-policy.md: (heads of a group, warps of a block)."""
    options = {"head_dim": 128, "itemsize": 2, "vector": 8}

    def launch(num_tokens: int) -> tuple[int, int]:
        one = head_launch(132, num_tokens, (32, 8), **options)
        return one.heads, one.warps

    assert [launch(tokens) for tokens in (1, 64)] == [(1, 4)] * 2
    assert [launch(tokens) for tokens in (4096, 32768)] == [(2, 2)] * 2
    with pytest.raises(ValueError, match="two halves"):
        head_launch(132, 1, (32, 8), head_dim=127, itemsize=2, vector=1)
