"""A warp-specialized GEMM of TMA, mbarriers and wgmma, small and open to planted mistakes.

block: threads of a producer warpgroup, then of ``consumers``
    one thread initializes full[stage] (1 arrival) and empty[stage] (4 warps of each consumer)
    producer:  one thread; for tile, k:  wait(empty); expect_bytes(full); TMA of A and B
    consumer:  for tile:
                   for k:  wait(full); 4 wgmma of k16; commit; wait for the group before;
                           lane 0 of each warp arrives on empty of the stage before
                   wait(0); arrive on empty of the last stage; store 64 rows of accumulators
"""

from dataclasses import dataclass

import tvm
from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from tvm_fusion._tvm.ir.buffer import declare
from tvm_fusion.core.tir.expressions import load
from tvm_fusion.core.tir.loops import block, index, local, loop, sequence, threads, when
from tvm_fusion.schedule.gpu.matrix import wgmma
from tvm_fusion.schedule.gpu.memory import mbarrier, tma
from tvm_fusion.schedule.gpu.memory.shared_tiles import block_barrier, touch

NOTHING = tirx.Evaluate(0)
UNIFORM = """
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }
"""


def uniform(value):
    """Broadcast a value of the first lane, so that the compiler knows it as the warp's."""
    number = tirx.Cast("int32", value)
    return cuda_func_call("uniform", number, source_code=UNIFORM, return_type="int32")


