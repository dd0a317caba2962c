"""Heads that take sound, images, pairs or choices, against torch's own count of FLOPs."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from raysim.tracing import heads  # noqa: E402
from raysim.tracing import huggingface as traced  # noqa: E402

SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
VISION = SMALL | {"image_size": 32, "patch_size": 8}
TEXT = SMALL | {"vocab_size": 512, "max_position_embeddings": 16}
CASES: list[tuple[dict[str, Any], str, int | None, int]] = [
    ({
        "model_type": "whisper", "d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
        "decoder_ffn_dim": 128, "num_mel_bins": 16, "max_source_positions": 100,
        "max_target_positions": 24, "vocab_size": 512, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2, "decoder_start_token_id": 1, "suppress_tokens": None,
    }, "WhisperForConditionalGeneration", None, 24),
    (SMALL | {"model_type": "wav2vec2", "vocab_size": 40}, "Wav2Vec2ForCTC", 16_000, 10),
    (SMALL | {"model_type": "hubert"}, "HubertForSequenceClassification", 16_000, 0),
    (SMALL | {"model_type": "audio-spectrogram-transformer", "max_length": 64},
     "ASTForAudioClassification", None, 0),
    ({"model_type": "segformer", "image_size": 64, "depths": [1, 1, 1, 1]},
     "SegformerForSemanticSegmentation", None, 64),
    (VISION | {
        "model_type": "vit_mae", "decoder_hidden_size": 32, "decoder_num_hidden_layers": 1,
        "decoder_num_attention_heads": 2, "decoder_intermediate_size": 64,
    }, "ViTMAEForPreTraining", None, 0),
    (VISION | {"model_type": "dinov2"}, "Dinov2Model", None, 0),
    ({"model_type": "clip", "text_config": TEXT, "vision_config": VISION, "projection_dim": 32},
     "CLIPModel", 512, 0),
    (TEXT | {"model_type": "bert"}, "BertForMultipleChoice", 16, 0),
    (TEXT | {"model_type": "electra", "embedding_size": 64}, "ElectraForPreTraining", None, 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "architecture", "length", "labels"), CASES, ids=[c[1] for c in CASES]
)
def test_a_head_is_traced_as_torch_counts_it(
    config: dict[str, Any], architecture: str, length: int | None, labels: int
) -> None:
    found = traced.build(config | {"architectures": [architecture]}, seq_len=length)
    made = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
    made._attn_implementation, made.apply_spec_augment = "eager", False
    cls = getattr(transformers, architecture)
    module = cls(made).train()
    given = heads.inputs_of(cls, made, length or config.get("max_position_embeddings"), None)
    assert not labels or given["labels"].shape[-1] == labels
    whole = {
        k: v.float() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for k, v in given.items()
    }
    with FlopCounterMode(display=False) as counter:
        module(**whole)
    assert found.num_parameters == sum(p.numel() for p in module.parameters())
    assert found.flops * heads.BATCH == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_texts_beyond_what_an_encoder_takes_are_cut() -> None:
    clip = next(c[0] for c in CASES if c[0]["model_type"] == "clip")
    config = clip | {"architectures": ["CLIPModel"]}
    assert traced.build(config, seq_len=4096).flops == traced.build(config, seq_len=16).flops
    assert traced.build(config, seq_len=4).flops < traced.build(config, seq_len=16).flops
