"""Vector instructions as steps: sources, function, destination, modifiers."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import arithmetic, conversions, vector  # noqa: F401 (they fill the tables)
from .group import Group
from .lanes import dpp_written
from .matrix_steps import dot_parts
from .operands import DTYPES, Source, Target, bits_of, source, target
from .operation import PAIRED, VECTOR, Operation
from .registers import constant, scalar
from .scalar_operands import mask_source, mask_target
from .step import Processor, Step, numbers
from .text import Instruction, Unsupported, instruction
from .undefined import spoiled

#: What an instruction computed: where to, the value, undefined bits, lanes.
Result = tuple[Callable[..., None], Any, Any, Any]
#: Instructions of CDNA that write half a register.
_KEEPS_HALVES = ("v_cvt_pk_fp8_f32", "v_cvt_pk_bf8_f32")
_OMOD = {"mul:2": 2.0, "mul:4": 4.0, "div:2": 0.5}


def vector_step(inst: Instruction, processor: Processor) -> Step | None:
    """Decode arithmetic of the tables; None if the instruction is none."""
    if inst.name.startswith("v_dual_"):
        return _dual(inst, processor)
    operation = VECTOR.get(inst.name)
    if operation is not None:
        made = _single(inst, operation, processor)
    elif inst.name in PAIRED:
        made = _paired(inst, PAIRED[inst.name], processor)
    elif inst.name.startswith("v_pk_"):
        made = _packed(inst, processor)
    elif inst.name.startswith(("v_fma_mix", "v_mad_mix")):
        made = _mixed(inst, processor)
    else:
        return None
    compute, reads, writes = made

    def run(g: Group) -> None:
        for write, value, undefined, lanes in _read(compute(g)):
            write(g, value, undefined, lanes) if lanes is not None else write(g, value, undefined)

    return Step(inst, run, reads, writes)


def _read(results: list[Result]) -> list[Result]:
    """Copy what a move gives as it is in a register that an earlier result is written to."""
    return [results[0], *((w, np.array(x), u if u is None else np.array(u), lanes)
                          for w, x, u, lanes in results[1:])]  # fmt: skip


def _dual(inst: Instruction, processor: Processor) -> Step:
    parts = []
    for text in inst.text.split(" :: "):
        one = instruction(text.strip().replace("v_dual_", "v_", 1), inst.address)
        if one.name.startswith("v_dot"):
            parts.append(dot_parts(one))
        elif one.name in VECTOR:
            parts.append(_single(one, VECTOR[one.name], processor))
        else:
            raise Unsupported(f"{one.name!r} in {inst.text!r}")
    computes = [part[0] for part in parts]

    def run(g: Group) -> None:
        for write, value, undefined, _ in _read([r for compute in computes for r in compute(g)]):
            write(g, value, undefined)

    return Step(inst, run, numbers(*(p[1] for p in parts)), numbers(*(p[2] for p in parts)))


def _sources(
    inst: Instruction, operation: Operation, texts: Sequence[str], processor: Processor
) -> list[Source]:
    """Make the sources of an operation from the operands behind the destination."""
    chosen = inst.numbers("op_sel", ())
    made, rest = [], list(texts)
    for at, kind in enumerate(operation.sources):
        if kind == "vcc" or (kind == "mask" and not rest):
            made.append(mask_source("vcc"))
        elif kind == "mask":
            made.append(mask_source(rest.pop(0)))
        elif kind.startswith("dst"):
            made.append(source(inst.operands[0], kind[3:], at, _plain(inst)))
        else:
            if not rest:
                raise Unsupported(f"too few operands in {inst.text!r}")
            half = chosen[at] if chosen and bits_of(kind) == 16 else None
            made.append(source(rest.pop(0), kind, at, inst, half))
    if rest:
        raise Unsupported(f"too many operands in {inst.text!r}")
    return made


def _plain(inst: Instruction) -> Instruction:
    encoding = inst.encoding if inst.encoding == "e32" else ""
    return Instruction(inst.name, encoding, inst.operands, {}, inst.text, inst.address)


def _half(inst: Instruction, operation: Operation) -> int | None:
    """Return the half of the destination that ``op_sel`` names."""
    chosen = inst.numbers("op_sel", ())
    return chosen[-1] if len(chosen) > len([s for s in operation.sources if s != "vcc"]) else None


def _undefined(
    g: Group, sources: list[Source], reads: frozenset[int], values: Any, operation: Operation
) -> Any:
    if g.unclean.isdisjoint(reads):
        return None
    undefined = [s.undefined(g) for s in sources]
    if operation.undefined is not None:
        kinds = [
            np.asarray(bits, f"u{np.asarray(v).dtype.itemsize}") if np.asarray(v).dtype != bool
            else bits
            for bits, v in zip(undefined, values, strict=True)
        ]  # fmt: skip
        unsigned = [
            np.asarray(v).view(f"u{np.asarray(v).dtype.itemsize}") if v.dtype != bool else v
            for v in (np.asarray(v) for v in values)
        ]
        return operation.undefined(unsigned, kinds)
    if operation.result == "mask":
        return spoiled(8, undefined) != 0
    return spoiled(bits_of(operation.result), undefined)


def _finish(inst: Instruction, operation: Operation) -> Callable[..., Any]:
    """Return how modifiers of the result change it."""
    kind = operation.result
    clamp = "clamp" in inst.modifiers
    scale = next((_OMOD[f"{k}:{v}"] for k, v in inst.modifiers.items() if f"{k}:{v}" in _OMOD), 1)
    if kind[0] == "f":
        if not clamp and scale == 1:
            return operation.function
        factor = np.dtype(DTYPES[kind]).type(scale)

        def modified(*values: Any) -> Any:
            result = operation.function(*values) * factor
            return np.nan_to_num(np.clip(result, 0, 1)) if clamp else result

        return modified
    if not clamp:
        return operation.function
    info = np.iinfo(DTYPES[kind])

    def saturated(*values: Any) -> Any:
        wide = operation.function(*(np.asarray(v, "i8") for v in values))
        return np.clip(wide, info.min, info.max).astype(DTYPES[kind])

    return saturated


Made = tuple[Callable[[Group], list[Result]], frozenset[int], frozenset[int]]


def _single(inst: Instruction, operation: Operation, processor: Processor) -> Made:
    compare = operation.result == "mask"
    taken = sum(not s.startswith("dst") and s != "vcc" for s in operation.sources)
    both = inst.name.startswith("v_cmpx")
    bare = both and len(inst.operands) == taken
    sources = _sources(inst, operation, inst.operands[0 if bare else 1 :], processor)
    reads = numbers(*(s.registers for s in sources))
    function = _finish(inst, operation) if not compare else operation.function
    dpp = inst.encoding.endswith("dpp")
    masks: list[Target] = []
    if compare:
        if not bare:
            masks.append(mask_target(inst.operands[0], processor.lanes))
        if both:
            masks.append(mask_target("exec", processor.lanes))
        writes = numbers(*(m.registers for m in masks))
    else:
        keeps = processor.keeps_halves or inst.name in _KEEPS_HALVES
        result = target(inst.operands[0], operation.result, inst, keeps, _half(inst, operation))
        writes = numbers(result.registers)

    def compute(g: Group) -> list[Result]:
        values = [s.value(g) for s in sources]
        value = function(*values)
        undefined = _undefined(g, sources, reads, values, operation)
        if compare:
            if dpp:
                value = value & dpp_written(inst, g.lanes, g.exec)
            return [(m.write, value, undefined, None) for m in masks]
        lanes = dpp_written(inst, g.lanes, g.exec) if dpp else None
        return [(result.write, value, undefined, lanes)]

    return compute, reads, writes


def _paired(inst: Instruction, operation: Operation, processor: Processor) -> Made:
    result = target(inst.operands[0], operation.result, inst, False, None)
    carry = mask_target(inst.operands[1], processor.lanes)
    sources = _sources(inst, operation, inst.operands[2:], processor)
    reads = numbers(*(s.registers for s in sources))

    def compute(g: Group) -> list[Result]:
        values = [s.value(g) for s in sources]
        value, flag = operation.function(*values)
        undefined = _undefined(g, sources, reads, values, operation)
        bad = None if undefined is None else np.asarray(undefined) != 0
        return [(result.write, value, undefined, None), (carry.write, flag, bad, None)]

    return compute, reads, numbers(result.registers, carry.registers)


def _packed(inst: Instruction, processor: Processor) -> Made:
    name = "v_" + inst.name[len("v_pk_") :]
    operation = VECTOR.get(name)
    if operation is None:
        raise Unsupported(f"{inst.name!r}")
    wide = bits_of(operation.result) == 32
    count = len([s for s in operation.sources if not s.startswith("dst")])
    if inst.name == "v_pk_mov_b32":
        count = 2
    texts = inst.operands[1 : 1 + count]
    choices = (inst.numbers("op_sel", [0] * count), inst.numbers("op_sel_hi", [1] * count))
    signs = (inst.numbers("neg_lo", [0] * count), inst.numbers("neg_hi", [0] * count))
    kinds = [s.removeprefix("dst") for s in operation.sources]
    if inst.name == "v_pk_fmac_f16":
        texts = (*texts, inst.operands[0])
        choices, signs = ([*choices[0], 0], [*choices[1], 1]), ([*signs[0], 0], [*signs[1], 0])
    parts = []
    for half in (0, 1):
        if inst.name == "v_pk_mov_b32":  # low from the first source, high from the second
            chosen = [_part(texts[half], "b32", choices[0][half], False, inst, True)]
        else:
            chosen = [
                _part(text, kind, choices[half][at], bool(signs[half][at]), inst, wide)
                for at, (text, kind) in enumerate(zip(texts, kinds, strict=True))
            ]
        parts.append(chosen)
    reads = numbers(*(s.registers for part in parts for s in part))
    function = _finish(inst, operation)
    first = _first(inst.operands[0])
    targets = [
        target(f"{first[0]}{first[1] + (half if wide else 0)}", operation.result, _plain3(inst),
               True, half)
        for half in (0, 1)
    ]  # fmt: skip

    def compute(g: Group) -> list[Result]:
        results: list[Result] = []
        for half in (0, 1):
            values = [s.value(g) for s in parts[half]]
            undefined = _undefined(g, parts[half], reads, values, operation)
            results.append((targets[half].write, function(*values), undefined, None))
        return results

    return compute, reads, numbers(*(t.registers for t in targets))


def _plain3(inst: Instruction) -> Instruction:
    return Instruction(inst.name, "", inst.operands, {}, inst.text, inst.address)


def _first(text: str) -> tuple[str, int]:
    """Return the kind and the number of an operand's first register."""
    found = re.match(r"([vas])\[?(\d+)", text)
    if not found:
        raise Unsupported(f"operand {text!r}")
    return found[1], int(found[2])


