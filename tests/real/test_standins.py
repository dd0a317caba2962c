"""Scripts whose data, configs, tokenizers and packages are not on this machine."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from raysim.rayapi.standins import configs, tokens  # noqa: E402
from raysim.rayapi.standins.absent import (  # noqa: E402
    flash_attn,
    flash_attn_layers,
    torchvision_models,
    torchvision_ops,
    torchvision_transforms,
    xformers,
)
from tests.real.test_launched_scripts import launched  # noqa: E402

PICTURES = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset
from torchvision import datasets, models, transforms

change = transforms.Compose([
    transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
    transforms.Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2)),
])
data = datasets.CIFAR10("nowhere", train=True, download=True, transform=change)
print(len(data), tuple(data[3][0].shape), data[13][1], len(data.classes))
later = datasets.CIFAR10("nowhere", train=False)
later.transform = change  # as timm's loaders do
print(len(later), tuple(later[3][0].shape))
large = transforms.Compose([transforms.RandomResizedCrop(224), transforms.ToTensor()])
folder = datasets.ImageFolder("nowhere/imagenet/train", large)
print(len(folder), tuple(folder[0][0].shape), len(folder.classes))
pets = datasets.OxfordIIITPet("nowhere", download=True, transform=large)
print(len(pets), tuple(pets[0][0].shape))
net = models.resnet18(weights=models.ResNet18_Weights.DEFAULT)
net.fc = nn.Linear(512, 10)
net = net.cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for picture, target in DataLoader(Subset(data, range(256)), 64):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(picture.cuda()), target.cuda()).backward()
    optimizer.step()
"""


def test_pictures_and_torchvision_that_are_not_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sizes, rows and classes as their authors published them."""
    (tmp_path / "train.py").write_text(PICTURES)
    lines, report = launched("python", str(tmp_path / "train.py"))
    assert lines == [
        "50000 (3, 32, 32) 3 10", "10000 (3, 32, 32)",
        "1281167 (3, 224, 224) 1000", "3680 (3, 224, 224)",
    ]  # fmt: skip
    assert report.ok
    said = capsys.readouterr().err
    assert said.count("CIFAR10: its files are not on this machine; 50,000 black pictures") == 1


def test_pictures_tell_their_sizes_as_torchvision_says_them() -> None:
    """Channels first and width first: timm's own crops ask for them."""
    for picture in (Image.new("L", (6, 4)), torch.zeros(1, 4, 6)):
        assert torchvision_transforms.get_dimensions(picture) == [1, 4, 6]
        assert torchvision_transforms.get_image_size(picture) == [6, 4]
        part = torchvision_transforms.resized_crop(picture, 1, 1, 2, 3, (8, 5))
        assert torchvision_transforms.get_dimensions(part) == [1, 8, 5]


def test_a_frozen_batch_norm_of_torchvision_is_one_in_evaluation(tmp_path: Path) -> None:
    """timm takes it from there, whichever model it makes."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nfrom torchvision.ops.misc import FrozenBatchNorm2d\n"
        "print(isinstance(FrozenBatchNorm2d(4), torch.nn.Module))\n"
    )
    assert launched("python", str(script))[0] == ["True"]
    torch.manual_seed(0)
    real = torch.nn.BatchNorm2d(4, eps=1e-3).eval()
    ours = torchvision_ops.FrozenBatchNorm2d(4, eps=1e-3)
    for buffer in real.state_dict().values():
        if buffer.is_floating_point():
            buffer.copy_(torch.rand(4) + 0.5)
    ours.load_state_dict({k: v for k, v in real.state_dict().items() if v.dim()})
    pictures = torch.randn(2, 4, 5, 5)
    torch.testing.assert_close(ours(pictures), real(pictures))


TEXTS = """
import evaluate, torch
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils.versions import require_version

require_version("datasets>=1.8.0", "as transformers' own examples ask")
tokenizer = AutoTokenizer.from_pretrained("bert-base-cased")
metric = evaluate.load("glue", "mrpc")
data = load_dataset("glue", "mrpc")
data = data.map(
    lambda rows: tokenizer(
        rows["sentence1"], rows["sentence2"], truncation=True, max_length=128
    ),
    batched=True, num_proc=4, remove_columns=["idx", "sentence1", "sentence2"],
).rename_column("label", "labels")
print(data["train"].num_rows, data["validation"].column_names)
model = AutoModelForSequenceClassification.from_pretrained("bert-base-cased", num_labels=2).cuda()
optimizer = torch.optim.AdamW(model.parameters())
collate = lambda rows: tokenizer.pad(rows, "max_length", 128, return_tensors="pt")
for batch in DataLoader(data["train"].shuffle(seed=1).select(range(64)), 16, collate_fn=collate):
    model(**{name: t.cuda() for name, t in batch.items()}).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(sum(p.numel() for p in model.parameters()), sorted(metric.compute()))
