"""Parameters of the vision towers inside multimodal models: siglip (Gemma 3), Llama 4's, Qwen's.

Samples are text: a tower holds parameters, gradients and optimizer state but runs nothing, as in
``forward`` without ``pixel_values``. Its layers come first, with nothing handed to the next.
"""

from __future__ import annotations

from collections.abc import Iterable

from raysim.models.config import MOST_LAYERS, Reader
from raysim.models.families.vit import size_pair
from raysim.models.table import Body, Layer, Module, Parameter

Shapes = Iterable[tuple[str, tuple[int, ...]]]


def idle_layer(name: str, cls: str, shapes: Shapes) -> Layer:
    """A layer of parameters that text never passes through; one module per owner."""
    owners: dict[str, list[Parameter]] = {}
    for full, shape in shapes:
        owners.setdefault(full.rpartition(".")[0], []).append(Parameter(name=full, shape=shape))
    modules = tuple(
        Module(name=owner, cls=cls, parameters=tuple(parameters))
        for owner, parameters in owners.items()
    )
    return Layer(name=name, kind="other", cls=cls, body=Body(modules=modules), output=0.0)


def _linear(name: str, n_in: int, n_out: int) -> list[tuple[str, tuple[int, ...]]]:
    return [(f"{name}.weight", (n_out, n_in)), (f"{name}.bias", (n_out,))]


def _norm(name: str, width: int) -> list[tuple[str, tuple[int, ...]]]:
    return [(f"{name}.weight", (width,)), (f"{name}.bias", (width,))]


def _attention(names: str, prefix: str, out: str, h: int) -> list[tuple[str, tuple[int, ...]]]:
    rows = [row for p in names for row in _linear(f"{prefix}.{p}_proj", h, h)]
    return [*rows, *_linear(f"{prefix}.{out}", h, h)]


