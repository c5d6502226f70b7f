"""A small Llama as serving systems compile it: one module, many functions, one paged cache.

Weights are one tuple, the cache is an object of TVM's runtime, which calls PrimFuncs of the module;
batch and length are symbolic. Beside the model stand what samplers need: a PrimFunc that is
scheduled already, one that writes in place, and packed functions of the runtime.
"""

import tvm
from tvm import relax, te, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op
from tvm.relax.frontend.nn.llm import kv_cache

LAYERS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INNER, VOCABULARY = 2, 4, 2, 8, 32, 56, 50
PAGE, MOST_TOKENS, MOST_SEQUENCES, CHUNK = 16, 64, 4, 32
DTYPE = "float32"


class Attention(nn.Module):
    """Grouped-query attention over the pages of the cache."""

    def __init__(self):
        self.qkv = nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
        self.out = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)

    def forward(self, hidden, cache, layer):
        batch, length, _ = hidden.shape
        qkv = op.reshape(self.qkv(hidden), (batch, length, HEADS + 2 * KV_HEADS, HEAD_DIM))
        mixed = cache.attention_with_fused_qkv(layer, qkv, HEADS, HEAD_DIM**-0.5)
        return self.out(op.reshape(mixed, (batch, length, HEADS * HEAD_DIM)))


class Gated(nn.Module):
    """SwiGLU whose two products are one."""

    def __init__(self):
        self.gate_up = nn.Linear(HIDDEN, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, hidden):
        gate, up = op.split(self.gate_up(hidden), 2, axis=-1)
        return self.down(op.silu(gate) * up)


class Layer(nn.Module):
    """Attention and SwiGLU, each behind its norm, around residuals."""

    def __init__(self):
        self.attention = Attention()
        self.gated = Gated()
        self.before = nn.RMSNorm(HIDDEN, -1, 1e-5, bias=False)
        self.between = nn.RMSNorm(HIDDEN, -1, 1e-5, bias=False)

    def forward(self, hidden, cache, layer):
        hidden = self.attention(self.before(hidden), cache, layer) + hidden
        return self.gated(self.between(hidden)) + hidden


class Llama(nn.Module):
    """The functions that a server calls."""

    def __init__(self):
        self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm = nn.RMSNorm(HIDDEN, -1, 1e-5, bias=False)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def _hidden(self, embedded, cache):
        hidden = embedded
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden, cache, number)
        return self.norm(hidden)

    def embed(self, ids):
        return self.tokens(ids)

    def prefill(self, embedded, paged_kv_cache):
        hidden = self._hidden(embedded, paged_kv_cache)
        last = op.tensor_expr_op(
            lambda x: te.compute((1, 1, HIDDEN), lambda i, _, k: x[i, x.shape[1] - 1, k], "last"),
            "last_token",
            [hidden],
        )
        return self.head(last), paged_kv_cache

    def decode(self, embedded, paged_kv_cache):
        return self.head(self._hidden(embedded, paged_kv_cache)), paged_kv_cache

    def batch_prefill(self, embedded, logit_positions, paged_kv_cache):
        hidden = self._hidden(embedded, paged_kv_cache)
        return self.head(op.take(hidden, logit_positions, axis=1)), paged_kv_cache

    def batch_decode(self, embedded, paged_kv_cache):
        return self.head(self._hidden(embedded, paged_kv_cache)), paged_kv_cache

    def softmax_with_temperature(self, logits, temperature):
        return op.softmax(logits / op.reshape(temperature, (temperature.shape[0], 1, 1)), axis=-1)

    def create_paged_kv_cache(
        self,
        max_batch_size: tirx.Var,
        max_total_seq_len: tirx.Var,
        prefill_chunk_size: tirx.Var,
        page_size: tirx.Var,
        support_sliding_window: tirx.Var,
    ):
        return kv_cache.TIRPagedKVCache(
            "mha",
            max_batch_size,
            max_total_seq_len,
            prefill_chunk_size,
            page_size,
            support_sliding_window,
            relax.ShapeExpr([0, LAYERS]),
            LAYERS,
            HEADS,
            KV_HEADS,
            HEAD_DIM,
            HEAD_DIM,
            0,
            0,
            kv_cache.RopeMode.NORMAL,
            1,
            10000,
            {},
            relax.prim_value(0),
            HEAD_DIM,
            False,
            DTYPE,
            tvm.target.Target.current(),
        )


def specification() -> dict:
    def spec(*inputs):
        return {**dict(inputs), "$": {"param_mode": "packed", "effect_mode": "none"}}

    cache = ("paged_kv_cache", nn.spec.Object(object_type=kv_cache.PagedKVCache))

    def hidden(*shape):
        return ("embedded", nn.spec.Tensor([*shape, HIDDEN], DTYPE))

    sizes = ("max_batch_size", "max_total_seq_len", "prefill_chunk_size", "page_size")
    return {
        "embed": spec(("ids", nn.spec.Tensor(["length"], "int32"))),
        "prefill": spec(hidden(1, "length"), cache),
        "decode": spec(hidden(1, 1), cache),
        "batch_prefill": spec(
            hidden(1, "length"), ("logit_positions", nn.spec.Tensor(["batch"], "int32")), cache
        ),
        "batch_decode": spec(hidden("batch", 1), cache),
        "softmax_with_temperature": {
            "logits": nn.spec.Tensor(["batch", 1, VOCABULARY], DTYPE),
            "temperature": nn.spec.Tensor(["batch"], DTYPE),
            "$": {"param_mode": "none", "effect_mode": "none"},
        },
        "create_paged_kv_cache": {
            **dict.fromkeys((*sizes, "support_sliding_window"), int),
            "$": {"param_mode": "none", "effect_mode": "none"},
        },
    }