"""


@pytest.mark.skipif(find_spec("datasets") is not None, reason="that package has progress bars")
def test_a_data_set_a_model_and_a_metric_of_the_hub(tmp_path: Path) -> None:
    """BERT base, cased: 108,310,272 parameters and a head of 768 x 2 + 2."""
    (tmp_path / "train.py").write_text(TEXTS)
    lines, report = launched("python", str(tmp_path / "train.py"))
    columns = ["labels", "input_ids", "token_type_ids", "attention_mask"]
    assert lines[0] == f"3668 {columns}"
    assert lines[1] == f"{108_310_272 + 768 * 2 + 2} ['accuracy', 'f1']"
    assert report.ok


def test_a_checkpoint_of_t5_says_how_decoding_begins() -> None:
    """``"decoder_start_token_id": 0`` of its config.json, which scripts of translation look at."""
    found = dict(configs.by_name("google-t5/t5-small") or {})
    assert configs._classed(found)["decoder_start_token_id"] == 0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ('from datasets import load_dataset\nload_dataset("nobody/knows")', "files="),
        (
            'from transformers import AutoConfig\nAutoConfig.from_pretrained("./nowhere")',
            "./nowhere",
        ),
    ],
)
@pytest.mark.skipif(find_spec("datasets") is not None, reason="the hub would be asked")
def test_what_nobody_knows_ends_with_what_to_give(tmp_path: Path, call: str, said: str) -> None:
    (tmp_path / "asks.py").write_text(f"import torch\n{call}\n")
    with pytest.raises((FileNotFoundError, OSError)) as caught:
        launched("python", str(tmp_path / "asks.py"))
    assert said in str(caught.value)


PARAMETERS = {
    "gpt2-medium": 354_823_168, "facebook/opt-350m": 331_196_416,
    "EleutherAI/pythia-1.4b": 1_414_647_808, "bigscience/bloom-560m": 559_214_592,
    "roberta-base": 124_645_632, "google-t5/t5-base": 222_903_552,
    "openai/whisper-small": 241_734_912, "google/vit-base-patch16-224": 85_798_656,
    "microsoft/phi-2": 2_779_683_840, "google/gemma-2b": 2_506_172_416,
    "NousResearch/Hermes-3-Llama-3.1-8B": 8_030_261_248, "Qwen/Qwen2-0.5B-Instruct": 494_032_768,
}  # fmt: skip
"""Of the published checkpoints, as their pages or papers say; without heads that they have not."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_configs_known_by_name_have_the_published_parameters(name: str) -> None:
    found = dict(configs.by_name(name) or {})
    config = transformers.AutoConfig.for_model(found.pop("model_type"), **found)
    kind = HEADS.get(config.model_type, "AutoModelForCausalLM")
    more = {"add_pooling_layer": False} if config.model_type == "vit" else {}
    with torch.device("meta"):
        model = getattr(transformers, kind).from_config(config, **more)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]


HEADS = {
    "whisper": "AutoModelForSpeechSeq2Seq", "t5": "AutoModelForSeq2SeqLM", "vit": "AutoModel",
    "roberta": "AutoModel",
}  # fmt: skip


VISION = {
    "resnet18": 11_689_512, "resnet50": 25_557_032, "resnext50_32x4d": 25_028_904,
    "wide_resnet50_2": 68_883_240, "vgg16": 138_357_544, "alexnet": 61_100_840,
    "AlexNet": 61_100_840, "mobilenet_v2": 3_504_872, "vit_b_16": 86_567_656,
}  # fmt: skip
"""Parameters, as torchvision's page of weights says."""


@pytest.mark.parametrize("name", VISION)
def test_models_of_torchvision_have_the_published_parameters(name: str) -> None:
    with torch.device("meta"):
        net = getattr(torchvision_models, name)()
        out = net.eval()(torch.empty(2, 3, 224, 224))
    assert sum(p.numel() for p in net.parameters()) == VISION[name]
    assert out.shape == (2, 1000)


