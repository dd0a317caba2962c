"""``torchvision.models``: ResNets, VGGs, AlexNet, MobileNet v2, vision transformers.

Real counterpart: ``torchvision/models/{resnet,vgg,alexnet,mobilenetv2,vision_transformer}.py``, of
which these have the layers and parameters' names. Weights are taken to be loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, NoReturn

import torch
from torch import nn

from raysim.rayapi.standins.absent import torchvision_transforms as transforms
from raysim.rayapi.unsupported import NotEmulatedError

__version__ = "0.28.0"


class Weights:
    """``ResNet50_Weights`` and its like, and each of what they name."""

    DEFAULT: Weights
    IMAGENET1K_V1: Weights
    IMAGENET1K_V2: Weights
    url = ""
    meta: ClassVar[dict[str, Any]] = {"categories": [f"class {i}" for i in range(1000)]}

    @staticmethod
    def transforms() -> Any:
        """As nearly all of them: 224 pixels."""
        return transforms.Compose([
            transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ])  # fmt: skip


Weights.DEFAULT = Weights.IMAGENET1K_V1 = Weights.IMAGENET1K_V2 = Weights()


class _Block(nn.Module):
    """``BasicBlock``, or ``Bottleneck`` where ``wide`` is 4."""

    def __init__(self, given: int, planes: int, stride: int, wide: int, groups: int,
                 width: int) -> None:  # fmt: skip
        super().__init__()
        inner, out = planes * width // 64 * groups, planes * wide
        conv = partial(nn.Conv2d, bias=False)
        if wide == 1:
            self.conv1, self.bn1 = conv(given, planes, 3, stride, 1), nn.BatchNorm2d(planes)
            self.relu = nn.ReLU(inplace=True)
            self.conv2, self.bn2 = conv(planes, planes, 3, 1, 1), nn.BatchNorm2d(planes)
        else:
            self.conv1, self.bn1 = conv(given, inner, 1), nn.BatchNorm2d(inner)
            self.conv2 = conv(inner, inner, 3, stride, 1, groups=groups)
            self.bn2 = nn.BatchNorm2d(inner)
            self.conv3, self.bn3 = conv(inner, out, 1), nn.BatchNorm2d(out)
            self.relu = nn.ReLU(inplace=True)
        self.deep = wide > 1
        changes = stride != 1 or given != out
        self.downsample = (
            nn.Sequential(conv(given, out, 1, stride), nn.BatchNorm2d(out)) if changes else None
        )

    def forward(self, x: Any) -> Any:
        """The block."""
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.deep:
            out = self.bn3(self.conv3(self.relu(out)))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    """``torchvision.models.ResNet``."""

    def __init__(
        self, layers: Sequence[int], wide: int, *, num_classes: int = 1000, groups: int = 1,
        width: int = 64, zero_init_residual: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        del zero_init_residual  # of values
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(64), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        given = 64
        for i, many in enumerate(layers):
            blocks = []
            for j in range(many):
                stride = 2 if i and not j else 1
                blocks.append(_Block(given, 64 << i, stride, wide, groups, width))
                given = (64 << i) * wide
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(given, num_classes)

    def forward(self, x: Any) -> Any:
        """Of pictures."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for i in range(1, 5):
            x = getattr(self, f"layer{i}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


def _resnet(layers: Sequence[int], wide: int, groups: int = 1, width: int = 64) -> Any:
    def make(*, weights: Any = None, progress: bool = True, pretrained: Any = None,
             **more: Any) -> ResNet:  # fmt: skip
        del weights, progress, pretrained
        return ResNet(layers, wide, groups=groups, width=width, **more)

    return make


resnet18, resnet34 = _resnet((2, 2, 2, 2), 1), _resnet((3, 4, 6, 3), 1)
resnet50, resnet101 = _resnet((3, 4, 6, 3), 4), _resnet((3, 4, 23, 3), 4)
resnet152 = _resnet((3, 8, 36, 3), 4)
resnext50_32x4d = _resnet((3, 4, 6, 3), 4, 32, 4)
resnext101_32x8d = _resnet((3, 4, 23, 3), 4, 32, 8)
wide_resnet50_2 = _resnet((3, 4, 6, 3), 4, 1, 128)
wide_resnet101_2 = _resnet((3, 4, 23, 3), 4, 1, 128)


class _Pooled(nn.Module):
    """Features, one size, and a classifier: ``VGG``, ``AlexNet``."""

    def __init__(self, features: nn.Module, side: int, classifier: nn.Module) -> None:
        super().__init__()
        self.features, self.avgpool = features, nn.AdaptiveAvgPool2d(side)
        self.classifier = classifier

    def forward(self, x: Any) -> Any:
        """Of pictures."""
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


_VGG = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def _vgg(depth: int, *, norm: bool) -> Any:
    def make(*, weights: Any = None, progress: bool = True, pretrained: Any = None,
             num_classes: int = 1000, dropout: float = 0.5) -> nn.Module:  # fmt: skip
        del weights, progress, pretrained
        layers: list[nn.Module] = []
        given = 3
        for i, many in enumerate(_VGG[depth]):
            for _ in range(many):
                out = min(512, 64 << i)
                layers += [nn.Conv2d(given, out, 3, padding=1)]
                layers += [nn.BatchNorm2d(out)] * norm
                layers += [nn.ReLU(inplace=True)]
                given = out
            layers += [nn.MaxPool2d(2, 2)]
        classifier = nn.Sequential(
            nn.Linear(512 * 49, 4096), nn.ReLU(inplace=True), nn.Dropout(dropout),
            nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(dropout),
            nn.Linear(4096, num_classes),
        )  # fmt: skip
        return _Pooled(nn.Sequential(*layers), 7, classifier)

    return make


vgg11, vgg13, vgg16, vgg19 = (_vgg(n, norm=False) for n in _VGG)
vgg11_bn, vgg13_bn, vgg16_bn, vgg19_bn = (_vgg(n, norm=True) for n in _VGG)


class AlexNet(_Pooled):
    """``torchvision.models.AlexNet``."""

    def __init__(self, num_classes: int = 1000, dropout: float = 0.5) -> None:
        relu, pool = partial(nn.ReLU, inplace=True), partial(nn.MaxPool2d, 3, 2)
        features = nn.Sequential(
            nn.Conv2d(3, 64, 11, 4, 2), relu(), pool(), nn.Conv2d(64, 192, 5, padding=2), relu(),
            pool(), nn.Conv2d(192, 384, 3, padding=1), relu(), nn.Conv2d(384, 256, 3, padding=1),
            relu(), nn.Conv2d(256, 256, 3, padding=1), relu(), pool(),
        )  # fmt: skip
        classifier = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(256 * 36, 4096), relu(), nn.Dropout(dropout),
            nn.Linear(4096, 4096), relu(), nn.Linear(4096, num_classes),
        )  # fmt: skip
        super().__init__(features, 6, classifier)


