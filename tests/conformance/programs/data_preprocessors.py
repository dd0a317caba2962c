"""ray.data.preprocessors: fitted to a dataset, applied to it and to batches, chained, refused."""
# cluster: 4 CPU

import numpy as np
import pandas as pd
import ray
from ray.data.preprocessor import Preprocessor, PreprocessorNotFittedException
from ray.data.preprocessors import (
    Categorizer,
    Chain,
    Concatenator,
    CustomKBinsDiscretizer,
    FeatureHasher,
    HashingVectorizer,
    LabelEncoder,
    MaxAbsScaler,
    MinMaxScaler,
    MultiHotEncoder,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    SimpleImputer,
    StandardScaler,
    Tokenizer,
    UniformKBinsDiscretizer,
)

ray.init()
ray.data.DataContext.get_current().enable_progress_bars = False


def plain(value):
    if isinstance(value, float | np.ndarray | np.generic):
        return np.round(value, 4).tolist()
    return value


def told(title, dataset):
    print(title)
    for row in dataset.take_all():
        print("   ", {name: plain(value) for name, value in row.items()})


frame = pd.DataFrame({"a": [-2, 0, 2, 5], "b": [-3.0, -3.0, 3.0, 9.0], "c": [1, 1, 1, 1]})
numbers = ray.data.from_pandas(frame)
for each in (
    StandardScaler(["a", "b"]),
    StandardScaler(["a", "c"], output_columns=["x", "y"]),
    MinMaxScaler(["a", "c"]),
    MaxAbsScaler(["b"]),
    Normalizer(["a", "b"]),
    Normalizer(["a", "b"], norm="l1"),
    Normalizer(["a", "b"], norm="max"),
    PowerTransformer(["b"], power=2),
    PowerTransformer(["b"], power=0.5),
    PowerTransformer(["c"], power=0, method="box-cox"),
    UniformKBinsDiscretizer(["b"], bins=3),
    CustomKBinsDiscretizer(["a"], bins=[-3, 1, 6], output_columns=["bin"]),
):
    print(each, each.fit_status().name)
    try:
        each.transform(numbers)
    except PreprocessorNotFittedException as error:
        print(error)
    told(type(each).__name__, each.fit_transform(numbers))
    print(each.fit_status().name)
    print(each.transform_batch(frame.copy()).round(3).to_dict("list"))
print(StandardScaler(["a"]).fit(numbers).stats_)
told("columns as one", Concatenator(["a", "b"], "both", dtype=np.float32).transform(numbers))
told("hashed", FeatureHasher(["a", "b"], 4, "h").transform(numbers))

chain = Chain(StandardScaler(["a"]), MinMaxScaler(["a"]), Concatenator(["a", "b"]))
print(chain, chain.fit_status().name)
told("chain", chain.fit_transform(numbers))
print(chain.fit_status().name)

copy = StandardScaler.deserialize(StandardScaler(["b"]).fit(numbers).serialize())
print(copy, copy.stats_)

people = ray.data.from_items(
    [
        {"kind": "m", "likes": [1, 2], "text": "hello big world"},
        {"kind": "f", "likes": [2, 2], "text": "big big dog"},
        {"kind": "m", "likes": [3, 1], "text": "dog"},
        {"kind": "x", "likes": [1, 5], "text": "big hello"},
    ]
)
for each in (
    OrdinalEncoder(["kind"]),
    OrdinalEncoder(["likes"]),
    MultiHotEncoder(["likes"]),
    LabelEncoder("kind"),
    LabelEncoder("kind", output_column="label"),
    Tokenizer(["text"]),
    HashingVectorizer(["text"], 4),
):
    print(each)
    made = each.fit_transform(people)
    told(type(each).__name__, made)
    if isinstance(each, LabelEncoder):
        told("and back", each.inverse_transform(made))
for most in (None, {"kind": 1}):
    encoder = OneHotEncoder(["kind"], max_categories=most).fit(people)
    made = encoder.transform(people).take_all()
    print([list(map(int, row["kind"])) for row in made], encoder.stats_)
print(Categorizer(["kind"]).fit(people).stats_["kind"].categories.tolist())

gaps = ray.data.from_items([{"n": 1.0, "s": "x"}, {"n": None, "s": None}, {"n": 5.0, "s": "x"}])
told("mean", SimpleImputer(["n"]).fit_transform(gaps))
told("most frequent", SimpleImputer(["s"], strategy="most_frequent").fit_transform(gaps))
told("constant", SimpleImputer(["n"], strategy="constant", fill_value=9.0).transform(gaps))


class Doubled(Preprocessor):
    """A program's own."""

    def _fit(self, dataset):
        self.stats_ = {"factor": int(dataset.max("c")) * 2}
        return self

    def _transform_numpy(self, batch):
        return {**batch, "a": batch["a"] * self.stats_["factor"]}


own = Doubled()
told("own", own.fit_transform(numbers))
print(own.transform_batch({"a": np.array([1, 2])}))

for wrong in (
    lambda: SimpleImputer(["n"], strategy="median"),
    lambda: SimpleImputer(["n"], strategy="constant"),
    lambda: OneHotEncoder(["s"], max_categories={"t": 1}).fit(gaps),
    lambda: StandardScaler(["a"], output_columns=["x", "y"]),
    lambda: LabelEncoder("s").inverse_transform(gaps),
    lambda: UniformKBinsDiscretizer(["a"], bins={"b": 2}),
):
    try:
        wrong()
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])
