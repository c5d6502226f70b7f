"""How many operators of each kind the zoo's models have, by their architectures."""

#: Kinds and the operators that they are found as.
OPERATORS = {
    "softmax": "relax.nn.softmax",
    "log_softmax": "relax.nn.log_softmax",
    "layer_norm": "relax.nn.layer_norm",
    "rms_norm": "relax.nn.rms_norm",
    "group_norm": "relax.nn.group_norm",
    "instance_norm": "relax.nn.instance_norm",
    "gelu": "relax.nn.gelu",
    "gelu_tanh": "relax.nn.gelu_tanh",
    "silu": "relax.nn.silu",
}

#: Kinds that become the same few operators wherever they are, and so are counted as decisions.
DECIDED = ("attention", "rotary")

#: Of each model; what is computed twice from the same tensor counts once.
EXPECTED: dict[str, dict[str, int]] = {
    # 12 layers of two norms, and one behind the embeddings.
    "bert_base": {"layer_norm": 25, "softmax": 12, "attention": 12, "gelu": 12},
    # 12 layers of two norms, and a last one.
    "gpt2": {"layer_norm": 25, "softmax": 12, "attention": 12, "gelu_tanh": 12},
    # 6 layers of two norms, and a last one.
    "t5_small_enc": {"rms_norm": 13, "softmax": 6, "attention": 6},
    # 4 layers of two norms, and a last one; queries and keys are turned.
    "llama_4l": {"rms_norm": 9, "softmax": 4, "silu": 4, "attention": 4, "rotary": 8},
    # 12 layers of two norms, and a last one.
    "vit_b16": {"layer_norm": 25, "softmax": 12, "attention": 12, "gelu": 12},
    # 18 blocks; norms of the stem, before 3 downsamplings, and before the classifier.
    "convnext_tiny": {"layer_norm": 18 + 1 + 3 + 1, "gelu": 18},
    # 16 blocks: all but one expand; depthwise and squeezed ones; stem and head.
    "efficientnet_b0": {"silu": 15 + 16 + 16 + 2},
    # Batch norm is folded and ReLU6 is an operator of its own: nothing to find.
    "mobilenet_v2": {},
    # 3 + 6 + 2 residual blocks of two norms, 4 attention blocks of one, and a last one; behind each
    # norm of a residual block and the last one there is SiLU, twice in the embedding of the time.
    "unet2d": {"group_norm": 2 * 11 + 4 + 1, "softmax": 4, "attention": 4, "silu": 2 * 11 + 1 + 2},
}