def siglip(r: Reader, prefix: str, text_hidden: int) -> list[Layer]:
    """``SiglipVisionModel`` under ``{prefix}vision_tower`` and Gemma 3's projector."""
    h = r.integer("hidden_size", default=768)
    f = r.integer("intermediate_size", default=3072)
    count = r.integer("num_hidden_layers", default=12, most=MOST_LAYERS)
    channels = r.integer("num_channels", default=3)
    image, patch = size_pair(r, "image_size", 224), size_pair(r, "patch_size", 16)
    positions = (image[0] // patch[0]) * (image[1] // patch[1])
    mlp = [*_linear("mlp.fc1", h, f), *_linear("mlp.fc2", f, h)]
    tower = f"{prefix}vision_tower"
    patches = [
        ("patch_embedding.weight", (h, channels, *patch)),
        ("patch_embedding.bias", (h,)),
        ("position_embedding.weight", (positions, h)),
    ]
    block = idle_layer(
        "", "SiglipEncoderLayer",
        [*_norm("layer_norm1", h), *_attention("kvq", "self_attn", "out_proj", h),
         *_norm("layer_norm2", h), *mlp],
    )  # fmt: skip
    layers = [idle_layer(f"{tower}.embeddings", "SiglipVisionEmbeddings", patches)]
    layers += _stack(f"{tower}.encoder.layers", block, count)
    layers.append(
        idle_layer(f"{tower}.post_layernorm", "LayerNorm", [("weight", (h,)), ("bias", (h,))])
    )
    if r.flag("vision_use_head", default=True):
        pooling = [
            ("probe", (1, 1, h)),
            ("attention.in_proj_weight", (3 * h, h)),
            ("attention.in_proj_bias", (3 * h,)),
            *_linear("attention.out_proj", h, h),
            *_norm("layernorm", h),
            *mlp,
        ]
        layers.append(idle_layer(f"{tower}.head", "SiglipMultiheadAttentionPoolingHead", pooling))
    projector = [
        ("mm_input_projection_weight", (h, text_hidden)),
        ("mm_soft_emb_norm.weight", (h,)),
    ]
    layers.append(
        idle_layer(f"{prefix}multi_modal_projector", "Gemma3MultiModalProjector", projector)
    )
    return layers


def llama4_vision(r: Reader, text_hidden: int) -> list[Layer]:
    """``Llama4VisionModel`` under ``vision_model`` and the projector to the text model."""
    h = r.integer("hidden_size", default=768)
    f = r.integer("intermediate_size", default=5632)
    count = r.integer("num_hidden_layers", default=34, most=MOST_LAYERS)
    channels = r.integer("num_channels", default=3)
    image, patch = size_pair(r, "image_size", 448), size_pair(r, "patch_size", 14)
    positions = (image[0] // patch[0]) * (image[1] // patch[1]) + 1
    output = r.integer("vision_output_dim", default=7680)
    wide = r.integer("projector_input_dim", default=4096)
    narrow = r.integer("projector_output_dim", default=4096)
    block = idle_layer(
        "", "Llama4VisionEncoderLayer",
        [*_attention("qkv", "self_attn", "o_proj", h), *_linear("mlp.fc1", h, f),
         *_linear("mlp.fc2", f, h), *_norm("input_layernorm", h),
         *_norm("post_attention_layernorm", h)],
    )  # fmt: skip
    tower = [
        ("class_embedding", (h,)),
        ("positional_embedding_vlm", (positions, h)),
        ("patch_embedding.linear.weight", (h, channels * patch[0] * patch[1])),
        *_norm("layernorm_pre", h),
        *_norm("layernorm_post", h),
    ]
    adapter = [("fc1.weight", (wide, f)), ("fc2.weight", (narrow, narrow))]
    return [
        idle_layer("vision_model", "Llama4VisionModel", tower),
        *_stack("vision_model.model.layers", block, count),
        idle_layer("vision_model.vision_adapter.mlp", "Llama4VisionMLP2", adapter),
        idle_layer("multi_modal_projector.linear_1", "Linear", [("weight", (text_hidden, output))]),
    ]


def qwen_vision(r: Reader, name: str, cls: str, *, deepstack: int = 0) -> list[Layer]:
    """``Qwen3VLVisionModel`` under ``name``; its mergers project to the text model.

    ``deepstack``: mergers besides the last one, which norm what they have merged.
    """
    h = r.integer("hidden_size", default=1152)
    f = r.integer("intermediate_size", default=4304)
    count = r.integer("depth", "num_hidden_layers", default=27, most=MOST_LAYERS)
    channels, frames = (
        r.integer("in_channels", default=3),
        r.integer("temporal_patch_size", default=2),
    )
    patch = size_pair(r, "patch_size", 16)
    merged = h * r.integer("spatial_merge_size", default=2) ** 2
    positions = r.integer("num_position_embeddings", default=2304)
    block = idle_layer(
        "", f"{cls}VisionBlock",
        [*_norm("norm1", h), *_norm("norm2", h), *_linear("attn.qkv", h, 3 * h),
         *_linear("attn.proj", h, h), *_linear("mlp.linear_fc1", h, f),
         *_linear("mlp.linear_fc2", f, h)],
    )  # fmt: skip
    patches = [("proj.weight", (h, channels, frames, *patch)), ("proj.bias", (h,))]
    out = r.integer("out_hidden_size", default=3584)
    products = [*_linear("linear_fc1", merged, merged), *_linear("linear_fc2", merged, out)]
    merger, deep = ([*_norm("norm", width), *products] for width in (h, merged))
    mergers = [
        ("merger", merger),
        *((f"deepstack_merger_list.{i}", deep) for i in range(deepstack)),
    ]
    return [
        idle_layer(f"{name}.patch_embed", f"{cls}VisionPatchEmbed", patches),
        idle_layer(f"{name}.pos_embed", "Embedding", [("weight", (positions, h))]),
        *_stack(f"{name}.blocks", block, count),
        *(idle_layer(f"{name}.{path}", f"{cls}VisionPatchMerger", m) for path, m in mergers),
    ]


def qwen2_vision(r: Reader, name: str) -> list[Layer]:
    """``Qwen2VisionTransformerPretrainedModel`` under ``name``; ``hidden_size`` is the text's."""
    h = r.integer("embed_dim", default=1280)
    f = h * r.integer("mlp_ratio", default=4)
    block = [
        *_norm("norm1", h), *_norm("norm2", h), *_linear("attn.qkv", h, 3 * h),
        *_linear("attn.proj", h, h), *_linear("mlp.fc1", h, f), *_linear("mlp.fc2", f, h),
    ]  # fmt: skip
    out = r.integer("hidden_size", default=3584)
    return _qwen2_tower(r, name, h, out, block, _norm("ln_q", h))


def qwen2_5_vision(r: Reader, name: str) -> list[Layer]:
    """``Qwen2_5_VisionTransformerPretrainedModel``: RMSNorm and gated units."""
    h = r.integer("hidden_size", default=3584)
    f = r.integer("intermediate_size", default=3420)
    block = [
        ("norm1.weight", (h,)), ("norm2.weight", (h,)), *_linear("attn.qkv", h, 3 * h),
        *_linear("attn.proj", h, h), *_linear("mlp.gate_proj", h, f), *_linear("mlp.up_proj", h, f),
        *_linear("mlp.down_proj", f, h),
    ]  # fmt: skip
    out = r.integer("out_hidden_size", default=3584)
    return _qwen2_tower(r, name, h, out, block, [("ln_q.weight", (h,))])


def _qwen2_tower(
    r: Reader, name: str, h: int, out: int, block: Shapes, norm: Shapes
) -> list[Layer]:
    """Patches of several frames, blocks, and a merger of neighbouring patches."""
    channels = r.integer("in_channels", default=3)
    frames = r.integer("temporal_patch_size", default=2)
    patches = [("proj.weight", (h, channels, frames, *size_pair(r, "patch_size", 14)))]
    merged = h * r.integer("spatial_merge_size", default=2) ** 2
    products = [*_linear("mlp.0", merged, merged), *_linear("mlp.2", merged, out)]
    return [
        idle_layer(f"{name}.patch_embed", "PatchEmbed", patches),
        *_stack(
            f"{name}.blocks", idle_layer("", "VisionBlock", block),
            r.integer("depth", default=32, most=MOST_LAYERS),
        ),
        idle_layer(f"{name}.merger", "PatchMerger", [*norm, *products]),
    ]  # fmt: skip


def _stack(name: str, block: Layer, count: int) -> list[Layer]:
    return [
        Layer(name=f"{name}.{i}", kind="other", cls=block.cls, body=block.body, output=0.0)
        for i in range(count)
    ]
