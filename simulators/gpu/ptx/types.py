"""Types of PTX and their sizes, and the names of special registers.

Source: PTX ISA, sections "Fundamental Types", "Alternate Floating-Point Data Formats", "Vectors", "Special Registers".
"""

from __future__ import annotations

TYPE_BYTES = {f"{kind}{bits}": bits // 8 for kind in "bsu" for bits in (8, 16, 32, 64)} | {
    "b128": 16,
    "f16": 2,
    "bf16": 2,
    "f16x2": 4,
    "bf16x2": 4,
    "f32": 4,
    "tf32": 4,
    "f64": 8,
}
REGISTER_TYPES = TYPE_BYTES.keys() | {"pred"}

VECTOR_LENGTHS = {".v2": 2, ".v4": 4}  # of declared names; instructions have `.v8` too
COMPONENTS = {"x": 0, "y": 1, "z": 2, "w": 3, "r": 0, "g": 1, "b": 2, "a": 3}

SPECIAL_REGISTERS = frozenset(
    [
        f"%{name}.{axis}"
        for name in "tid ntid ctaid nctaid clusterid nclusterid cluster_ctaid cluster_nctaid".split()
        for axis in "xyz"
    ]
    + [f"%lanemask_{relation}" for relation in "eq le lt ge gt".split()]
    + [f"%pm{index}{width}" for index in range(8) for width in ("", "_64")]
    + [f"%envreg{index}" for index in range(32)]
    + [f"%reserved_smem_offset_{which}" for which in "begin end cap 0 1".split()]
    + [
        f"%{name}"
        for name in (
            "laneid warpid nwarpid smid nsmid gridid is_explicit_cluster cluster_ctarank cluster_nctarank "
            "clock clock_hi clock64 globaltimer globaltimer_lo globaltimer_hi total_smem_size aggr_smem_size "
            "dynamic_smem_size current_graph_exec"
        ).split()
    ]
)
