"""Add up the workers' rows over peers' memory, with the residual and the norm behind it.

grid: a block for each row;  block: a thread for every 8 elements
    send      own elements, with the number of the exchange, to the row's line at each peer
    receive   until the peers' elements have that number in the own lines; add up by ranks
    add       the residual, which is float32 or half as its sum is
    norm      squares over the block, root, weight                          half

The next kernel is launched at once: it asks L2 for its weights while this one waits for peers.
"""

import math
from collections.abc import Sequence
from typing import Literal

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call

from .._tvm.ir.buffer import declare
from ..core.peer_memory import LINES, MOST_ROWS, ROW_BYTES, TURNS
from ..core.tir.expressions import load
from ..core.tir.loops import block, index, sequence, threads
from ..core.untouched import SCHEDULED
from ..schedule.gpu.launch import dependents_launch

Form = Literal["sum", "residual", "norm"]
VECTOR = 8  # half elements of a thread
_WARP, _MOST_THREADS = 32, 1024
_NATIVE = {"float16": "half", "bfloat16": "nv_bfloat16", "float32": "float"}
_NARROW = {"float16": "__float2half_rn", "bfloat16": "__float2bfloat16_rn"}
_WIDE = {"float16": "__half2float", "bfloat16": "__bfloat162float"}

_SOURCE = """
__device__ __forceinline__ void NAME(
    const void* x, const void* r, const void* w, const void* peers_at, void* t, void* out,
    float epsilon) {
  struct __align__(16) Summand { SUMMAND e[8]; };
  struct __align__(16) Scale { SCALE e[8]; };
  const long long* peers = (const long long*)peers_at;
  __shared__ float parts[32];
  const int row = blockIdx.x, rank = (int)peers[SIZE];
  char* own = (char*)peers[rank];
  volatile unsigned* turns = (volatile unsigned*)(own + TURNS);
  const unsigned turn = turns[row] + 1;
  const long long line = 2 * ROW_BYTES, set = (long long)(turn & 1) * SIZE;
  uint4 mine[VECTORS];
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    const int i = threadIdx.x + k * THREADS;
    if (i >= COUNT) continue;
    mine[k] = ((const uint4*)x)[row * COUNT + i];
#pragma unroll
    for (int p = 0; p < SIZE; ++p) {
      if (p == rank) continue;
      char* to = (char*)peers[p] + LINES + ((set + rank) * ROWS + row) * line + 32 * i;
      asm volatile("st.volatile.global.v4.u32 [%0], {%1, %3, %2, %3};"
                   :: "l"(to), "r"(mine[k].x), "r"(mine[k].y), "r"(turn) : "memory");
      asm volatile("st.volatile.global.v4.u32 [%0], {%1, %3, %2, %3};"
                   :: "l"(to + 16), "r"(mine[k].z), "r"(mine[k].w), "r"(turn) : "memory");
    }
  }
  Summand rest[VECTORS];  // on their way while others write
  Scale factors[VECTORS];
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    const int i = threadIdx.x + k * THREADS;
    if (i >= COUNT) continue;
    if (FORM > 0) rest[k] = ((const Summand*)r)[row * COUNT + i];
    if (FORM > 1) factors[k] = ((const Scale*)w)[i];
  }
  float sums[VECTORS][8], squares = 0.0f;
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    const int i = threadIdx.x + k * THREADS;
    if (i >= COUNT) continue;
#pragma unroll
    for (int j = 0; j < 8; ++j) sums[k][j] = 0.0f;
#pragma unroll
    for (int p = 0; p < SIZE; ++p) {
      uint4 v = mine[k];
      if (p != rank) {
        const char* from = own + LINES + ((set + p) * ROWS + row) * line + 32 * i;
        unsigned a, b, c, d, tries = 0;
        do {
          asm volatile("ld.volatile.global.v4.u32 {%0, %2, %1, %3}, [%4];"
                       : "=r"(v.x), "=r"(v.y), "=r"(a), "=r"(b) : "l"(from) : "memory");
          asm volatile("ld.volatile.global.v4.u32 {%0, %2, %1, %3}, [%4];"
                       : "=r"(v.z), "=r"(v.w), "=r"(c), "=r"(d) : "l"(from + 16) : "memory");
          if (++tries % 1024 == 0 && *(volatile unsigned*)own) break;
        } while (a != turn || b != turn || c != turn || d != turn);
      }
      const NATIVE* e = (const NATIVE*)&v;
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[k][j] += WIDE(e[j]);
    }
    if (FORM > 0) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        sums[k][j] += (float)rest[k].e[j];
        rest[k].e[j] = (SUMMAND)sums[k][j];
      }
      ((Summand*)t)[row * COUNT + i] = rest[k];
    }
    if (FORM > 1) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        sums[k][j] = WIDE(NARROW(sums[k][j]));
        squares += sums[k][j] * sums[k][j];
      }
    }
  }
  float factor = 1.0f;
  if (FORM > 1) {
#pragma unroll
    for (int lane = 16; lane; lane /= 2) squares += __shfl_xor_sync(0xffffffff, squares, lane);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = squares;
  }
  __syncthreads();
  if (threadIdx.x == 0) turns[row] = turn;
  if (FORM > 1) {
    squares = 0.0f;
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; ++warp) squares += parts[warp];
    factor = rsqrtf(squares / WIDTH + epsilon);
  }
  if (FORM == 1) return;
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    const int i = threadIdx.x + k * THREADS;
    if (i >= COUNT) continue;
    uint4 v;
    NATIVE* e = (NATIVE*)&v;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float s = FORM > 1 ? sums[k][j] * factor * (float)factors[k].e[j] : sums[k][j];
      e[j] = NARROW(s);
    }
    ((uint4*)out)[row * COUNT + i] = v;
  }
}
"""