def _part(
    text: str, kind: str, choice: int, negated: bool, inst: Instruction, wide: bool
) -> Source:
    """Read one half of a packed operand: a register of a pair, or 16 bits of one."""
    named = text.lstrip("-|")
    if re.match(r"[vas]\[?\d", named):
        letter, number = _first(named)
        if wide:
            made = source(f"{letter}{number + choice}", kind, 9, _plain3(inst))
        else:
            made = source(f"{letter}{number}", kind, 9, _plain3(inst), choice)
    elif named.startswith(("vcc", "exec")) or (wide and named):
        made = source(named, kind, 9, _plain3(inst), choice)
    else:
        made = _constant_half(named, kind, choice)
    if not negated:
        return made
    if kind[0] != "f":
        return Source(lambda g: np.negative(made.value(g)), made.undefined, made.registers)
    return Source(lambda g: np.negative(made.value(g)), made.undefined, made.registers)


def _constant_half(text: str, kind: str, choice: int) -> Source:
    is_float = kind[0] == "f" and not re.fullmatch(r"-?(\d+|0x[0-9a-fA-F]+)", text)
    bits = constant(text, 16, True) if is_float else constant(text, 32, False)
    value = scalar(DTYPES[kind], bits >> 16 * choice & 0xFFFF)
    return Source(lambda g: value, lambda g: np.uint8(0), ())


