"""Ray Data: columns and rows by expressions: arithmetic, texts, missing values, functions, casts."""
# cluster: 4 CPU

import warnings

import ray
from ray.data.datatype import DataType
from ray.data.expressions import col, lit, udf


def ordered(ds):
    return sorted((sorted(r.items()) for r in ds.take_all()), key=repr)


def told(call, part):
    try:
        print(call())
    except Exception as error:
        print(type(error).__name__, part in str(error))


@udf(return_dtype=DataType.int64())
def plus_ten(numbers):
    import pyarrow.compute as pc

    return pc.add(numbers, 10)


@udf(return_dtype=DataType.int64())
class Offset:
    def __init__(self, by):
        self.by = by

    def __call__(self, numbers):
        import pyarrow.compute as pc

        return pc.add(numbers, self.by)


@udf(return_dtype=DataType.float64())
def wrong(numbers):
    return 3.0


warnings.simplefilter("ignore")
ray.init()
ray.data.DataContext.get_current().enable_progress_bars = False
numbers = ray.data.range(8, override_num_blocks=2)
print(ordered(numbers.with_column("twice", col("id") * 2)))
print(ordered(numbers.with_column("id", col("id") + 1)))
print(
    ordered(
        numbers.with_columns(
            {"half": col("id") / 2, "rest": col("id") % 3, "third": col("id") // 3, "one": lit(1)}
        )
    )
)
print(ordered(numbers.with_column("real", col("id") / 2.0)))
print(ordered(numbers.with_column("from_ten", 10 - col("id")).filter(expr=col("from_ten") > 6)))
print(ordered(numbers.filter(expr=(col("id") > 2) & (col("id") != 5) | (col("id") == 0))))
print(ordered(numbers.filter(expr=~(col("id") < 6))))
print(ordered(numbers.filter(expr=col("id").is_in([1, 3, 99]))))
print(ordered(numbers.filter(expr=col("id").not_in([1, 3, 99]))))
print(ordered(numbers.filter(expr="id >= 2 and not id in [4, 5]")))
print(ordered(numbers.filter(expr="id == 1 or -id < -6")))
print(numbers.filter(expr=col("id") > 100).count())
people = ray.data.from_items(
    [
        {"name": "ada", "age": 36, "town": "London"},
        {"name": "Bob", "age": None, "town": "Bath"},
        {"name": "eve ", "age": 17, "town": None},
    ],
    override_num_blocks=1,
)
print(ordered(people.with_column("upper", col("name").str.upper()).select_columns(["upper"])))
print(ordered(people.with_column("n", col("name").str.len()).select_columns(["n"])))
print(ordered(people.with_column("s", col("name").str.strip() + "!").select_columns(["s"])))
print(ordered(people.with_column("p", col("name").str.pad(5, "*")).select_columns(["p"])))
print(ordered(people.filter(expr=col("name").str.starts_with("a")).select_columns(["name"])))
print(ordered(people.filter(expr=col("town").str.contains("ath")).select_columns(["name"])))
print(ordered(people.filter(expr=col("age").is_null()).select_columns(["name"])))
print(ordered(people.filter(expr=col("town").is_not_null()).select_columns(["town"])))
print(ordered(people.filter(expr=col("age") > 18).select_columns(["name"])))
print(ordered(numbers.with_column("more", plus_ten(col("id")) * 2)))
print(ordered(numbers.with_column("off", Offset(5)(col("id")))))
print(ordered(numbers.with_column("id", (col("id") % 2).cast(DataType.string()))))
reals = ray.data.from_items([{"x": -1.5}, {"x": 2.25}])
print(ordered(reals.with_columns({"up": col("x").ceil(), "down": col("x").floor()})))
print(ordered(reals.with_columns({"abs": col("x").abs(), "square": col("x").power(2)})))
lists = ray.data.from_items([{"v": [1, 2, 3]}, {"v": [4]}])
print(ordered(lists.with_columns({"n": col("v").list.len(), "v": col("v").list[0]})))
print(list(numbers.with_columns({"b": col("id") + 1, "a": col("id")}).take(1)[0]))
print(numbers.with_columns({}).count(), numbers.with_column("c", lit("x")).take(1))
told(lambda: numbers.with_column("w", wrong(col("id"))).take_all(), "invalid type float")
told(lambda: numbers.filter(expr="id +"), "Invalid syntax in the expression: id +")
told(lambda: numbers.filter(expr="len(id)"), "Unsupported function: len")
told(lambda: numbers.filter(lambda r: True, expr=col("id") > 1), "Exactly one of")
told(lambda: numbers.filter(), "Exactly one of")
told(lambda: col("id").cast(int), "got: type")
told(lambda: numbers.with_columns(col("id")), "must be mappings")
print(bool(col("id") == col("id")), repr(numbers.filter(expr=(col("id") + 1) * 2 > 3)))
