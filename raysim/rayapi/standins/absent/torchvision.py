"""``torchvision``: data sets without files, transforms, the models that most scripts name.

Real counterpart: ``torchvision`` (0.28), where it is not installed.
"""

from __future__ import annotations

from raysim.rayapi.standins.absent import torchvision_datasets as datasets
from raysim.rayapi.standins.absent import torchvision_models as models
from raysim.rayapi.standins.absent import torchvision_ops as ops
from raysim.rayapi.standins.absent import torchvision_transforms as transforms
from raysim.rayapi.standins.absent import torchvision_utils as utils

__version__ = "0.28.0"
__all__ = ["datasets", "models", "ops", "transforms", "utils"]
