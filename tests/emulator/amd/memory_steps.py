"""Loads and stores of device memory and scratch, by address, descriptor or offset."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from .group import Group
from .machine import active, lds_place, spread, waves_of
from .memory import Bytes
from .operands import pair, put, put_half, source
from .registers import M0, SGPR, Registers, registers
from .scalar_operands import scalar_source
from .step import Processor, Step, numbers
from .text import Instruction, Unsupported

#: Bytes, whether the sign is extended, the half of a register that is written (None: all of it).
WIDTHS: dict[str, tuple[int, bool, int | None]] = {
    "dword": (4, False, None), "dwordx2": (8, False, None), "dwordx3": (12, False, None),
    "dwordx4": (16, False, None), "ubyte": (1, False, None), "sbyte": (1, True, None),
    "byte": (1, False, None), "short": (2, False, None), "ushort": (2, False, None),
    "sshort": (2, True, None), "short_d16": (2, False, 0), "short_d16_hi": (2, False, 1),
    "ubyte_d16": (1, False, 0), "ubyte_d16_hi": (1, False, 1), "sbyte_d16": (1, True, 0),
    "sbyte_d16_hi": (1, True, 1), "byte_d16_hi": (1, False, 1),
    "b32": (4, False, None), "b64": (8, False, None), "b96": (12, False, None),
    "b128": (16, False, None), "u8": (1, False, None), "i8": (1, True, None),
    "u16": (2, False, None), "i16": (2, True, None), "b8": (1, False, None),
    "b16": (2, False, None), "d16_b16": (2, False, 0), "d16_hi_b16": (2, False, 1),
    "d16_u8": (1, False, 0), "d16_i8": (1, True, 0), "d16_hi_u8": (1, False, 1),
    "d16_hi_i8": (1, True, 1), "d16_hi_b8": (1, False, 1),
}  # fmt: skip
MEMORY = re.compile(r"(global|flat|scratch|buffer)_(load|store|atomic)_(\w+)$")
_SWIZZLE = np.uint32(1 << 31)


def memory_step(inst: Instruction, processor: Processor) -> Step | None:
    """Decode an access to memory; None if the instruction is none."""
    found = MEMORY.match(inst.name)
    if not found:
        return None
    space, action, rest = found.groups()
    if action == "atomic":
        return None
    to_lds = rest.startswith("lds_") or "lds" in inst.modifiers
    width = rest.removeprefix("lds_")
    if width not in WIDTHS:
        raise Unsupported(inst.name)
    if to_lds:
        return _load_to_lds(inst, space, WIDTHS[width][0], processor)
    if action == "load":
        return _load(inst, space, *WIDTHS[width], processor)
    return _store(inst, space, *WIDTHS[width], processor)


def granule(inst: Instruction) -> int | None:
    """Return the smallest granule of an access to device memory, None if it is none."""
    found = MEMORY.match(inst.name)
    if not found or found[1] == "scratch":
        return 4 if inst.name.startswith(("s_load_", "s_buffer_load_")) else None
    size = WIDTHS.get(found[3].removeprefix("lds_"), (4, False, None))[0]
    return min(size, 4)


class Address:
    """Where an instruction's lanes access memory.

    Attributes
    ----------
    of : callable
        ``(group) -> array`` of addresses (device memory) or offsets (scratch).
    registers : tuple of int
        What they are made of.
    scratch : callable
        ``(group) -> bool``: whether it is scratch.
    """

    def __init__(self, inst: Instruction, space: str, texts: list[str]):
        self.inst = inst
        offset = inst.number("offset")
        if space == "buffer":
            self._buffer(texts, offset)
        elif space == "scratch":
            self._parts(texts, offset, "u32")
            self.is_scratch = True
        else:
            self._parts(texts, offset, "u64")
            self.is_scratch = False

    def _parts(self, texts: list[str], offset: int, kind: str) -> None:
        sources = []
        alone = len(texts) < 2 or texts[1] == "off"
        for at, text in enumerate(texts):
            if text == "off" or text == "null":
                continue
            narrow = at == 0 and (not alone or kind == "u32")
            sources.append(source(text, "u32" if narrow else kind, at, bare(self.inst)))
        self.registers = numbers(*(s.registers for s in sources))
        self._sources = sources
        wide = "i8" if kind == "u64" else "u4"
        step = np.array(offset, "i8").astype(wide).astype("u8" if kind == "u64" else "u4")

        def of(g: Group) -> Any:
            total: Any = step
            for one in sources:
                total = total + np.asarray(one.value(g), step.dtype)
            return total

        self.of = of

    def _buffer(self, texts: list[str], offset: int) -> None:
        """Read the operands of a buffer instruction: lane's offset, descriptor, wave's offset."""
        inst = self.inst
        lane, descriptor, wave = texts
        held = registers(descriptor)
        if held is None or not held.is_scalar:
            raise Unsupported(f"{inst.text!r}")
        base = held.first - SGPR
        if "idxen" in inst.modifiers:
            raise Unsupported(f"{inst.text!r}: an index")
        sources = [scalar_source(wave, "u32")]
        if "offen" in inst.modifiers:
            sources.append(source(lane, "u32", 0, bare(inst)))
        self._sources = sources
        self.registers = numbers(held.numbers, *(s.registers for s in sources))
        self.is_scratch = None
        step = np.uint32(offset)
        in_lane = len(sources) == 2

        def offsets(g: Group) -> Any:
            total = sources[0].value(g)
            total = (total[:, None] if np.ndim(total) else total) + step
            return total + sources[1].value(g) if in_lane else total

        self.offsets = offsets
        self.descriptor = base

    def resolve(self, g: Group, size: int) -> tuple[bool, np.ndarray, np.ndarray | None]:
        """Return whether it is scratch, the active lanes' places, and which are in bounds."""
        if not g.unclean.isdisjoint(self.registers):
            for one in self._sources:
                bits = np.asarray(one.undefined(g))
                bits = bits[:, None] if bits.ndim == 1 else bits
                if np.any(active(g, np.broadcast_to(bits, g.exec.shape))):
                    raise g.mistake("its address is made of registers that nothing wrote")
        if self.is_scratch is not None:
            return self.is_scratch, active(g, self.of(g)), None
        s = self.descriptor
        offsets = active(g, np.asarray(self.offsets(g), "u4"))
        if (g.s[s + 1] & _SWIZZLE).any():
            return True, offsets, None
        low, high = g.s[s], g.s[s + 1] & np.uint32(0xFFFF)
        base = active(g, pair(low, high)[:, None])
        records = active(g, g.s[s + 2][:, None])
        inside = offsets.astype("u8") + np.uint64(size) <= records
        return False, base + offsets, inside