def alexnet(
    *, weights: Any = None, progress: bool = True, pretrained: Any = None, **more: Any
) -> nn.Module:
    """``torchvision.models.alexnet``."""
    del weights, progress, pretrained
    return AlexNet(**more)


def _convolved(given: int, out: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(given, out, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out), nn.ReLU6(inplace=True),
    )  # fmt: skip


class _Inverted(nn.Module):
    """``InvertedResidual``."""

    def __init__(self, given: int, out: int, stride: int, factor: int) -> None:
        super().__init__()
        inner = given * factor
        layers: list[nn.Module] = [] if factor == 1 else [_convolved(given, inner, 1)]
        layers += [_convolved(inner, inner, 3, stride, inner), nn.Conv2d(inner, out, 1, bias=False),
                   nn.BatchNorm2d(out)]  # fmt: skip
        self.conv, self.adds = nn.Sequential(*layers), stride == 1 and given == out

    def forward(self, x: Any) -> Any:
        """The block."""
        return x + self.conv(x) if self.adds else self.conv(x)


_MOBILE = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
           (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip


def mobilenet_v2(
    *, weights: Any = None, progress: bool = True, pretrained: Any = None, num_classes: int = 1000,
    dropout: float = 0.2,
) -> nn.Module:  # fmt: skip
    """``torchvision.models.mobilenet_v2``."""
    del weights, progress, pretrained
    layers: list[nn.Module] = [_convolved(3, 32, 3, 2)]
    given = 32
    for factor, out, many, stride in _MOBILE:
        for i in range(many):
            layers.append(_Inverted(given, out, 1 if i else stride, factor))
            given = out
    layers.append(_convolved(given, 1280, 1))
    return _Pooled(
        nn.Sequential(*layers), 1, nn.Sequential(nn.Dropout(dropout), nn.Linear(1280, num_classes))
    )


class _Encoder(nn.Module):
    """``EncoderBlock``."""

    def __init__(
        self, hidden: int, heads: int, wide: int, dropout: float, attention_dropout: float
    ) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(hidden, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(
            hidden, heads, dropout=attention_dropout, batch_first=True
        )
        self.dropout = nn.Dropout(dropout)
        self.ln_2 = nn.LayerNorm(hidden, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(hidden, wide), nn.GELU(), nn.Dropout(dropout), nn.Linear(wide, hidden),
            nn.Dropout(dropout),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        """The block."""
        y = self.ln_1(x)
        x = x + self.dropout(self.self_attention(y, y, y, need_weights=False)[0])
        return x + self.mlp(self.ln_2(x))


class _Tower(nn.Module):
    """``Encoder``."""

    def __init__(self, length: int, hidden: int, made: Iterable[nn.Module], dropout: float) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.zeros(1, length, hidden))
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.Sequential()
        for i, layer in enumerate(made):
            self.layers.add_module(f"encoder_layer_{i}", layer)
        self.ln = nn.LayerNorm(hidden, eps=1e-6)

    def forward(self, x: Any) -> Any:
        """Of patches."""
        return self.ln(self.layers(self.dropout(x + self.pos_embedding)))


class VisionTransformer(nn.Module):
    """``torchvision.models.VisionTransformer``."""

    def __init__(
        self, image_size: int, patch_size: int, num_layers: int, num_heads: int, hidden_dim: int,
        mlp_dim: int, dropout: float = 0.0, attention_dropout: float = 0.0, num_classes: int = 1000,
    ) -> None:  # fmt: skip
        super().__init__()
        self.conv_proj = nn.Conv2d(3, hidden_dim, patch_size, patch_size)
        self.class_token = nn.Parameter(torch.zeros(1, 1, hidden_dim))
        made = [
            _Encoder(hidden_dim, num_heads, mlp_dim, dropout, attention_dropout)
            for _ in range(num_layers)
        ]
        self.encoder = _Tower((image_size // patch_size) ** 2 + 1, hidden_dim, made, dropout)
        self.heads = nn.Sequential()
        self.heads.add_module("head", nn.Linear(hidden_dim, num_classes))

    def forward(self, x: Any) -> Any:
        """Of pictures."""
        x = self.conv_proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1)
        return self.heads(self.encoder(x)[:, 0])


def _vit(patch: int, layers: int, heads: int, hidden: int, wide: int) -> Any:
    def make(*, weights: Any = None, progress: bool = True, **more: Any) -> nn.Module:
        del weights, progress
        size = more.pop("image_size", 224)
        return VisionTransformer(size, patch, layers, heads, hidden, wide, **more)

    return make


vit_b_16, vit_b_32 = _vit(16, 12, 12, 768, 3072), _vit(32, 12, 12, 768, 3072)
vit_l_16, vit_l_32 = _vit(16, 24, 16, 1024, 4096), _vit(32, 24, 16, 1024, 4096)


def get_model(name: str, **more: Any) -> Any:
    """``torchvision.models.get_model``."""
    found = globals().get(name)
    return found(**more) if found is not None else __getattr__(name)


def __getattr__(name: str) -> Any:
    if name.endswith("_Weights"):
        return Weights
    if name.startswith("__"):
        raise AttributeError(name)
    return _missing(name)


def _missing(name: str) -> NoReturn:
    raise NotEmulatedError(
        f"torchvision.models.{name} without torchvision",
        "pip install torchvision, whose own models run; or a ResNet, VGG, AlexNet, MobileNet v2 "
        "or ViT",
    )