@pytest.mark.parametrize(
    "name", ["bert-base-cased", "gpt2", "google/flan-t5-small", "facebook/opt-125m"]
)
def test_a_tokenizer_has_the_models_words_and_special_tokens(name: str) -> None:
    found = dict(configs.by_name(name) or {})
    config = transformers.AutoConfig.for_model(found.pop("model_type"), **found)
    made = tokens.stand_in(name, config)
    assert len(made) == config.vocab_size
    said = tokens.english()[50_000:60_000]
    ids = made(said)["input_ids"]
    assert max(ids) < config.vocab_size
    assert 4.0 < len(said) / len(ids) < 4.8
    assert made.decode(ids, skip_special_tokens=True) == said
    for role in ("pad_token_id", "eos_token_id"):
        if getattr(config, role) is not None and name != "bert-base-cased":
            assert getattr(made, role) in (None, getattr(config, role))


def test_flash_attention_is_attention() -> None:
    q, k, v = torch.randn(3, 2, 16, 4, 8).unbind(0)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / 8**0.5
    hidden = torch.ones(16, 16).triu(1).bool()
    expected = torch.einsum(
        "bhij,bjhd->bihd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v
    )
    torch.testing.assert_close(flash_attn.flash_attn_func(q, k, v, causal=True), expected)
    ends = torch.tensor([0, 16, 32])
    flat = (t.flatten(0, 1) for t in (q, k, v))
    packed = flash_attn.flash_attn_varlen_func(*flat, ends, ends, 16, 16, causal=True)
    torch.testing.assert_close(packed, expected.flatten(0, 1))
    mask = xformers.LowerTriangularMask()
    torch.testing.assert_close(xformers.memory_efficient_attention(q, k, v, mask), expected)


def test_rotary_embeddings_and_norms_of_flash_attn_are_transformers_and_torchs() -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    x, angles = torch.randn(2, 16, 4, 8), torch.randn(16, 4)
    cos, sin = angles.cos(), angles.sin()
    whole = (torch.cat((t, t), -1)[None] for t in (cos, sin))
    expected, _ = apply_rotary_pos_emb(x, x, *whole, unsqueeze_dim=2)
    torch.testing.assert_close(flash_attn_layers.apply_rotary_emb(x, cos, sin), expected)
    mixed = x.unflatten(-1, (2, 4)).transpose(-1, -2).flatten(-2)  # pairs beside each other
    turned = flash_attn_layers.apply_rotary_emb(mixed, cos, sin, interleaved=True)
    torch.testing.assert_close(turned.unflatten(-1, (4, 2)).transpose(-1, -2).flatten(-2), expected)
    out, summed = flash_attn_layers.layer_norm_fn(
        x, torch.ones(8), None, residual=x, prenorm=True, is_rms_norm=True
    )
    torch.testing.assert_close(summed, 2 * x)
    torch.testing.assert_close(out, torch.nn.functional.rms_norm(2 * x, (8,), eps=1e-6))


FASTER = """
import importlib.util
import torch
import bitsandbytes as bnb
from apex.normalization import FusedLayerNorm
from apex.optimizers import FusedAdam
from flash_attn import flash_attn_func
from flash_attn.layers.rotary import apply_rotary_emb
from flash_attn.ops.triton.layer_norm import layer_norm_fn

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv = FusedLayerNorm(512), torch.nn.Linear(512, 1536)
    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 8, 64)).unbind(2)
        return flash_attn_func(q, k, v, causal=True).flatten(2).sum()

print([importlib.util.find_spec(name) for name in ("apex", "flash_attn", "xformers")])
for make in (FusedAdam, bnb.optim.AdamW8bit):
    net = Net().cuda().bfloat16()
    optimizer = make(net.parameters(), lr=1e-3)
    for _ in range(2):
        net(torch.randn(4, 128, 512, device="cuda", dtype=torch.bfloat16)).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.skipif(
    any(find_spec(name) for name in ("apex", "bitsandbytes", "flash_attn")), reason="installed"
)
def test_packages_for_speed_that_are_not_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(FASTER)
    lines, report = launched("python", str(tmp_path / "train.py"))
    assert report.ok
    assert lines == ["[None, None, None]"]  # whoever asks is told the truth
    said = capsys.readouterr().err
    assert "flash_attn is not installed: its functions as torch's own fused attention" in said
    assert "AdamW8bit is priced as" not in said  # it is known by its name