def bare(inst: Instruction) -> Instruction:
    return Instruction(inst.name, "", inst.operands, {}, inst.text, inst.address)


def counter_of(processor: Processor, storing: bool) -> str:
    return "vs" if storing and processor.lanes == 32 else "vm"


def place(g: Group, addresses: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    regions = g.machine.launch.regions
    try:
        return regions.locate(addresses, size)
    except LookupError as error:
        address = error.args[0]
        raise g.mistake(
            f"it accesses {size} bytes at {address:#x}, {regions.nearest(address)}"
        ) from None


def _scratch_place(g: Group, offsets: np.ndarray, size: int) -> np.ndarray:
    machine = g.machine
    if np.any(offsets.astype("i8") + size > machine.scratch_size):
        raise g.mistake(
            f"it accesses {size} bytes of scratch at {int(offsets.max())}, of which there are "
            f"{machine.scratch_size}"
        )
    lane = active(g, g.ids[:, None] * g.lanes + np.arange(g.lanes))
    return lane * machine.scratch_size + offsets.astype("i8")


def deliver(
    g: Group, held: Registers, values: np.ndarray, undefined: np.ndarray | None, size: int,
    signed: bool, half: int | None,
) -> None:  # fmt: skip
    """Write loaded items of the active lanes to registers."""
    if signed:
        values = values.view(f"i{size}").astype("i4").view("u4")
    whole = spread(g, np.asarray(values, "u4"))
    bad = None if undefined is None else spread(g, np.asarray(undefined, "u4"))
    if half is not None:
        put_half(g, held.first, half, whole & np.uint32(0xFFFF), bad)
    elif size <= 4:
        put(g, held.first, whole, bad)
    else:
        for k in range(size // 4):
            put(g, held.first + k, whole[..., k], None if bad is None else bad[..., k])


def destination(text: str, size: int) -> Registers:
    held = registers(text)
    if held is None or held.is_scalar:
        raise Unsupported(f"{text!r} as vector registers")
    return Registers(held.first, max(size // 4, 1), held.half)


def _load(
    inst: Instruction, space: str, size: int, signed: bool, half: int | None, processor: Processor
) -> Step:
    held = destination(inst.operands[0], size)
    address = Address(inst, space, list(inst.operands[1:]))
    counter = counter_of(processor, False)
    writes = numbers(held.numbers)

    def run(g: Group) -> None:
        machine = g.machine
        in_scratch, places, inside = address.resolve(g, size)
        access, undefined = None, None
        if in_scratch:
            at = _scratch_place(g, places, size)
            values = machine.scratch.load(at, size)
            undefined = machine.scratch_undefined.load(at, size)
        else:
            values, access = load_device(g, places, size, inside)
        deliver(g, held, values, undefined, size, signed, half)
        machine.waits.issue(g, counter, tuple(held.numbers), inst.text, access)
        if space == "flat":
            machine.waits.issue(g, "lgkm", tuple(held.numbers), inst.text, None, False)

    run.counter = counter
    reads = address.registers | (writes if half is not None else frozenset())
    return Step(inst, run, reads - writes if half is None else address.registers, writes)


def load_device(
    g: Group, places: np.ndarray, size: int, inside: np.ndarray | None
) -> tuple[np.ndarray, Any]:
    """Load the active lanes' items from device memory; 0 where a buffer ends before."""
    machine = g.machine
    waves = waves_of(g)
    if inside is not None and not inside.all():
        shape = places.shape + ((size // 4,) if size > 4 else ())
        values = np.zeros(shape, f"u{min(size, 4)}")
        places, waves = places[inside], waves[inside]
    else:
        values, inside = None, None
    if not len(places):
        return values if values is not None else np.zeros(
            (0, size // 4) if size > 4 else 0, "u4"
        ), None
    offsets, shadows = place(g, places, size)
    found = machine.launch.regions.bytes.load(offsets, size)
    shadow = machine.launch.shadow
    machine.race(shadow.read(shadows, size, machine.stamps[waves]), "memory", False)
    access = (shadow, shadows, size, waves, "memory", False, False)
    if inside is None:
        return found, access
    values[inside] = found
    return values, access


def data_of(inst: Instruction, text: str, size: int, half: int | None) -> Callable[[Group], Any]:
    """Return a function that gives the active lanes' items and their undefined bits."""
    held = destination(text, size)
    shift = np.uint32(16 * (half or held.half or 0))
    kind = f"u{size}" if size < 4 else "u4"

    def data(g: Group) -> tuple[np.ndarray, np.ndarray | None]:
        rows = [g.row(n) for n in held.numbers]
        unclean = not g.unclean.isdisjoint(held.numbers)

        def gathered(array: np.ndarray) -> np.ndarray:
            if size <= 4:
                return (active(g, array[rows[0]]) >> shift).astype(kind)
            return np.stack([active(g, array[row]) for row in rows], -1)

        values = gathered(g.v)
        if not unclean:
            return values, None
        bad = np.zeros_like(g.undefined[rows[0]])
        parts = []
        for n, row in zip(held.numbers, rows, strict=True):
            parts.append(g.undefined[row] if n in g.unclean else bad)
        if size <= 4:
            return values, (active(g, parts[0]) >> shift).astype(kind)
        return values, np.stack([active(g, part) for part in parts], -1)

    data.registers = tuple(held.numbers)
    return data


def _store(
    inst: Instruction, space: str, size: int, signed: bool, half: int | None, processor: Processor
) -> Step:
    texts = list(inst.operands)
    if space == "buffer":
        text, texts = texts[0], texts[1:]
    else:
        text = texts.pop(1)
    data = data_of(inst, text, size, half)
    address = Address(inst, space, texts)
    counter = counter_of(processor, True)

    def run(g: Group) -> None:
        machine = g.machine
        in_scratch, places, inside = address.resolve(g, size)
        values, undefined = data(g)
        access = None
        if in_scratch:
            at = _scratch_place(g, places, size)
            machine.scratch.store(at, size, values)
            machine.scratch_undefined.store(at, size, 0 if undefined is None else undefined)
        else:
            if undefined is not None and undefined.any():
                raise g.mistake("it stores registers that nothing wrote")
            waves = waves_of(g)
            if inside is not None and not inside.all():
                places, values, waves = places[inside], values[inside], waves[inside]
            if len(places):
                access = store_device(g, places, size, values, waves)
        machine.waits.issue(g, counter, (), inst.text, access)
        if space == "flat":
            machine.waits.issue(g, "lgkm", (), inst.text, None, False)

    run.counter = counter
    return Step(inst, run, address.registers | frozenset(data.registers))


def agree(g: Group, memory: Bytes, at: np.ndarray, size: int, values: np.ndarray) -> None:
    """Fail if lanes have written different values to the same bytes."""
    if (memory.load(at, size) != values).any():
        raise g.mistake("it writes other values to the same bytes than other lanes of the wave")


def store_device(
    g: Group, places: np.ndarray, size: int, values: np.ndarray, waves: np.ndarray
) -> Any:
    """Store items to device memory."""
    machine = g.machine
    offsets, shadows = place(g, places, size)
    memory, shadow = machine.launch.regions.bytes, machine.launch.shadow
    changed = memory.load(offsets, size) != values
    changed = changed.any(-1) if changed.ndim > 1 else changed
    found = shadow.write(shadows, size, machine.stamps[waves], changed, False)
    machine.race(found, "memory", True)
    memory.store(offsets, size, values)
    agree(g, memory, offsets, size, values)
    return (shadow, shadows, size, waves, "memory", True, False)


# Loads that go to LDS: lane after lane behind the address in M0.


def _load_to_lds(inst: Instruction, space: str, size: int, processor: Processor) -> Step:
    address = Address(inst, space, [t for t in inst.operands if t])

    def run(g: Group) -> None:
        machine = g.machine
        _, places, inside = address.resolve(g, size)
        values, _ = load_device(g, places, size, inside)
        if SGPR + M0 in g.unclean:
            raise g.mistake("M0, the address in LDS, was not written")
        lane = np.arange(g.lanes, dtype="u4") * np.uint32(max(size, 4))
        first = g.s[M0][:, None] + np.uint32(inst.number("offset")) + lane
        at, waves = lds_place(g, active(g, first), size), waves_of(g)
        stamps = machine.stamps[waves]
        shadow = machine.lds_shadow
        machine.race(shadow.write(at, size, stamps, np.ones(len(at), bool), False), "LDS", True)
        machine.lds.store(at, size, values)
        machine.lds_undefined.store(at, size, 0)
        access = (shadow, at, size, waves, "LDS", True, False)
        machine.waits.issue(g, "vm", (), inst.text, access)

    run.counter = "vm"
    return Step(inst, run, address.registers | {SGPR + M0})