def peer_sum(
    shape: Sequence[int],
    dtype: str,
    size: int,
    form: Form,
    epsilon: float,
    *,
    residual_dtype: str = "float32",
    scale_dtype: str = "float32",
) -> tirx.PrimFunc:
    """Make the kernel.

    Parameters
    ----------
    shape, dtype
        Of what is added up.
    form : {"sum", "residual", "norm"}
        What is computed: the sum; with a residual; and the RMS norm of both.
    residual_dtype, scale_dtype
        ``float32`` or `dtype`: of the residual and the sum with it; of the norm's weight.

    Returns
    -------
    PrimFunc
        Scheduled; over the tensor, the residual, the norm's weight and the addresses of the peers'
        memory; then the sum and the half result, as far as the form has them.
    """
    width = shape[-1]
    rows, count = math.prod(shape[:-1]), width // VECTOR
    lanes = min(_MOST_THREADS, -(-count // _WARP) * _WARP)
    number = ("sum", "residual", "norm").index(form)
    x = declare(shape, dtype, "x")
    residual = declare(shape, residual_dtype, "residual")
    scale = declare([width], scale_dtype, "scale")
    peers = declare([size + 1], "int64", "peers")
    total = declare(shape, residual_dtype, "total")
    out = declare(shape, dtype, "out")
    name = f"tvm_fusion_peer_{form}_{dtype}_{residual_dtype}_{scale_dtype}_{rows}_{width}_{size}"
    words = {
        "NAME": name, "SIZE": size, "TURNS": TURNS, "LINES": LINES, "ROW_BYTES": ROW_BYTES,
        "ROWS": MOST_ROWS, "VECTORS": -(-count // lanes), "THREADS": lanes, "COUNT": count,
        "WIDTH": width, "FORM": number, "NATIVE": _NATIVE[dtype], "WIDE": _WIDE[dtype],
        "NARROW": _NARROW[dtype], "SUMMAND": _NATIVE[residual_dtype], "SCALE": _NATIVE[scale_dtype],
    }  # fmt: skip
    given = {"sum": (x, peers), "residual": (x, residual, peers)}
    inputs = given.get(form, (x, residual, scale, peers))
    outputs = {"sum": (out,), "residual": (total,)}.get(form, (total, out))

    def first(buffer: tirx.Buffer) -> tirx.Expr:
        used = buffer if buffer in (*inputs, *outputs) else x  # a pointer that the form ignores
        return tirx.address_of(load(used, [index(0) for _ in used.ty.shape]))

    call = cuda_func_call(
        name,
        *map(first, (x, residual, scale, peers, total, out)),
        tirx.FloatImm("float32", epsilon),
        source_code=_replaced(_SOURCE, words),
    )
    body = sequence([dependents_launch(), tirx.Evaluate(call)])
    grid = threads("blockIdx.x", rows, lambda _row: threads("threadIdx.x", lanes, lambda _t: body))
    attrs = {"s_tir": True, "tirx.noalias": True, SCHEDULED: True}
    return tirx.PrimFunc([*inputs, *outputs], block("root", grid)).with_attrs(attrs)


def _replaced(text: str, words: dict[str, object]) -> str:
    import re

    return re.sub(r"\b(" + "|".join(words) + r")\b", lambda m: str(words[m[1]]), text)
