"""What a program calls a model, as the ``config.json`` that describes it.

Real counterpart: ``huggingface_hub``. Looked for in this order: a folder; the hub's cache on this
machine; what is written below of the hub's own files, since nothing is downloaded. Weights are not
needed anywhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysim.models.config import read_config

CONFIG = "config.json"
_TUNED = re.compile(r"-(instruct|chat|it|base|hf|bf16|2507|v\d[\d.]*)(?=-|$)")
"""Of a name, what changes no shape."""
_SAME = {
    "qwq-32b": "qwen2.5-32b", "deepseek-r1": "deepseek-v3", "deepseek-r1-0528": "deepseek-v3",
    "deepseek-v3-0324": "deepseek-v3", "deepseek-v3.1": "deepseek-v3",
    "deepseek-r1-distill-llama-8b": "llama-3.1-8b",
    "deepseek-r1-distill-llama-70b": "llama-3.3-70b",
    "deepseek-r1-distill-qwen-7b": "qwen2.5-7b", "deepseek-r1-distill-qwen-14b": "qwen2.5-14b",
    "deepseek-r1-distill-qwen-32b": "qwen2.5-32b",
}  # fmt: skip
"""Names of models that were tuned from others."""
_QUANTISED = {"-fp8": "fp8", "-awq": "awq", "-gptq-int4": "gptq"}
"""Endings, and what ``quantization_config`` then says."""


def _llama(
    hidden: int, wide: int, layers: int, heads: int, kv: int, vocabulary: int, longest: int,
    *, tied: bool = False, head_dim: int | None = None, family: str = "llama", **more: Any,
) -> dict[str, Any]:  # fmt: skip
    return {
        "model_type": family, "hidden_size": hidden, "intermediate_size": wide,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv,
        "vocab_size": vocabulary, "max_position_embeddings": longest, "tie_word_embeddings": tied,
        **({"head_dim": head_dim} if head_dim else {}), **more,
    }  # fmt: skip


def _qwen2(hidden: int, wide: int, layers: int, heads: int, kv: int, *, large: bool) -> Any:
    return _llama(
        hidden, wide, layers, heads, kv, 152_064 if large else 151_936, 32_768, tied=not large,
        family="qwen2",
    )  # fmt: skip


def _qwen3(hidden: int, wide: int, layers: int, heads: int, kv: int, *, tied: bool = False) -> Any:
    return _llama(
        hidden, wide, layers, heads, kv, 151_936, 40_960, tied=tied, head_dim=128, family="qwen3"
    )


def _gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    return _llama(
        2880, 2880, layers, 64, 8, 201_088, 131_072, head_dim=64, family="gpt_oss",
        num_local_experts=experts, num_experts_per_tok=4, sliding_window=128,
        quantization_config={"quant_method": "mxfp4"},
    )  # fmt: skip


HUB: Mapping[str, Mapping[str, Any]] = {
    "llama-2-7b": _llama(4096, 11_008, 32, 32, 32, 32_000, 4096),
    "llama-2-13b": _llama(5120, 13_824, 40, 40, 40, 32_000, 4096),
    "llama-2-70b": _llama(8192, 28_672, 80, 64, 8, 32_000, 4096),
    "llama-3-8b": _llama(4096, 14_336, 32, 32, 8, 128_256, 8192),
    "llama-3-70b": _llama(8192, 28_672, 80, 64, 8, 128_256, 8192),
    "llama-3.1-8b": _llama(4096, 14_336, 32, 32, 8, 128_256, 131_072),
    "llama-3.1-70b": _llama(8192, 28_672, 80, 64, 8, 128_256, 131_072),
    "llama-3.2-1b": _llama(2048, 8192, 16, 32, 8, 128_256, 131_072, tied=True, head_dim=64),
    "llama-3.2-3b": _llama(3072, 8192, 28, 24, 8, 128_256, 131_072, tied=True, head_dim=128),
    "llama-3.3-70b": _llama(8192, 28_672, 80, 64, 8, 128_256, 131_072),
    "tinyllama-1.1b": _llama(2048, 5632, 22, 32, 4, 32_000, 2048),
    "mistral-7b": _llama(4096, 14_336, 32, 32, 8, 32_768, 32_768, family="mistral"),
    "mixtral-8x7b": _llama(
        4096, 14_336, 32, 32, 8, 32_000, 32_768, family="mixtral", num_local_experts=8,
        num_experts_per_tok=2,
    ),
    "deepseek-v3": {
        "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18_432,
        "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
        "num_key_value_heads": 128, "kv_lora_rank": 512, "q_lora_rank": 1536,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
        "first_k_dense_replace": 3, "moe_layer_freq": 1, "vocab_size": 129_280,
        "max_position_embeddings": 163_840, "quantization_config": {"quant_method": "fp8"},
    },
    "gpt-oss-20b": _gpt_oss(24, 32),
    "gpt-oss-120b": _gpt_oss(36, 128),
    "qwen2.5-0.5b": _qwen2(896, 4864, 24, 14, 2, large=False),
    "qwen2.5-1.5b": _qwen2(1536, 8960, 28, 12, 2, large=False),
    "qwen2.5-3b": _qwen2(2048, 11_008, 36, 16, 2, large=False),
    "qwen2.5-7b": _qwen2(3584, 18_944, 28, 28, 4, large=True),
    "qwen2.5-14b": _qwen2(5120, 13_824, 48, 40, 8, large=True),
    "qwen2.5-32b": _qwen2(5120, 27_648, 64, 40, 8, large=True),
    "qwen2.5-72b": _qwen2(8192, 29_568, 80, 64, 8, large=True),
    "qwen3-0.6b": _qwen3(1024, 3072, 28, 16, 8, tied=True),
    "qwen3-1.7b": _qwen3(2048, 6144, 28, 16, 8, tied=True),
    "qwen3-4b": _qwen3(2560, 9728, 36, 32, 8, tied=True),
    "qwen3-8b": _qwen3(4096, 12_288, 36, 32, 8),
    "qwen3-14b": _qwen3(5120, 17_408, 40, 40, 8),
    "qwen3-32b": _qwen3(5120, 25_600, 64, 64, 8),
    "qwen3-30b-a3b": {
        **_qwen3(2048, 6144, 48, 32, 4), "model_type": "qwen3_moe", "moe_intermediate_size": 768,
        "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1,
    },
    "llama-3.1-405b": _llama(16_384, 53_248, 126, 128, 8, 128_256, 131_072),
    "qwen2-7b": _qwen2(3584, 18_944, 28, 28, 4, large=True),
}  # fmt: skip
"""By name, without who publishes it and what it was tuned for: the hub's files of 2023 to 2025."""


