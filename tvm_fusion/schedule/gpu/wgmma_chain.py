"""Whole warpgroup products (wgmma.mma_async) as one statement, which waits for them.

    wgmma.fence; for each product, for each k16: wgmma; commit; wait

A is in registers or in shared memory, B in shared memory, as :mod:`.wgmma` describes them. All
instructions are one statement: registers that an instruction still reads or writes must not be
touched, which a compiler of several statements does not know of fragments of A.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from .mma import PTX_TYPES
from .wgmma import EIGHT_ROWS, K, Operand

_CHAIN = """
__device__ __forceinline__ void {name}({parameters}) {{
{declarations}
  asm volatile("{{\\n\\t.reg .b64 a, b;\\n\\t.reg .pred p, q;\\n\\t"
      "setp.ne.b32 p, 0, 0;\\n\\tsetp.ne.b32 q, 1, 0;\\n\\t"
      "wgmma.fence.sync.aligned;\\n\\t"
{instructions}
      "wgmma.commit_group.sync.aligned;\\n\\t"
      "wgmma.wait_group.sync.aligned 0;\\n\\t}}"
      : {outputs}
      : {inputs}
      : "memory");
}}
"""
_WORDS = """\
  const unsigned* x{i} = (const unsigned*)a{i};"""
_DESCRIBED = """\
  unsigned {to}_place{i} = (unsigned)__cvta_generic_to_shared({source});
  unsigned long long {to}{i}_tile = (unsigned long long)(({to}_place{i} & 0x3FFFF) >> 4)
                       | ({leading}ull << 16) | ({stride}ull << 32) | (1ull << 62);"""
_INSTRUCTION = """\
      "{moved}add.s64 b, %{b}, {step};\\n\\t"
      "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{short}.{short} "
      "{{{acc}}}, {a}, b, {p}, 1, 1, {turned};\\n\\t\""""


@dataclass(frozen=True)
class Product:
    """``acc = a * b``, or ``acc += a * b``.

    Attributes
    ----------
    n, k : int
        Columns of B, a multiple of 8 up to 256, and its rows, a multiple of 16.
    acc : TensorLoad
        The first of a thread's n / 2 accumulators.
    a : TensorLoad, or (Operand, TensorLoad)
        The first of a thread's fragments of A: for 16 of k four values of row groupID, then four of
        row groupID + 8. Or how A lies, K contiguous, and the first element of the warpgroup's rows
        in shared memory, aligned to 1024 bytes.
    b : (Operand, TensorLoad)
        How B lies, and its first element in shared memory, aligned to 1024 bytes.
    is_added : bool
        Whether the accumulators hold terms already.
    """

    n: int
    k: int
    acc: ir.TensorLoad
    a: ir.TensorLoad | tuple[Operand, ir.TensorLoad]
    b: tuple[Operand, ir.TensorLoad]
    is_added: bool

    @property
    def name(self) -> str:
        """Part of a function's name, different for products of different instructions."""
        layout, _ = self.b
        order = "nk" if layout.is_k_contiguous else "kn"
        a = f"_s{self.a[0].panel_bytes}" if isinstance(self.a, tuple) else ""
        return f"m64n{self.n}k{self.k}{a}_{order}_{layout.panel_bytes}_{int(self.is_added)}"


def multiply_and_wait(dtype: str, products: Sequence[Product]) -> tirx.Stmt:
    """Compute products of a warpgroup, none of which reads what another gives.

    Parameters
    ----------
    dtype : str
        Type of A and B.
    products : sequence of Product
        In the order of their instructions.
    """
    short = PTX_TYPES[dtype]
    place = sum(p.n // 2 for p in products)
    first = 0
    parts: list[_Part] = []
    for number, product in enumerate(products):
        parts.append(_Part(number, product, first, place))
        first, place = first + product.n // 2, parts[-1].end
    name = f"tvm_fusion_wgmma_{short}_" + "_".join(p.name for p in products)
    source = _CHAIN.format(
        name=name,
        parameters=", ".join(f"float* acc{i}, const void* a{i}, const void* b{i}"
                             for i in range(len(products))),
        declarations="\n".join(p.declarations for p in parts),
        instructions="\n".join(x for p in parts for x in p.instructions(short)),
        outputs=", ".join(x for p in parts for x in p.outputs),
        inputs=", ".join(x for p in parts for x in p.inputs),
    )  # fmt: skip
    places = []
    for product in products:
        a = product.a[1] if isinstance(product.a, tuple) else product.a
        places += [product.acc, a, product.b[1]]
    addresses = [tirx.address_of(x) for x in places]
    return tirx.Evaluate(cuda_func_call(name, *addresses, source_code=source))


@dataclass(frozen=True)
class _Part:
    """One product in the text: operands from ``%first`` are its sums, from ``%place`` the rest."""

    number: int
    product: Product
    first: int
    place: int

    @property
    def _steps(self) -> int:
        return self.product.k // K

    @property
    def _described(self) -> Operand | None:
        return self.product.a[0] if isinstance(self.product.a, tuple) else None

    @property
    def _b(self) -> int:
        return self.place + (4 * self._steps if self._described is None else 1)

    @property
    def end(self) -> int:
        """The number of the next product's operands."""
        return self._b + 1

    @property
    def declarations(self) -> str:
        i = self.number
        b = _described("b", i, self.product.b[0])
        if self._described is None:
            return f"{_WORDS.format(i=i)}\n{b}"
        return f"{_described('a', i, self._described)}\n{b}"

    @property
    def outputs(self) -> list[str]:
        return [f'"+f"(acc{self.number}[{i}])' for i in range(self.product.n // 2)]

    @property
    def inputs(self) -> list[str]:
        i = self.number
        words = [4 * k16 + w for k16 in range(self._steps) for w in (0, 2, 1, 3)]
        a = [f'"r"(x{i}[{w}])' for w in words]
        return [*(a if self._described is None else [f'"l"(a{i}_tile)']), f'"l"(b{i}_tile)']

    def instructions(self, short: str) -> list[str]:
        product, layout = self.product, self.product.b[0]
        found = []
        for k16 in range(self._steps):
            moved, a = "", f"{{{_registers(self.place + 4 * k16, 4)}}}"
            if self._described is not None:
                moved, a = f"add.s64 a, %{self.place}, {self._described.step(k16)}; ", "a"
            turned = int(not layout.is_k_contiguous)
            found.append(
                _INSTRUCTION.format(
                    moved=moved,
                    b=self._b,
                    step=layout.step(k16),
                    n=product.n,
                    short=short,
                    acc=_registers(self.first, product.n // 2),
                    a=a,
                    p="q" if k16 or product.is_added else "p",
                    turned=turned if self._described is None else f"0, {turned}",
                )
            )
        return found


def _described(to: str, number: int, layout: Operand) -> str:
    return _DESCRIBED.format(
        to=to, i=number, source=f"{to}{number}", leading=layout.leading, stride=EIGHT_ROWS
    )


def _registers(first: int, count: int) -> str:
    return ", ".join(f"%{i}" for i in range(first, first + count))
