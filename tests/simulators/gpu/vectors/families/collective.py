"""What the threads of a warp do together: shuffles, votes, matches, reductions, with all of them or a part."""

from __future__ import annotations

from tests.simulators.gpu.vectors.probe import Probe

# `@%member` of what follows: threads that the mask names.
MEMBER = """.reg .pred %member; .reg .b32 %bit;
shr.u32 %bit, {mask}, %lane; and.b32 %bit, %bit, 1; setp.ne.u32 %member, %bit, 0;
{presets}
@%member {instruction}"""
PRESET_BOTH = "mov.b32 %d0, 0; setp.ne.u32 %d1, 0, 0;"
SHUFFLES = ("up", "down", "bfly", "idx")


def _among(mask: str, instruction: str, presets: str = "mov.b32 %d0, 0;") -> str:
    return MEMBER.format(mask=mask, instruction=instruction, presets=presets)


def _collective(name: str, body: str, inputs: tuple[str, ...], outputs: tuple[str, ...], count: int = 512) -> Probe:
    return Probe(name, body, inputs, outputs, count=count, block=32, is_elementwise=False)


def _shuffles() -> list[Probe]:
    probes = []
    for mode in SHUFFLES:
        name = f"shfl.sync.{mode}.b32"
        # Any clamp and segment mask, all threads.
        body = f"{name} %d0|%d1, %a0, %a1, %a2, -1;"
        probes.append(_collective(name, body, ("u32", "lane", "u32"), ("b32", "pred"), 1024))
        # Whole segments of a warp; the rest stays away.
        clamp = "0" if mode == "up" else "31"
        body = f""".reg .b32 %clamp, %mask, %within, %last;
sub.u32 %clamp, 32, %a2; shl.b32 %clamp, %clamp, 8; or.b32 %clamp, %clamp, {clamp};
mov.u32 %mask, -1; sub.u32 %last, 32, %a2; shr.u32 %mask, %mask, %last;
shl.b32 %bit, %mask, 16; or.b32 %mask, %mask, %bit;
sub.u32 %within, %a2, 1; and.b32 %within, %within, %a1;
"""
        segments = body + _among("%mask", f"{name} %d0|%d1, %a0, %within, %clamp, %mask;", PRESET_BOTH)
        segments = ".reg .b32 %bit;\n" + segments.replace(" .reg .b32 %bit;\n", "\n")
        probes.append(_collective(f"{name} segments", segments, ("u32", "lane", "segment"), ("b32", "pred"), 1024))
    return probes


def _votes() -> list[Probe]:
    probes = []
    for mode in ("all", "any", "uni"):
        name = f"vote.sync.{mode}.pred"
        for invert in ("", "!"):
            body = _among("%a1", f"{name} %d0, {invert}%a0, %a1;", "setp.ne.u32 %d0, 0, 0;")
            probes.append(_collective(f"{name} {invert}".strip(), body, ("pred", "mask"), ("pred",)))
    body = _among("%a1", "vote.sync.ballot.b32 %d0, %a0, %a1;")
    probes.append(_collective("vote.sync.ballot.b32", body, ("pred", "mask"), ("b32",)))
    # Mostly equal predicates, so that `all` and `uni` hold for some warps.
    equal = "setp.gt.u32 %d1, %a0, 0;"
    for mode in ("all", "any", "uni"):
        body = _among("%a1", f"vote.sync.{mode}.pred %d0, %d1, %a1;", f"setp.ne.u32 %d0, 0, 0; {equal}")
        probes.append(_collective(f"vote.sync.{mode}.pred equal", body, ("one_of_two", "mask"), ("pred", "pred")))
    return probes


def _matches() -> list[Probe]:
    probes = []
    for bits in (32, 64):
        widen = "mov.b32 %value, %a0;" if bits == 32 else "cvt.u64.u32 %value, %a0;"
        declare = f".reg .b{bits} %value; {widen}\n"
        body = declare + _among("%a1", f"match.any.sync.b{bits} %d0, %value, %a1;")
        probes.append(_collective(f"match.any.sync.b{bits}", body, ("one_of_two", "mask"), ("b32",)))
        body = declare + _among("%a1", f"match.all.sync.b{bits} %d0|%d1, %value, %a1;", PRESET_BOTH)
        probes.append(_collective(f"match.all.sync.b{bits}", body, ("one_of_two", "mask"), ("b32", "pred")))
    return probes


def _reductions() -> list[Probe]:
    names = [f"redux.sync.{op}.{kind}" for op in ("add", "min", "max") for kind in ("u32", "s32")]
    names += [f"redux.sync.{op}.b32" for op in ("and", "or", "xor")]
    return [_collective(name, _among("%a1", f"{name} %d0, %a0, %a1;"), ("u32", "mask"), ("b32",)) for name in names]


def _barriers() -> list[Probe]:
    """One warp is the whole block."""
    probes = []
    for op in ("and", "or"):
        body = f"barrier.cta.red.{op}.aligned.pred %d0, 0, %a0;" if op == "and" else "bar.red.or.pred %d0, 1, !%a0;"
        probes.append(_collective(f"bar.red.{op}.pred", body, ("pred",), ("pred",), 256))
    body = "bar.red.popc.u32 %d0, 2, %a0;"
    return [*probes, _collective("bar.red.popc.u32", body, ("pred",), ("b32",), 256)]


def _who() -> list[Probe]:
    """Special registers, the active threads, an elected one."""
    probes = []
    for mask in ("eq", "le", "lt", "ge", "gt"):
        name = f"mov.u32 lanemask_{mask}"
        probes.append(_collective(name, f"mov.u32 %d0, %lanemask_{mask};", (), ("b32",), 32))
    for register in ("tid.x", "ntid.x", "ctaid.x", "nctaid.x", "laneid", "tid.y", "ntid.z"):
        name = f"mov.u32 {register}"
        probes.append(_collective(name, f"mov.u32 %d0, %{register};", (), ("b32",), 64))
    body = "mov.b32 %d0, 0; @!%a0 bra $skip; activemask.b32 %d0; $skip:"
    probes.append(_collective("activemask.b32", "{\n" + body + "\n}", ("pred",), ("b32",)))
    body = _among("%a0", "elect.sync %d0|%d1, %a0;", PRESET_BOTH)
    probes.append(_collective("elect.sync", body, ("mask",), ("b32", "pred")))
    return probes


PROBES = (*_shuffles(), *_votes(), *_matches(), *_reductions(), *_barriers(), *_who())