def config_of(source: str) -> Mapping[str, Any]:
    """Of ``meta-llama/Llama-3.1-8B-Instruct`` or a folder.

    Raises
    ------
    ValueError
        It is nowhere.
    ScenarioError
        The file is no config.
    """
    file = next((f for f in (Path(source) / CONFIG, *_cached(source)) if f.is_file()), None)
    if file is not None:
        return read_config(file)
    name = source.rpartition("/")[2].lower().removeprefix("meta-")
    ending = next((end for end in _QUANTISED if name.endswith(end)), "")
    name = name.removesuffix(ending)
    names = (_SAME.get(n, n) for n in (name, tuned_from(name)))
    found = next((HUB[n] for n in names if n in HUB), None)
    if found is not None and ending:
        return {**found, "quantization_config": {"quant_method": _QUANTISED[ending]}}
    if found is None:
        raise ValueError(
            f"There is no config.json of {source!r} on this machine: name a folder that has it, or "
            f"one of {', '.join(HUB)}."
        )
    return found


def tuned_from(name: str) -> str:
    """A model's name without what says how it was tuned, which changes no shape."""
    return _TUNED.sub("", name)


def _cached(source: str) -> list[Path]:
    """In the hub's cache: its snapshots, the one of ``main`` first."""
    home = os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE", Path(home) / "hub"))
    folder = hub / f"models--{source.replace('/', '--')}"
    if not folder.is_dir():
        return []
    main = folder / "refs" / "main"
    first = [folder / "snapshots" / main.read_text().strip() / CONFIG] if main.is_file() else []
    return [*first, *sorted(folder.glob(f"snapshots/*/{CONFIG}"))]


def longest_of(config: Mapping[str, Any]) -> int | None:
    """Tokens that its positions reach."""
    text = config.get("text_config")
    found = (text if isinstance(text, Mapping) else config).get("max_position_embeddings")
    return found if isinstance(found, int) else None
