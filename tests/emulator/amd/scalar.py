"""Scalar instructions: arrays over waves; most of them set the condition code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import arithmetic as math
from . import undefined as bad
from .group import Group
from .operands import bits_of, pair, split
from .registers import EXEC, SCC, SGPR
from .scalar_operands import scalar_source, scalar_target
from .step import Processor, Step, numbers
from .text import Instruction
from .undefined import spoiled

U32 = np.uint32
_SCC = SGPR + SCC
_NOTHING = frozenset({
    "s_nop", "s_sleep", "s_clause", "s_delay_alu", "s_code_end", "s_set_inst_prefetch_distance",
    "s_inst_prefetch", "s_sendmsg", "s_setprio", "s_waitcnt_depctr", "s_icache_inv",
    "s_dcache_inv", "s_dcache_wb", "buffer_gl0_inv", "buffer_gl1_inv", "buffer_wbl2",
    "buffer_inv", "buffer_invl2", "s_sethalt", "s_ttracedata", "s_setreg_imm32_b32",
    "s_setreg_b32", "s_denorm_mode", "s_round_mode", "v_nop", "s_set_gpr_idx_off", "s_wakeup",
    "buffer_wbinvl1", "buffer_wbinvl1_vol", "sched_barrier",
})  # fmt: skip


def _carry(a: Any, b: Any, carry: Any = 0) -> tuple[Any, Any]:
    total = np.asarray(a, "u8") + np.asarray(b, "u8") + np.asarray(carry, "u8")
    return total.astype(U32), total > np.uint64(0xFFFFFFFF)


def _borrow(a: Any, b: Any, borrow: Any = 0) -> tuple[Any, Any]:
    total = np.asarray(a, "i8") - np.asarray(b, "i8") - np.asarray(borrow, "i8")
    return total.astype(U32), total < 0


def _overflowing(function: Any) -> Callable[..., Any]:
    def compute(a: Any, b: Any) -> tuple[Any, Any]:
        total = function(np.asarray(a, "i8"), np.asarray(b, "i8"))
        result = total.astype("i4")
        return result, result != total

    return compute


def _nonzero(function: Any) -> Callable[..., Any]:
    def compute(*values: Any) -> tuple[Any, Any]:
        result = np.asarray(function(*values))
        return result, result != 0

    return compute


def _shifting(function: Any) -> Callable[..., Any]:
    def compute(x: Any, amount: Any) -> tuple[Any, Any]:
        x = np.asarray(x)
        kind = x.dtype.type
        amount = np.asarray(amount, x.dtype) & kind(8 * x.dtype.itemsize - 1)
        result = function(x, amount)
        return result, result != 0

    return compute


def _field(signed: bool) -> Callable[..., Any]:
    """Take bits out: where they begin is in bits 0 to 5 of the second source, how many in 16 up."""

    def extract(x: Any, packed: Any) -> tuple[Any, Any]:
        x = np.asarray(x)
        unsigned = x.view(f"u{x.dtype.itemsize}")
        one, bits = unsigned.dtype.type(1), 8 * x.dtype.itemsize
        at = (packed & U32(bits - 1)).astype(unsigned.dtype)
        width = np.minimum(packed >> U32(16) & U32(0x7F), bits).astype(unsigned.dtype)
        top = np.where(width == 0, 0, width - one).astype(unsigned.dtype)
        mask = np.where(width == 0, 0, (one << top << one) - one).astype(unsigned.dtype)
        result = (x >> at.astype(x.dtype)).view(unsigned.dtype) & mask
        if signed:
            sign = np.where(width == 0, 0, one << top).astype(unsigned.dtype)
            result = ((result ^ sign) - sign).view(x.dtype)
        return result, result != 0

    return extract


_LOGIC = {
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "andn2": lambda a, b: a & ~b, "and_not1": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b, "or_not1": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b), "nor": lambda a, b: ~(a | b), "xnor": lambda a, b: ~(a ^ b),
}  # fmt: skip
#: Name to (result, sources, function that returns result and condition, rule for undefined bits).
_TABLE: dict[str, tuple[str, tuple[str, ...], Any, Any]] = {
    "s_add_u32": ("u32", ("u32", "u32"), _carry, None),
    "s_sub_u32": ("u32", ("u32", "u32"), _borrow, None),
    "s_add_i32": ("i32", ("i32", "i32"), _overflowing(np.add), None),
    "s_sub_i32": ("i32", ("i32", "i32"), _overflowing(np.subtract), None),
    "s_addc_u32": ("u32", ("u32", "u32", "scc"), _carry, None),
    "s_subb_u32": ("u32", ("u32", "u32", "scc"), _borrow, None),
    "s_mul_i32": ("i32", ("i32", "i32"), lambda a, b: (a * b, None), None),
    "s_mul_hi_u32": (
        "u32", ("u32", "u32"),
        lambda a, b: ((np.multiply(a, b, dtype="u8") >> np.uint64(32)).astype(U32), None), None,
    ),
    "s_mul_hi_i32": (
        "i32", ("i32", "i32"),
        lambda a, b: ((np.multiply(a, b, dtype="i8") >> np.int64(32)).astype("i4"), None), None,
    ),
    "s_min_u32": ("u32", ("u32", "u32"), lambda a, b: (np.minimum(a, b), a < b), None),
    "s_max_u32": ("u32", ("u32", "u32"), lambda a, b: (np.maximum(a, b), a > b), None),
    "s_min_i32": ("i32", ("i32", "i32"), lambda a, b: (np.minimum(a, b), a < b), None),
    "s_max_i32": ("i32", ("i32", "i32"), lambda a, b: (np.maximum(a, b), a > b), None),
    "s_bfe_u32": ("u32", ("u32", "u32"), _field(False), bad.field(_field(False))),
    "s_bfe_i32": ("i32", ("i32", "u32"), _field(True), bad.field(_field(False))),
    "s_bfe_u64": ("u64", ("u64", "u32"), _field(False), bad.field(_field(False))),
    "s_bfe_i64": ("i64", ("i64", "u32"), _field(True), bad.field(_field(False))),
    "s_bfm_b32": (
        "u32", ("u32", "u32"),
        lambda a, b: (((U32(1) << (a & U32(31))) - U32(1)) << (b & U32(31)), None), None,
    ),
    "s_mov_b32": ("u32", ("u32",), lambda x: (x, None), bad.moved),
    "s_mov_b64": ("u64", ("u64",), lambda x: (x, None), bad.moved),
    "s_abs_i32": ("i32", ("i32",), _nonzero(np.abs), None),
    "s_sext_i32_i8": ("i32", ("u32",), lambda x: (x.astype("i1").astype("i4"), None), None),
    "s_sext_i32_i16": ("i32", ("u32",), lambda x: (x.astype("i2").astype("i4"), None), None),
    "s_brev_b32": ("u32", ("u32",), lambda x: (math.bit_reverse(x), None), None),
    "s_bcnt1_i32_b32": ("u32", ("u32",), _nonzero(math.count_bits), None),
    "s_bcnt1_i32_b64": ("u32", ("u64",), _nonzero(math.count_bits), None),
    "s_pack_ll_b32_b16": (
        "u32", ("u32", "u32"), lambda a, b: (a & U32(0xFFFF) | b << U32(16), None), None,
    ),
    "s_pack_lh_b32_b16": (
        "u32", ("u32", "u32"), lambda a, b: (a & U32(0xFFFF) | b & U32(0xFFFF0000), None), None,
    ),
    "s_pack_hh_b32_b16": (
        "u32", ("u32", "u32"), lambda a, b: (a >> U32(16) | b & U32(0xFFFF0000), None), None,
    ),
    "s_pack_hl_b32_b16": (
        "u32", ("u32", "u32"), lambda a, b: (a >> U32(16) | b << U32(16), None), None,
    ),
}  # fmt: skip
for _bits in ("32", "64"):
    _u, _i = f"u{_bits}", f"i{_bits}"
    for _name, _function in _LOGIC.items():
        _rule = {"and": bad.and_, "or": bad.or_}.get(_name, bad.any_bit)
        _TABLE[f"s_{_name}_b{_bits}"] = (_u, (_u, _u), _nonzero(_function), _rule)
    _TABLE[f"s_not_b{_bits}"] = (_u, (_u,), _nonzero(np.invert), bad.moved)
    _TABLE[f"s_lshl_b{_bits}"] = (_u, (_u, "u32"), _shifting(np.left_shift), None)
    _TABLE[f"s_lshr_b{_bits}"] = (_u, (_u, "u32"), _shifting(np.right_shift), None)
    _TABLE[f"s_ashr_i{_bits}"] = (_i, (_i, "u32"), _shifting(np.right_shift), None)
    _TABLE[f"s_cselect_b{_bits}"] = (
        _u, (_u, _u, "scc"), lambda a, b, c: (np.where(c, a, b), None), None,
    )  # fmt: skip
for _amount in (1, 2, 3, 4):

    def _shift_add(a: Any, b: Any, amount: int = _amount) -> tuple[Any, Any]:
        total = (np.asarray(a, "u8") << np.uint64(amount)) + np.asarray(b, "u8")
        return total.astype(U32), total > np.uint64(0xFFFFFFFF)

    _TABLE[f"s_lshl{_amount}_add_u32"] = ("u32", ("u32", "u32"), _shift_add, None)
for _names, _kind, _find in (
    ("flbit_i32_b32 clz_i32_u32", "u32", math.leading_bit),
    ("flbit_i32_b64 clz_i32_u64", "u64", math.of_halves("high", math.leading_bit)),
    ("flbit_i32 cls_i32", "u32", math.sign_bits),
    ("ff1_i32_b32 ctz_i32_b32", "u32", math.trailing_bit),
    ("ff1_i32_b64 ctz_i32_b64", "u64", math.of_halves("low", math.trailing_bit)),
):
    for _name in _names.split():
        _TABLE[f"s_{_name}"] = ("u32", (_kind,), lambda x, find=_find: (find(x), None), None)
_COMPARE = {
    "eq": np.equal, "lg": np.not_equal, "ne": np.not_equal, "gt": np.greater,
    "ge": np.greater_equal, "lt": np.less, "le": np.less_equal,
}  # fmt: skip


def _immediate(text: str, kind: str) -> str:
    """Return a 16-bit immediate as its instruction extends it."""
    value = int(text, 0) & 0xFFFF
    return str(value - 0x10000 if kind[0] == "i" and value & 0x8000 else value)


def scalar_step(inst: Instruction, processor: Processor) -> Step | None:
    """Decode a scalar instruction; None if it is none of those here."""
    name = inst.name
    if name in _NOTHING:
        return Step(inst, lambda g: None)
    if name in _TABLE:
        return _arithmetic(inst, *_TABLE[name], list(inst.operands[1:]))
    if name in ("s_movk_i32", "s_mulk_i32", "s_addk_i32", "s_cmovk_i32"):
        return _with_immediate(inst)
    if name.startswith(("s_cmp_", "s_cmpk_", "s_bitcmp")):
        return _comparison(inst)
    if "_saveexec_" in name:
        return _save_exec(inst)
    if name in ("s_cmov_b32", "s_bitset0_b32", "s_bitset1_b32"):
        return _conditional(inst)
    return None


def _arithmetic(
    inst: Instruction, result: str, kinds: tuple[str, ...], function: Any, rule: Any,
    texts: list[str],
) -> Step:  # fmt: skip
    target = scalar_target(inst.operands[0], result)
    uses_scc = kinds[-1] == "scc"
    sources = [scalar_source(t, k) for t, k in zip(texts, kinds, strict=False)]
    reads = numbers(*(s.registers for s in sources), [_SCC] if uses_scc else [])
    bits = bits_of(result)

    def run(g: Group) -> None:
        values = [s.value(g) for s in sources]
        value, condition = function(*values, g.scc) if uses_scc else function(*values)
        undefined = None
        if not g.unclean.isdisjoint(reads):
            parts = [s.undefined(g) for s in sources]
            if rule is not None:
                unsigned = [np.asarray(v).view(f"u{np.asarray(v).dtype.itemsize}") for v in values]
                parts = [np.asarray(p, v.dtype) for p, v in zip(parts, unsigned, strict=True)]
                undefined = np.broadcast_to(rule(unsigned, parts), g.ids.shape)
            else:
                if uses_scc:
                    parts.append(np.uint32(_SCC in g.unclean))
                undefined = np.broadcast_to(spoiled(bits, parts), g.ids.shape)
        if condition is not None:
            _set_scc(g, condition, undefined)
        target.write(g, value, undefined)

    writes = numbers(target.registers)
    return Step(inst, run, reads, writes)


def _set_scc(g: Group, condition: Any, undefined: Any = None) -> None:
    g.scc = np.array(np.broadcast_to(condition, g.ids.shape))
    if undefined is not None and np.any(undefined):
        g.unclean.add(_SCC)
    else:
        g.unclean.discard(_SCC)


def _with_immediate(inst: Instruction) -> Step:
    text = _immediate(inst.operands[1], "i32")
    if inst.name == "s_movk_i32":
        row = ("i32", ("i32",), lambda x: (x, None), bad.moved)
        return _arithmetic(inst, *row, [text])
    if inst.name == "s_cmovk_i32":
        row = ("i32", ("i32", "i32", "scc"), lambda a, b, c: (np.where(c, b, a), None), None)
    elif inst.name == "s_mulk_i32":
        row = _TABLE["s_mul_i32"]
    else:
        row = _TABLE["s_add_i32"]
    return _arithmetic(inst, *row, [inst.operands[0], text])


def _comparison(inst: Instruction) -> Step:
    parts = inst.name.split("_")
    if inst.name.startswith("s_bitcmp"):
        wanted = np.uint32(inst.name[len("s_bitcmp")] == "1")
        wide = inst.name.endswith("b64")
        sources = [
            scalar_source(inst.operands[0], "u64" if wide else "u32"),
            scalar_source(inst.operands[1], "u32"),
        ]

        def compare(x: Any, at: Any) -> Any:
            x = np.asarray(x)
            one = x.dtype.type(1)
            return (
                x >> (np.asarray(at, x.dtype) & x.dtype.type(63 if wide else 31)) & one
            ) == wanted

        function: Any = compare
    else:
        kind = parts[-1]
        texts = list(inst.operands)
        if parts[1] == "cmpk":
            texts[1] = _immediate(texts[1], kind)
        sources = [scalar_source(t, kind) for t in texts]
        function = _COMPARE[parts[2]]
    reads = numbers(*(s.registers for s in sources))

    def run(g: Group) -> None:
        condition = function(*(s.value(g) for s in sources))
        undefined = None
        if not g.unclean.isdisjoint(reads):
            undefined = spoiled(32, [s.undefined(g) for s in sources])
        _set_scc(g, condition, undefined)

    return Step(inst, run, reads)


def _save_exec(inst: Instruction) -> Step:
    """Decode s_and_saveexec and the like: the old mask to a register, the new one made of both."""
    name, _, width = inst.name[2:].rpartition("_saveexec_b")
    kind, size = f"u{width}", f"u{int(width) // 8}"
    function = {
        **_LOGIC,
        "andn1": lambda a, b: ~a & b, "and_not0": lambda a, b: ~a & b,
        "orn1": lambda a, b: ~a | b, "or_not0": lambda a, b: ~a | b,
    }[name]  # fmt: skip
    target = scalar_target(inst.operands[0], kind)
    given = scalar_source(inst.operands[1], kind)

    def run(g: Group) -> None:
        mask = pair(g.s[EXEC], g.s[EXEC + 1]) if kind == "u64" else g.s[EXEC]
        mask = mask.copy()
        value = np.broadcast_to(given.value(g), mask.shape)
        undefined = np.broadcast_to(np.asarray(given.undefined(g), size), mask.shape)
        active = function(value, mask)
        if np.any(undefined & function(undefined, mask)):
            raise g.mistake("the execution mask is made of registers that nothing wrote")
        target.write(g, mask)
        _set_scc(g, active != 0)
        low, high = split(active)
        g.set_exec(g.mask(pair(low, high)))

    return Step(inst, run, numbers(given.registers, [SGPR + EXEC]), numbers(target.registers))


def _conditional(inst: Instruction) -> Step:
    if inst.name == "s_cmov_b32":
        row = ("u32", ("u32", "u32", "scc"), lambda a, b, c: (np.where(c, b, a), None), None)
    elif inst.name == "s_bitset0_b32":
        row = ("u32", ("u32", "u32"), lambda a, b: (a & ~(U32(1) << (b & U32(31))), None), None)
    else:
        row = ("u32", ("u32", "u32"), lambda a, b: (a | U32(1) << (b & U32(31)), None), None)
    return _arithmetic(inst, *row, [inst.operands[0], inst.operands[1]])
