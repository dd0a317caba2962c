"""The module ``ray.data.preprocessors``: features made of columns, fitted to a dataset.

Real counterpart: ``ray/data/preprocessors`` (2.60). Fitting runs aggregations and maps of the
dataset, transforming is one ``map_batches``; both cost what such an execution costs.

Not modelled: ``TorchVisionPreprocessor``, and Ray's own format of a serialized preprocessor.
"""

from raysim.rayapi.data.preprocessors.base import (
    Preprocessor,
    PreprocessorNotFittedException,
)
from raysim.rayapi.data.preprocessors.bins import CustomKBinsDiscretizer, UniformKBinsDiscretizer
from raysim.rayapi.data.preprocessors.chain import Chain, Concatenator
from raysim.rayapi.data.preprocessors.encoders import (
    Categorizer,
    LabelEncoder,
    MultiHotEncoder,
    OneHotEncoder,
    OrdinalEncoder,
)
from raysim.rayapi.data.preprocessors.scalers import (
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    PowerTransformer,
    RobustScaler,
    SimpleImputer,
    StandardScaler,
)
from raysim.rayapi.data.preprocessors.texts import (
    CountVectorizer,
    FeatureHasher,
    HashingVectorizer,
    Tokenizer,
)
from raysim.rayapi.unsupported import getattr_of

__all__ = [
    "Categorizer", "Chain", "Concatenator", "CountVectorizer", "CustomKBinsDiscretizer",
    "FeatureHasher", "HashingVectorizer", "LabelEncoder", "MaxAbsScaler", "MinMaxScaler",
    "MultiHotEncoder", "Normalizer", "OneHotEncoder", "OrdinalEncoder", "PowerTransformer",
    "Preprocessor", "PreprocessorNotFittedException", "RobustScaler", "SimpleImputer",
    "StandardScaler", "Tokenizer", "UniformKBinsDiscretizer",
]  # fmt: skip
__getattr__ = getattr_of("ray.data.preprocessors")