@dataclass(frozen=True)
class Gemm:
    """C[m, n] = A[m, k] @ B; B is [n, k] or, of half types, [k, n]."""

    m: int
    n: int
    k: int
    is_k_contiguous: bool = True
    dtype: str = "float16"
    block_n: int = 64
    stages: int = 3
    consumers: int = 2
    blocks: int = 2
    mistake: str = ""  # what is wrong, of the names in the methods; empty for nothing

    @property
    def block_k(self):
        return tma.ROW_BYTES // tvm.DataType(self.dtype).itemsize

    @property
    def panel_bytes(self):
        """Of as many columns of a B whose columns are contiguous."""
        return self.block_k * tma.ROW_BYTES

    @property
    def sums(self):
        return "int32" if "int" in self.dtype else "float32"

    @property
    def block_m(self):
        return wgmma.M * self.consumers

    @property
    def a_bytes(self):
        return self.block_m * tma.ROW_BYTES

    @property
    def stage_bytes(self):
        return self.a_bytes + self.block_n * tma.ROW_BYTES

    @property
    def steps(self):
        return -(-self.k // self.block_k)

    def kernel(self):
        """Return the PrimFunc of A, B and C."""
        shape = (self.n, self.k) if self.is_k_contiguous else (self.k, self.n)
        a, b = declare((self.m, self.k), self.dtype, "a"), declare(shape, self.dtype, "b")
        c = declare((self.m, self.n), self.sums, "c")
        of_b = self.block_n if self.is_k_contiguous else self.block_k
        boxes = (self.block_k, self.block_m), (self.block_k, of_b)
        maps, before = [], []
        for buffer, box in zip((a, b), boxes, strict=True):
            rows, columns = buffer.ty.shape
            view = tma.TensorMap(buffer, index(0), (columns, rows), (columns,), box)
            variable, stmts = view.encode(f"{buffer.name}_map")
            maps.append(variable)
            before += stmts
        grid = threads("blockIdx.x", self.blocks, lambda i: self._block(i, maps, c))
        attrs = {"s_tir": True, "tirx.noalias": True}
        func = tirx.PrimFunc([a, b, c], block("root", sequence([*before, grid])))
        return func.with_attrs(attrs)

    def _block(self, number, maps, c):
        size = self.stages * (self.stage_bytes + 2 * mbarrier.BYTES)
        shared = tirx.decl_buffer(
            [index(size)], "uint8", "shared", scope="shared.dyn", data_alignment=1024, layout=None
        )
        kernel = _Block(self, number, maps, c, shared)
        count = 128 * (1 + self.consumers)
        return block("gemm", threads("threadIdx.x", count, kernel.thread), [shared])


@dataclass(frozen=True)
class _Block:
    gemm: Gemm
    number: ir.Expr
    maps: list
    c: ir.Var
    shared: ir.Var

    def _has(self, mistake):
        return self.gemm.mistake == mistake

    def _unless(self, mistake, stmt):
        return NOTHING if self._has(mistake) else stmt

    def _place(self, stage, offset=0):
        return load(self.shared, [index(stage) * self.gemm.stage_bytes + offset])

    def _bar(self, kind, stage):
        stages = self.gemm.stages
        first = stages * self.gemm.stage_bytes + (stages * mbarrier.BYTES if kind == "empty" else 0)
        return load(self.shared, [index(stage) * mbarrier.BYTES + first])

    def thread(self, t):
        gemm, group = self.gemm, tirx.Var("group", "int32")
        arrivals = 4 * (1 if self._has("too few arrivals counted") else gemm.consumers)
        init = [
            mbarrier.init(self._bar(kind, s), count)
            for s in range(gemm.stages)
            for kind, count in (("full", 1), ("empty", arrivals))
        ]
        fence = self._unless("no fence of barriers", mbarrier.fence_init())
        number = uniform(t // 128)
        acc = local("acc", [gemm.block_n // 2], gemm.sums)
        roles = tirx.IfThenElse(
            group.equal(0),
            sequence([wgmma.give_registers(40), when(t.equal(0), self._tiles(self._produce))]),
            sequence([wgmma.take_registers(232), self._tiles(self._consume(acc, t, group))]),
        )
        barrier = self._unless("no barrier of the block", block_barrier())
        parts = [when(t.equal(0), sequence([*init, fence])), barrier, tirx.Bind(group, number)]
        return block("thread", sequence([*parts, roles]), [acc])

    def _tiles(self, body):
        gemm = self.gemm
        across = -(-gemm.n // gemm.block_n)
        tiles = -(-gemm.m // gemm.block_m) * across
        trips = (index(tiles) - self.number + (gemm.blocks - 1)) // gemm.blocks

        def tile(i):
            of = self.number + i * gemm.blocks
            return body(i * gemm.steps, of // across, of % across)

        return loop("tile", trips, tile)

    def _produce(self, first, row, column):
        gemm = self.gemm

        def step(k):
            turn = first + k
            stage = turn % gemm.stages
            full = self._bar("full", stage)
            size = gemm.stage_bytes
            size += 16 * self._has("too many bytes") - 64 * 128 * self._has("too few bytes")
            copies = [
                self._copy(stage, 0, self.maps[0], full, [k * gemm.block_k, row * gemm.block_m])
            ]
            at, to = gemm.a_bytes, column * gemm.block_n
            if gemm.is_k_contiguous:
                copies.append(self._copy(stage, at, self.maps[1], full, [k * gemm.block_k, to]))
            else:
                for i in range(gemm.block_n // gemm.block_k):
                    places = [to + i * gemm.block_k, k * gemm.block_k]
                    offset = at + i * gemm.panel_bytes
                    copies.append(self._copy(stage, offset, self.maps[1], full, places))
            parity = (turn // gemm.stages + (0 if self._has("wrong parity") else 1)) % 2
            expect = mbarrier.expect_bytes(full, size)
            if self._has("arrive for expect_bytes"):
                expect = mbarrier.arrive(full)
            wait = mbarrier.wait(self._bar("empty", stage), parity)
            wait = self._unless("no wait for empty", wait)
            return sequence([wait, self._unless("no expect_bytes", expect), *copies])

        return loop("k", gemm.steps + self._has("one copy too many"), step)

    def _copy(self, stage, offset, tensor_map, full, places):
        offset += 64 * self._has("unaligned box")
        return tma.load(self._place(stage, offset), tensor_map, full, places)

    def _consume(self, acc, t, group):
        gemm, is_early = self.gemm, self._has("empty before the wait")
        rows = (tirx.Cast("int64", group) - 1) * wgmma.M

        def release(turn):
            bar = self._bar("empty", turn % gemm.stages)
            return self._unless("no arrive", when((t % 32).equal(0), mbarrier.arrive(bar)))

        def step(k, first):
            turn = first + k
            stage = turn % gemm.stages
            wait = mbarrier.wait(self._bar("full", stage), turn // gemm.stages % 2)
            before = turn + gemm.stages - (0 if self._has("release of the wrong stage") else 1)
            pending = 2 if self._has("wait for too few products") else 1
            end = [wgmma.wait(pending), when(k > 0, release(before))]
            if is_early:
                end = [release(turn), wgmma.wait(1)]
            return sequence(
                [
                    self._unless("no wait for full", wait),
                    self._unless("no fence", wgmma.fence()),
                    *self._products(acc, stage, rows, k),
                    self._unless("no commit", wgmma.commit()),
                    *end,
                ]
            )

        def tile(first, row, column):
            k_loop = loop("k", gemm.steps, lambda k: step(k, first))
            end = [wgmma.wait(1 if self._has("no wait for the last products") else 0)]
            if not is_early:
                end.append(release(first + (gemm.steps - 1)))
            return sequence([k_loop, *end, self._store(acc, t, row * gemm.block_m + rows, column)])

        return tile

    def _products(self, acc, stage, rows, k):
        gemm = self.gemm
        of_a = wgmma.Operand(True, 0)
        of_b = wgmma.Operand(gemm.is_k_contiguous, gemm.panel_bytes)
        a, b = tirx.Var("of_a", "uint64"), tirx.Var("of_b", "uint64")
        yield tirx.Bind(a, of_a.descriptor(self._place(stage, rows * tma.ROW_BYTES)))
        yield tirx.Bind(b, of_b.descriptor(self._place(stage, gemm.a_bytes)))
        for i in range(4):
            step = of_a.step(i) // (2 if self._has("wrong step") else 1)
            yield wgmma.multiply(
                (gemm.dtype, gemm.dtype),
                gemm.block_n,
                load(acc, [index(0)]),
                (of_a, a + tirx.const(step, "uint64")),
                (of_b, b + tirx.const(of_b.step(i), "uint64")),
                k > 0 if i == 0 else tirx.const(True),
            )

    def _store(self, acc, t, row, column):
        gemm = self.gemm

        def element(i):
            lane = t % 32
            r = row + t % 128 // 32 * 16 + lane // 4 + i // 2 % 2 * 8
            c = column * gemm.block_n + i // 4 * 8 + lane % 4 * 2 + i % 2
            store = tirx.BufferStore(self.c, load(acc, [i]), [r, c])
            return when(tirx.all(r < gemm.m, c < gemm.n), store)

        count = gemm.block_n // 2
        return sequence([touch(acc, count - 1), loop("i", count, element)])
