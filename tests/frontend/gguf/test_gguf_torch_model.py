"""Models of transformers with the weights of GGUF files, against the same weights unpacked."""

import gguf as reference
import numpy as np
import pytest
from gguf_files import wide, write

import tvm_fusion
from tvm_fusion.errors import UserError
from tvm_fusion.frontend import gguf

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

KINDS = ("Q4_0", "Q8_0", "Q4_1", "Q5_0", "F16")
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
}  # fmt: skip
HEADS = {"attention.head_count": 4, "attention.head_count_kv": 2, "block_count": 1}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "gemma3": lambda: transformers.Gemma3TextConfig(**SIZES, head_dim=16),
    "phi3": lambda: transformers.Phi3Config(**SIZES),
}


def model_of(config):
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def written(path, architecture, model):
    """Write a model as llama.cpp converts it; its matrices become what the file's blocks are."""
    archs = {name: arch for arch, name in reference.MODEL_ARCH_NAMES.items()}
    table = reference.get_tensor_name_map(archs[architecture], 1)
    tensors = {}
    for i, (own, parameter) in enumerate(model.named_parameters()):
        name = table.get_name(own, try_suffixes=(".weight", ".bias"))
        value = parameter.detach().numpy()
        if value.ndim == 1:
            is_shifted = architecture == "gemma3" and name.endswith("norm.weight")
            tensors[name] = value + 1 if is_shifted else value.copy()
            continue
        part = name.split(".")[-2]
        is_turned = architecture == "llama" and part in ("attn_q", "attn_k")
        heads = 4 if part == "attn_q" else 2
        if is_turned:
            value = value.reshape(heads, 2, -1, value.shape[1]).swapaxes(1, 2).reshape(value.shape)
        kind = KINDS[i % len(KINDS)]
        if kind == "F16":
            tensors[name] = value.astype("float16")
            kept = tensors[name].astype("float32")
        else:
            tensors[name] = kind, reference.quantize(value, reference.GGMLQuantizationType[kind])
            kept = wide(*tensors[name])
        if is_turned:
            kept = kept.reshape(heads, -1, 2, kept.shape[1]).swapaxes(1, 2).reshape(kept.shape)
        with torch.no_grad():
            parameter.copy_(torch.tensor(kept))
    return write(path, architecture, tensors, HEADS)


def unpacked_and_loaded(architecture, folder, factor=1.0):
    """A model with the weights that a file has, unpacked, and one that reads the file."""
    torch.manual_seed(0)
    config = CONFIGS[architecture]()
    model = model_of(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) / 10)
            else:
                parameter.mul_(factor)
    path = written(folder / "model.gguf", architecture, model)
    return model, gguf.load(model_of(config), path)


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("architecture", CONFIGS)
def test_logits_equal_those_of_the_unpacked_model(architecture, tmp_path):
    model, loaded = unpacked_and_loaded(architecture, tmp_path)
    ids = torch.randint(3, SIZES["vocab_size"], (1, 5))
    with torch.no_grad():
        expected, found = (m(ids, use_cache=False).logits for m in (model, loaded))
    np.testing.assert_array_equal(found.numpy(), expected.numpy())
    held = sum(b.nbytes for name, b in loaded.named_buffers() if "packed_" in name)
    assert held < sum(p.nbytes for p in model.parameters()) / 2


@pytest.mark.slow
@pytest.mark.parametrize("architecture", CONFIGS)
def test_greedy_tokens_equal_those_of_the_unpacked_model(architecture, tmp_path):
    """64 tokens of a session, each behind a prompt and the tokens before it."""
    model, loaded = unpacked_and_loaded(architecture, tmp_path, factor=4.0)
    programs = tvm_fusion.models.causal_lm(loaded, 96, chunk=16)
    artifact = tvm_fusion.compile(programs, in_place=programs.caches, rewrite="none")
    session = tvm_fusion.load(artifact).session()
    ids = np.random.default_rng().integers(3, SIZES["vocab_size"], (1, 21))
    found = [session.prefill(ids)["logits"]]
    for _ in range(64):
        ids = np.concatenate([ids, found[-1].argmax(-1)[:, None]], 1)
        found.append(session.decode(ids[:, -1:])["logits"])
    with torch.no_grad():
        wanted = model(torch.from_numpy(ids), use_cache=False).logits[0, 20:].numpy()
    bound = 1e-4 * np.abs(wanted).max()
    np.testing.assert_allclose(np.concatenate(found), wanted, rtol=1e-4, atol=bound)
    chosen = np.take_along_axis(wanted[:-1], ids[0, 21:, None], -1)[:, 0]
    assert (wanted[:-1].max(-1) - chosen <= 2 * bound).all()  # the same token, but of equal ones


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lm_head = torch.nn.Linear(64, 32, bias=False)

    def forward(self, x):
        return self.lm_head(x)


def test_exported_program_computes_its_weights(tmp_path, run):
    from tvm_fusion.config import FusionConfig
    from tvm_fusion.frontend import import_model

    torch.manual_seed(0)
    model = Linear()
    path = written(tmp_path / "model.gguf", "llama", model)
    loaded = gguf.load(Linear(), path)
    x = torch.randn(3, 64)
    mod = import_model(torch.export.export(loaded, (x,)), FusionConfig()).mod
    found = run(mod, x.numpy())
    np.testing.assert_allclose(found, model(x).detach().numpy(), rtol=1e-5, atol=1e-5)


def refusal(model, path):
    with pytest.raises(UserError) as error:
        gguf.load(model, path)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_does_not_match_is_refused(tmp_path):
    path, model = tmp_path / "model.gguf", Linear()
    matrix = np.zeros((32, 64), "float32")
    write(path, "llama", {"token_embd.weight": matrix}, HEADS)
    assert "has no tensor for lm_head.weight; expected output.weight" in refusal(model, path)
    write(path, "llama", {"output.weight": matrix, "output_norm.weight": matrix[0]}, HEADS)
    sentence = refusal(model, path)
    assert "has output_norm.weight, for which the model has no parameter" in sentence
    write(path, "llama", {"output.weight": matrix.T.copy()}, HEADS)
    assert "lm_head.weight has shape [32, 64]; expected [64, 32]" in refusal(model, path)
    write(path, "rwkv7", {"output.weight": matrix}, HEADS)
    assert "is of architecture rwkv7; expected one of llama, gemma" in refusal(model, path)


def test_buffers_without_values_are_refused(tmp_path):
    with torch.device("meta"):
        model = Linear()
        model.register_buffer("positions", torch.zeros(3))
    path = write(
        tmp_path / "model.gguf", "llama", {"output.weight": np.zeros((32, 64), "float32")}, HEADS
    )
    assert "buffer positions of the model is on the meta device" in refusal(model, path)
