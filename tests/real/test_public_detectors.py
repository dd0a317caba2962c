"""What detectors ask of values that nobody knows: how many there are."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from raysim.rayapi.shapes.here import steps_here  # noqa: E402
from tests.real.training_script_parts import fit_value  # noqa: E402


class Detector(nn.Module):
    """As torchvision's: pictures in a list, of a size that it draws; places that it samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 2, 3)
        self.seen: set[Any] = set()

    def forward(self, images: Any, labels: Any) -> Any:
        """The loss."""
        size = (8, 10)[int(torch.empty(1).uniform_(0.0, 2.0).item())]
        pictures = [nn.functional.interpolate(i[None], (size, size))[0] for i in images]
        flat = self.layer(torch.stack(pictures)).flatten(1).T
        positive = torch.where(flat[:, 0] > 0)[0]
        masks = []
        for most in (16, 4):
            masks.append(torch.zeros_like(positive, dtype=torch.uint8))
            masks[-1][positive[torch.randperm(len(positive), device="cuda")[:most]]] = 1
        picked = torch.where(masks[0] | masks[1])[0]
        kinds = torch.unique(labels[positive.clamp(max=3)])
        self.seen.add((len(positive) / size / size > 0.5, len(picked), len(kinds)))
        written = torch.zeros_like(flat)
        written[flat > 0] = flat[flat > 0]  # backward picks by the mask
        corner = written[: positive[0], : positive[1]]  # as masks are pasted
        return flat[picked].sum() + flat[flat[:, 0] > 1].sum() + written.sum() + corner.sum()


def test_how_many_there_are_of_what_nobody_knows() -> None:
    """Every place of a mask, but of zeros those that were set; once on shapes, once traced."""

    def loop(_: Any) -> Any:
        model = Detector().cuda()
        images = [torch.zeros(3, 6, 6, device="cuda") for _ in range(2)]
        labels = torch.zeros(4, device="cuda").long()
        model(images, labels).backward()
        found = torch.bincount(model.layer(images[0]).argmax(0).flatten(), minlength=9)
        assert torch.allclose(found, found + 1)  # a script's own assertion holds
        roles = steps_here().shared.roles.values()  # type: ignore[union-attr]
        return model.seen, len(found), next(iter(roles)).batch

    seen, bins, samples = fit_value(loop, workers=1)
    assert seen == {(True, 20, 1)}
    assert (bins, samples) == (9, 2)
