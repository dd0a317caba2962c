"""Parameter counts of published models, what a config's words do, and what is refused."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from raysim.errors import ScenarioError
from raysim.models.huggingface import build, known_model_types, read_config
from raysim.models.table import Model

CONFIGS = Path(__file__).parents[1] / "data" / "hf_configs"

# One layer of attention, what joins it to the embedding of the token before, and norms.
SECOND_TOKEN = {
    "qwen3-next-80b-a3b": 2 * 2048**2 + (2 * 4096 + 2 * 512 + 4096) * 2048 + 2 * 256 + 5 * 2048
    + 513 * 3 * 512 * 2048 + 513 * 2048,
    "qwen3.5-27b": 2 * 5120**2 + (2 * 6144 + 2 * 1024 + 6144) * 5120 + 2 * 256 + 5 * 5120
    + 3 * 17408 * 5120,
}  # fmt: skip

# As the model cards and `sum(p.numel() for p in model.parameters())` of the named class have them.
PUBLISHED = {
    "bert-large-uncased": 335_174_458,
    "roberta-base": 124_697_433,
    "distilbert-base-uncased": 66_985_530,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "gpt-neo-2.7B": 2_651_307_520,
    "gpt-j-6b": 6_050_882_784,
    "gpt-neox-20b": 20_554_567_680,
    "pythia-6.9b": 6_857_302_016,
    "opt-350m": 331_196_416,
    "opt-6.7b": 6_658_473_984,
    "opt-175b": 174_604_468_224,
    "bloom": 176_247_271_424,
    "mpt-7b": 6_649_286_656,
    "falcon-7b": 6_921_720_704,
    "falcon-40b": 41_303_293_952,
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-4-scout": 108_641_793_536,
    "smollm2-360m": 361_821_120,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2-7b": 7_615_616_512,
    "qwen2.5-0.5b": 494_032_768,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    # Without the head that predicts a second token, which from_pretrained ignores: 81,324,862,720
    # and 27,781,427,952 (as of Qwen3.8, of the same widths) with it.
    "qwen3-next-80b-a3b": 81_324_862_720 - SECOND_TOKEN["qwen3-next-80b-a3b"],
    "qwen3.5-27b": 27_781_427_952 - SECOND_TOKEN["qwen3.5-27b"],
    "qwen3.5-35b-a3b": 35_107_181_936,
    "nemotron-3-nano-30b-a3b": 31_577_937_344,
    "granite-4.0-h-small": 32_207_337_984,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b-it": 4_300_079_472,
    "phi-2": 2_779_683_840,
    "phi-3-mini-4k": 3_821_079_552,
    "deepseek-v2-lite": 15_706_484_224,
    # The published 671,026,419,200 has 58 correction biases of 256, which are buffers.
    "deepseek-v3": 671_026_419_200 - 58 * 256,
    "t5-base": 222_903_552,
    "t5-3b": 2_851_598_336,
    "vit-base-patch16-224": 86_567_656,
}


def load(name: str, **arguments: Any) -> Model:
    return build(read_config(CONFIGS / f"{name}.json"), **arguments)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_count_is_the_published_one(name: str) -> None:
    model = load(name)
    assert model.num_parameters == PUBLISHED[name]
    assert model.num_trainable == model.num_parameters


def test_kimi_k2_is_deepseek_v3_with_other_sizes() -> None:
    """The published 1,026,408,232,448 has 60 correction biases of 384, which are buffers."""
    sizes = {
        "model_type": "kimi_k2", "hidden_size": 7168, "num_hidden_layers": 61,
        "num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 384,
        "first_k_dense_replace": 1, "intermediate_size": 18432, "vocab_size": 163840,
        "n_group": 1, "topk_group": 1, "max_position_embeddings": 131072,
    }  # fmt: skip
    config = dict(read_config(CONFIGS / "deepseek-v3.json")) | sizes
    assert build(config, seq_len=4096).num_parameters == 1_026_408_232_448 - 60 * 384


# Of whole families one member's configuration is kept; others' widths, and what their checkpoints
# hold as the hub counts them (Llama 2's without 40 tables of 64 frequencies).
DECODER = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
           "num_key_value_heads", "vocab_size")  # fmt: skip
OTHERS: dict[str, tuple[str, tuple[int, ...], dict[str, Any], int]] = {
    "Llama-2-13b": ("llama", (5120, 13824, 40, 40, 40, 32000), {}, 13_015_866_880 - 40 * 64),
    "Llama-3.2-3B": (
        "llama", (3072, 8192, 28, 24, 8, 128256), {"head_dim": 128, "tie_word_embeddings": True},
        3_212_749_824,
    ),
    "Mistral-Nemo": (
        "mistral", (5120, 14336, 40, 32, 8, 131072), {"head_dim": 128}, 12_247_782_400
    ),
    "Qwen2.5-72B": ("qwen2", (8192, 29568, 80, 64, 8, 152064), {}, 72_706_203_648),
    "Qwen3-32B": ("qwen3", (5120, 25600, 64, 64, 8, 151936), {"head_dim": 128}, 32_762_123_264),
    "Qwen3-235B-A22B": (
        "qwen3_moe", (4096, 12288, 94, 64, 4, 151936),
        {"head_dim": 128, "moe_intermediate_size": 1536}, 235_093_634_560,
    ),
    "gemma-2-27b": ("gemma2", (4608, 36864, 46, 32, 16, 256000), {"head_dim": 128}, 27_227_128_320),
    "phi-4": ("phi3", (5120, 17920, 40, 40, 10, 100352), {}, 14_659_507_200),
    "Phi-4-mini": (
        "phi3", (3072, 8192, 32, 24, 8, 200064),
        {"tie_word_embeddings": True, "partial_rotary_factor": 0.75}, 3_836_021_760,
    ),
    "granite-3.1-8b": (
        "granite", (4096, 12800, 40, 32, 8, 49155), {"tie_word_embeddings": True}, 8_170_848_256
    ),
    "SmolLM3-3B": ("smollm3", (2048, 11008, 36, 16, 4, 128256), {}, 3_075_098_624),
    "Seed-OSS-36B": ("seed_oss", (5120, 27648, 64, 80, 8, 155136), {}, 36_151_104_512),
    "EXAONE-4.0-1.2B": (
        "exaone4", (2048, 4096, 30, 32, 8, 102400),
        {"head_dim": 64, "sliding_window": None, "tie_word_embeddings": True}, 1_279_391_488,
    ),
    "OLMoE-1B-7B": ("olmoe", (2048, 1024, 16, 16, 16, 50304), {}, 6_919_161_856),
    # The published 228,689,764,864 has 62 correction biases of 256, which are buffers.
    "MiniMax-M2": (
        "minimax_m2", (3072, 1536, 62, 48, 8, 200064), {"rotary_dim": 64},
        228_689_764_864 - 62 * 256,
    ),
    "OLMo-2-7B": ("olmo2", (4096, 11008, 32, 32, 32, 100352), {}, 7_298_617_344),
    "Olmo-3-7B": ("olmo3", (4096, 11008, 32, 32, 32, 100278), {}, 7_298_011_136),
    "Qwen2-VL-2B": (
        "qwen2_vl", (1536, 8960, 28, 12, 2, 151936),
        {"tie_word_embeddings": True, "vision_config": {"hidden_size": 1536}}, 2_208_985_600,
    ),
    "Qwen2-VL-7B": ("qwen2_vl", (3584, 18944, 28, 28, 4, 152064), {}, 8_291_375_616),
    "Qwen2.5-VL-3B": (
        "qwen2_5_vl", (2048, 11008, 36, 16, 2, 151936),
        {"tie_word_embeddings": True,
         "vision_config": {"hidden_size": 1280, "out_hidden_size": 2048}}, 3_754_622_976,
    ),
    "Qwen2.5-VL-7B": (
        "qwen2_5_vl", (3584, 18944, 28, 28, 4, 152064),
        {"vision_config": {"hidden_size": 1280}}, 8_292_166_656,
    ),
    "Nemotron-Nano-9B-v2": (
        "nemotron_h", (4480, 15680, 56, 40, 8, 131072),
        {"mamba_head_dim": 80, "hybrid_override_pattern":
         "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"}, 8_888_227_328,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_parameter_count_of_others_is_the_published_one(name: str) -> None:
    family, widths, rest, count = OTHERS[name]
    config = {"model_type": family, **dict(zip(DECODER, widths, strict=True)), **rest}
    assert build(config, seq_len=64).num_parameters == count


def test_glm_45_air_without_its_second_token_s_layer() -> None:
    """Published: 110,468,824,832, with 46 correction biases of 128 and a 47th layer.

    That layer has an embedding and a head of its own, and joins two vectors to one.
    """
    h, f = 4096, 1408
    attention = h * 12288 + 12288 + 2 * (h * 1024 + 1024) + 12288 * h
    layer = attention + 129 * 3 * f * h + 128 * h + 2 * h
    second = layer + 2 * h * h + 3 * h + 2 * 151552 * h
    config = {
        "model_type": "glm4_moe", "head_dim": 128, "attention_bias": True,
        "partial_rotary_factor": 0.5, "num_nextn_predict_layers": 1,
    }  # fmt: skip
    count = build(config, seq_len=64).num_parameters
    assert count == 110_468_824_832 - 46 * 128 - second


def test_qwen3_vl_8b_with_its_vision_tower() -> None:
    text = dict(zip(DECODER, (4096, 12288, 36, 32, 8, 151936), strict=True)) | {"head_dim": 128}
    vision = {"out_hidden_size": 4096, "deepstack_visual_indexes": [8, 16, 24]}
    config = {"model_type": "qwen3_vl", "text_config": text, "vision_config": vision}
    assert build(config, seq_len=64).num_parameters == 8_767_123_696


def test_every_committed_config_is_covered() -> None:
    assert {p.stem for p in CONFIGS.glob("*.json")} - {"bert-base-cased"} == set(PUBLISHED)


@pytest.mark.parametrize(
    ("architecture", "count"),
    [
        ("BertModel", 108_310_272),
        ("BertForMaskedLM", 108_340_804),
        ("BertForSequenceClassification", 108_311_810),
        ("BertForTokenClassification", 107_721_218),
    ],
)
def test_architecture_picks_the_head(architecture: str, count: int) -> None:
    assert load("bert-base-cased", architecture=architecture).num_parameters == count


def test_architecture_of_another_family_is_refused() -> None:
    with pytest.raises(ScenarioError, match="LlamaForCausalLM is not a class of 'bert'"):
        load("bert-base-cased", architecture="LlamaForCausalLM")


def test_labels_come_from_id2label_then_num_labels_then_two() -> None:
    base = dict(read_config(CONFIGS / "bert-base-cased.json"))
    rows = [
        dict(build(base | extra, architecture="BertForSequenceClassification").parameters())[
            "classifier.weight"
        ].shape[0]
        for extra in ({}, {"num_labels": 5}, {"id2label": {"0": "a", "1": "b", "2": "c"}})
    ]
    assert rows == [2, 5, 3]


def test_tied_projection_is_listed_and_not_counted() -> None:
    model = load("gpt2")
    head = dict(model.parameters())["lm_head.weight"]
    assert head.tied_to == "transformer.wte.weight"
    untied = dict(read_config(CONFIGS / "gpt2.json")) | {"tie_word_embeddings": False}
    assert build(untied).num_parameters - model.num_parameters == 50257 * 768


def test_layers_of_a_kind_share_one_body() -> None:
    blocks = [x for x in load("deepseek-v3", seq_len=4096).layers if x.kind == "block"]
    assert len(blocks) == 61
    assert len({id(x.body) for x in blocks}) == 2
    windows = [x for x in load("gemma-3-1b", seq_len=4096).layers if x.kind == "block"]
    assert [x.body is windows[0].body for x in windows[:7]] == [True] * 5 + [False, True]


def test_experts_are_marked_and_everything_else_is_not() -> None:
    experts = sum(p.numel for _, p in load("mixtral-8x7b").parameters() if p.expert)
    assert experts == 32 * 8 * 3 * 4096 * 14336


def test_vision_tower_is_held_but_text_runs_none_of_it() -> None:
    model = load("gemma-3-4b-it", seq_len=1024)
    tower = [x for x in model.layers if x.kind == "other"]
    assert sum(x.body.numel for x in tower) == 416_866_032 + 1152 * 2560 + 1152
    assert sum(x.body.flops for x in tower) == 0
    text = load("gemma-3-4b-it", seq_len=1024, architecture="Gemma3ForCausalLM")
    assert text.flops == model.flops
    assert next(text.parameters())[0] == "model.embed_tokens.weight"


def test_sequence_length_defaults_to_the_models_own() -> None:
    assert load("llama-3-8b").seq_len == 8192
    assert load("roberta-base").seq_len == 512  # 514 rows less the padding offset
    vit = load("vit-base-patch16-224")
    assert (vit.seq_len, vit.sample_unit, vit.vocab_size) == (197, "images", None)


def test_learned_positions_bound_the_sequence_and_rotary_ones_do_not() -> None:
    with pytest.raises(ScenarioError, match=r"gpt2\.json:\d+:\d+.*seq_len 2048 exceeds the 1024"):
        load("gpt2", seq_len=2048)
    assert load("llama-2-7b", seq_len=8192).seq_len == 8192


def test_config_dtype_is_read_in_both_spellings() -> None:
    assert load("llama-2-7b").config_dtype == "fp16"
    assert build({"model_type": "llama", "dtype": "bfloat16"}, seq_len=8).config_dtype == "bf16"


def test_fused_loss_keeps_no_logits() -> None:
    whole, fused = load("llama-3-8b", seq_len=64), load("llama-3-8b", seq_len=64, fused_loss=True)
    kept = {s.name for s in whole.layers[-1].body.saved().values()}
    assert {"loss.log_softmax", ".out"} <= kept
    assert {s.name for s in fused.layers[-1].body.saved().values()} == {"hidden"}
    assert fused.flops == whole.flops


def test_attention_falls_back_to_eager_where_there_is_no_sdpa() -> None:
    def implementations(name: str, attention: Any) -> set[str]:
        model = load(name, seq_len=64, attention=attention)
        operators = (o for x in model.layers for o in x.body.operators)
        return {o.attention.implementation for o in operators if o.attention is not None}

    assert implementations("bloom", "sdpa") == {"eager"}
    assert implementations("gemma-2-9b", "flash_attention_2") == {"flash_attention_2"}
    assert implementations("llama-3-8b", "sdpa") == {"sdpa"}
    with pytest.raises(ScenarioError, match="does not support flash_attention_2"):
        load("t5-base", attention="flash_attention_2")


def test_expert_parallel_work_is_grouped() -> None:
    operators = [o for o in load("mixtral-8x7b", seq_len=128).layers[1].body.operators if o.gemm]
    grouped = {o.name: o.gemm for o in operators if o.gemm and o.gemm.groups > 1}
    assert {n: (g.rows, g.n, g.k, g.groups) for n, g in grouped.items()} == {
        "mlp.experts.gate_up_proj": (256, 28672, 4096, 8),
        "mlp.experts.down_proj": (256, 4096, 14336, 8),
    }


def test_encoder_decoder_takes_two_lengths() -> None:
    short, long = load("t5-base", seq_len=64, target_len=8), load("t5-base", seq_len=64)
    assert short.flops < long.flops
    assert short.num_parameters == long.num_parameters


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": -1}, "hidden_size: expected a whole number from 1"),
        ({"hidden_size": None}, "hidden_size: expected a whole number, got null"),
        ({"hidden_size": "4096"}, 'hidden_size: expected a whole number, got "4096"'),
        ({"hidden_size": 4096.0}, "hidden_size: expected a whole number, got 4096.0"),
        ({"hidden_size": True}, "hidden_size: expected a whole number, got true"),
        ({"vocab_size": 10**400}, "vocab_size: expected a whole number from 1 to .*huge"),
        (
            {"num_hidden_layers": 10**6},
            "num_hidden_layers: expected a whole number from 1 to 4,096",
        ),
        ({"num_attention_heads": 33}, "num_attention_heads: 33 does not divide hidden_size"),
        ({"num_key_value_heads": 5}, "num_key_value_heads: 5 does not divide num_attention_heads"),
        ({"hidden_act": "sylu"}, "hidden_act: expected one of .*silu"),
        ({"attention_dropout": 1.5}, r"attention_dropout: expected a probability in \[0, 1\)"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings: expected true or false"),
        ({"torch_dtype": "int3"}, "torch_dtype: expected one of float32, float16, bfloat16"),
        ({"architectures": ["LlamaForDancing"]}, "architectures: .*ends in no known head"),
        ({"architectures": "LlamaForCausalLM"}, "architectures: expected a list of class names"),
    ],
)
def test_wrong_value_is_refused_with_its_place(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "config.json"
    values = json.loads((CONFIGS / "llama-3-8b.json").read_text()) | change
    path.write_text(json.dumps(values, indent=2))
    with pytest.raises(ScenarioError, match=message) as caught:
        build(read_config(path))
    line = (
        path.read_text()
        .splitlines()
        .index(next(x for x in path.read_text().splitlines() if f'"{next(iter(change))}"' in x))
    )
    where = caught.value.problems[0].where
    assert where is not None
    assert (where.file, where.line, where.column) == (str(path), line + 1, 3)


def test_all_problems_are_reported_at_once() -> None:
    values = {"model_type": "llama", "hidden_size": 0, "vocab_size": "x", "mlp_bias": 3}
    with pytest.raises(ScenarioError) as caught:
        build(values, seq_len=8)
    assert [p.key for p in caught.value.problems] == ["mlp_bias", "hidden_size", "vocab_size"]


def test_nested_key_is_named_in_full(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    values = json.loads((CONFIGS / "gemma-3-4b-it.json").read_text())
    values["text_config"]["hidden_size"] = "wide"
    path.write_text(json.dumps(values, indent=2))
    with pytest.raises(ScenarioError, match=r"text_config\.hidden_size") as caught:
        build(read_config(path))
    where = caught.value.problems[0].where
    assert where is not None
    assert where.line is not None
    assert "wide" in path.read_text().splitlines()[where.line - 1]


def test_unknown_family_names_the_nearest_and_all() -> None:
    with pytest.raises(ScenarioError, match="did you mean 'llama'") as caught:
        build({"model_type": "lama"})
    assert all(name in str(caught.value) for name in known_model_types())
    with pytest.raises(ScenarioError, match=r'missing; by its architectures .*: "qwen2_moe"$'):
        build({"hidden_size": 8, "architectures": ["Qwen2MoeForCausalLM"]})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"model_type": "llama",\n  "hidden_size": }', r"config\.json:2:18 .*broken JSON"),
        (b"", r"config\.json:1:1 .*broken JSON"),
        (b"[1, 2]", "expected a JSON object, got a list"),
        (b"\xff\xfe\x00\x01", "not a text file"),
        (b'{"a": ' + b"[" * 200_000, "broken JSON"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "broken JSON"),
    ],
)
def test_broken_file_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ScenarioError, match=message) as caught:
        read_config(path)
    assert "\n" not in str(caught.value)


def test_absent_file_and_directory_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(ScenarioError, match="cannot be read"):
            read_config(path)


def test_model_can_be_sent_to_another_process() -> None:
    model = load("llama-3-8b", seq_len=64)
    again = pickle.loads(pickle.dumps(model))
    assert (again.flops, again.num_parameters) == (model.flops, model.num_parameters)


@pytest.mark.parametrize(("name", "limit_s"), [("llama-3.1-70b", 0.03), ("deepseek-v3", 0.1)])
def test_building_is_fast(name: str, limit_s: float) -> None:
    config = read_config(CONFIGS / f"{name}.json")

    def once() -> float:
        start = time.perf_counter()
        build(config, seq_len=4096)
        return time.perf_counter() - start

    assert min(once() for _ in range(5)) < limit_s


def test_import_brings_no_heavy_library() -> None:
    code = (
        "import sys, raysim.models.huggingface; "
        "print([m for m in ('torch', 'numpy', 'pandas', 'transformers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_what_transformers_writes_for_infinity_is_read(tmp_path: Path) -> None:
    """``time_step_limit`` of every Mamba 2 that transformers 5 saved."""
    file = tmp_path / "config.json"
    file.write_text('{"a": [0.0, {"__float__": "Infinity"}], "b": {"__float__": "-Infinity"}}')
    assert dict(read_config(file)) == {"a": [0.0, float("inf")], "b": -float("inf")}
    file.write_text('{"a": {"__float__": "seven"}, "b": {"__float__": "NaN", "c": 1}}')
    assert dict(read_config(file)) == json.loads(file.read_text())


def test_a_window_that_is_not_used_may_be_0() -> None:
    """As transformers 5 saves Qwen2-MoE."""
    config = dict(read_config(CONFIGS / "qwen1.5-moe-a2.7b.json"))
    model = build(config | {"sliding_window": 0, "use_sliding_window": False}, seq_len=64)
    cores = [o.attention for x in model.layers for o in x.body.operators if o.attention]
    assert [core.window for core in cores] == [None] * 24


def turned(config: dict[str, Any]) -> list[bool]:
    """Whether each layer rotates its queries."""
    return [
        any(o.name.endswith("rotary0") for o in layer.body.operators)
        for layer in build(config, seq_len=64).layers
        if layer.kind == "block"
    ]


def test_rotation_is_left_out_where_smollm3_and_exaone4_say() -> None:
    config = {"model_type": "smollm3", "num_hidden_layers": 4, "no_rope_layer_interval": 2}
    assert turned(config) == [True, False, True, False]
    listed = {**config, "no_rope_layers": [0, 1, 1]}
    with pytest.raises(ScenarioError, match="3 entries for 4 layers"):
        build(listed, seq_len=64)
    exaone: dict[str, Any] = {"model_type": "exaone4", "num_hidden_layers": 4}
    assert turned(exaone) == [True, True, True, False]
    assert turned(exaone | {"sliding_window": None}) == [True] * 4
    spelt = {"sliding_window_pattern": "LG", "layer_types": [
        "sliding_attention", "full_attention", "sliding_attention", "full_attention",
    ]}  # fmt: skip
    assert turned(exaone | spelt) == [True, False, True, False]


def test_a_family_of_a_repositorys_own_code_is_told_from_one_that_may_be_traced() -> None:
    config = {"model_type": "mimo", "auto_map": {"AutoConfig": "configuration_mimo.MiMoConfig"}}
    with pytest.raises(ScenarioError, match="whose code is never run; if its layers are those"):
        build(config)
    with pytest.raises(ScenarioError, match="is traced where it is installed"):
        build({"model_type": "mimo"})


def test_the_text_of_several_is_not_counted_with_their_vision_tower() -> None:
    text = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    whole = {"model_type": "gemma3", "architectures": ["Gemma3TextModel"], "text_config": text}
    with pytest.raises(ScenarioError, match="the text of gemma3 alone; give its text_config"):
        build(whole, seq_len=64)
    alone = text | {"model_type": "gemma3_text", "architectures": ["Gemma3TextModel"]}
    assert not any("vision" in layer.name for layer in build(alone, seq_len=64).layers)
