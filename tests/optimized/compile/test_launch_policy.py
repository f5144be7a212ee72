"""The launch policy: pure, and right for every shape."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from optimized.compile.arch import ARCHS, SM_90A, SM_100A
from optimized.compile.launch_policy import MAX_THREADS, WARP, row_launch, vector_elements

sizes = st.integers(1, 20000)


@given(
    arch=st.sampled_from(list(ARCHS.values())),
    itemsize=st.sampled_from([1, 2, 4]),
    length=sizes,
    strides=st.lists(sizes, max_size=3),
    alignment=st.sampled_from([1, 2, 4, 8, 16, 32, 256]),
)
def test_no_access_is_wider_than_anything_allows(
    arch, itemsize: int, length: int, strides: list[int], alignment: int
) -> None:
    vector = vector_elements(arch, itemsize, length=length, strides=tuple(strides), alignment=alignment)
    assert vector >= 1 and vector & (vector - 1) == 0
    assert vector * itemsize <= arch.vector_bytes or vector == 1
    assert length % vector == 0 and all(stride % vector == 0 for stride in strides)
    assert alignment % (vector * itemsize) == 0 or vector == 1


def test_rows_of_a_model_are_read_in_the_widest_accesses() -> None:
    for length in (64, 128, 1024, 2048, 4096):
        options = {"length": length, "strides": (length, 15360), "alignment": 256}
        assert vector_elements(SM_90A, 2, **options) == 8, "128 bits"
        assert vector_elements(SM_100A, 2, **options) == 16, "256 bits"
    assert vector_elements(SM_90A, 2, length=769, strides=(769,), alignment=256) == 1


@given(
    num_sms=st.integers(1, 200),
    num_rows=st.integers(1, 1 << 22),
    length=sizes,
    power=st.integers(0, 4),
)
def test_a_launch_covers_its_rows(num_sms: int, num_rows: int, length: int, power: int) -> None:
    vector = 1 << power
    length *= vector
    launch = row_launch(num_sms, num_rows, length=length, vector=vector)
    assert launch.vector * launch.vectors * launch.threads_per_row >= length
    assert launch.vector * (launch.vectors - 1) * launch.threads_per_row < length, "no access without a use"
    assert launch.threads <= MAX_THREADS
    assert launch.threads_per_row & (launch.threads_per_row - 1) == 0, "a butterfly needs a power of two"
    assert launch.threads % min(launch.threads, WARP) == 0


def test_the_launches_that_were_measured_to_be_best() -> None:
    """docs/launch-policy.md: bf16 on an H200."""

    def launch(length: int, num_rows: int) -> tuple[int, int, int]:
        one = row_launch(132, num_rows, length=length, vector=8)
        return one.vectors, one.threads_per_row, one.rows_per_block

    assert [launch(128, rows) for rows in (1, 512, 32768)] == [(1, 16, 8)] * 3
    assert [launch(1024, rows) for rows in (1, 512, 32768)] == [(1, 128, 1)] * 3
    assert [launch(2048, rows) for rows in (1, 512, 4096)] == [(1, 256, 1)] * 3
    assert launch(2048, 32768) == (2, 128, 1)
    assert [launch(4096, rows) for rows in (1, 64, 1024)] == [(1, 512, 1)] * 3
    assert [launch(4096, rows) for rows in (4096, 32768)] == [(4, 128, 1)] * 2