def _mixed(inst: Instruction, processor: Processor) -> Made:
    """Decode v_fma_mix: each source is 32 bits or a half."""
    lower, wide = inst.numbers("op_sel", [0] * 3), inst.numbers("op_sel_hi", [0] * 3)
    sources = []
    for at, text in enumerate(inst.operands[1:4]):
        if wide[at]:
            narrow = source(text, "f16", 9, _plain3(inst), lower[at])
            sources.append(_widened(narrow))
        else:
            sources.append(source(text, "f32", 9, _plain3(inst)))
    reads = numbers(*(s.registers for s in sources))
    narrow_result = not inst.name.endswith("f32")
    operation = Operation("f32", ("f32",) * 3, arithmetic.fma_f32)
    function = _finish(inst, operation)
    half = int(inst.name.endswith("mixhi_f16"))
    result = target(
        inst.operands[0], "f16" if narrow_result else "f32", _plain3(inst), True,
        half if narrow_result else None,
    )  # fmt: skip

    def compute(g: Group) -> list[Result]:
        values = [s.value(g) for s in sources]
        if narrow_result:
            wide_values = [np.asarray(v, "f8") for v in values]
            value = (wide_values[0] * wide_values[1] + wide_values[2]).astype("f2")
            if "clamp" in inst.modifiers:
                value = np.nan_to_num(np.clip(value, 0, 1))
        else:
            value = function(*values)
        undefined = None
        if not g.unclean.isdisjoint(reads):
            undefined = spoiled(16 if narrow_result else 32, [s.undefined(g) for s in sources])
        return [(result.write, value, undefined, None)]

    return compute, reads, numbers(result.registers)


def _widened(narrow: Source) -> Source:
    return Source(
        lambda g: np.asarray(narrow.value(g)).astype("f4"), narrow.undefined, narrow.registers
    )
