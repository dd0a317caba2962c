"""A layer table with PEFT's low-rank adapters (LoRA) in it, all else frozen.

Each chosen linear becomes what ``peft.tuners.lora.Linear.forward`` runs: the frozen layer, and
beside it dropout, the product with ``lora_A``, the one with ``lora_B``, a scale and an addition,
each a kernel of its own. ``modules_to_save`` are trained copies; the originals stay in memory.

Sources: PEFT 0.18, ``tuners/lora/layer.py`` and ``config.py``, ``check_target_module_exists`` and
``_maybe_include_all_linear_layers`` of ``tuners/tuners_utils.py``, ``utils/constants.py``.

Not modelled: adapters of embeddings, convolutions and experts' stacked weights, DoRA and other
variants, adapters under tensor parallelism.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from raysim.models.autocast import CAST_MOVED
from raysim.models.frozen import only_trained
from raysim.models.table import Body, Gemm, Layer, Model, Module, Operator, Parameter, Saved

ALL_LINEAR = "all-linear"
LINEAR = re.compile(r"Conv1D|(Falcon)?Linear|Linear4bit|Linear8bitLt")
"""Classes of modules that PEFT puts adapters on, of those in layer tables."""
_ATTENTION = ("q_proj", "v_proj")
DEFAULT_TARGETS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("t5", "mt5"), ("q", "v")),
    **dict.fromkeys(("gpt2", "gpt_bigcode"), ("c_attn",)),
    **dict.fromkeys(("bloom", "gpt_neox", "falcon", "chatglm"), ("query_key_value",)),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "electra", "layoutlm"), ("query", "value")),
    **dict.fromkeys(
        ("bart", "opt", "gptj", "gpt_neo", "llama", "llama4", "mistral", "mixtral", "stablelm",
         "gemma", "gemma2", "gemma3_text", "qwen2", "qwen3"), _ATTENTION,
    ),
    "phi": (*_ATTENTION, "fc1", "fc2"),
    "deberta-v2": ("query_proj", "value_proj"),
    "mpt": ("Wqkv",),
    "codegen": ("qkv_proj",),
    "nemotron_h": ("q_proj", "k_proj", "v_proj", "o_proj"),
}  # fmt: skip
"""By ``model_type``, where an adapter's config names none."""
ADAPTER = re.compile(r"\.lora_[AB]\.default\.weight$|\.modules_to_save\.default\.")
WIDE = 2.0
"""An fp32 element in the 16-bit elements that ``moved`` counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """PEFT's, as far as it decides what is computed and stored."""

    r: int = 8
    lora_dropout: float = 0.0
    target_modules: str | tuple[str, ...] | None = None
    """Ends of names, a regular expression of whole names, or ``all-linear``; None: by model."""
    exclude_modules: str | tuple[str, ...] = ()
    modules_to_save: tuple[str, ...] = ()
    layers_to_transform: tuple[int, ...] = ()
    layers_pattern: tuple[str, ...] = ()
    rank_pattern: dict[str, int] = field(default_factory=dict)
    fp32: bool = False
    """Adapters stay fp32 beside 16-bit weights (``autocast_adapter_dtype``), under autocast."""

    def targets(self, model: Model) -> str | tuple[str, ...]:
        """What names must end in or match.

        Raises
        ------
        ValueError
            The config names none, and PEFT has no default for the model.
        """
        if self.target_modules is not None:
            return self.target_modules
        if model.model_type not in DEFAULT_TARGETS:
            raise ValueError(
                f"target_modules is required: PEFT has no default for {model.model_type}"
            )
        return DEFAULT_TARGETS[model.model_type]

    def rank(self, name: str) -> int:
        """Of the adapter on a module."""
        for pattern, rank in self.rank_pattern.items():
            if re.match(rf"(.*\.)?({pattern})$", name):
                return rank
        return self.r


def adapted(model: Model, config: LoraConfig, *, checkpointed: bool = False) -> Model:
    """The model with adapters, of which only these are trained.

    ``checkpointed``: its layers are, for which transformers makes their input require gradients.

    Raises
    ------
    ValueError
        No module has one of the names, or a name is of something that takes no adapter.
    """
    targets = config.targets(model)

    def told(layer: Layer) -> tuple[tuple[int, bool], ...]:
        return tuple(
            (_rank(layer, m, config, targets), _saved(layer, m, config)) for m in layer.body.modules
        )

    def change(layer: Layer) -> Body:
        pairs = zip(layer.body.modules, told(layer), strict=True)
        modules = [part for m, (rank, saved) in pairs for part in _parts(m, rank, saved, config)]
        return replace(layer.body, modules=tuple(modules))

    made = model.with_layers(told, change)
    if not any(ADAPTER.search(name) for name, _ in made.parameters()):
        raise ValueError(f"target_modules {_said(targets)} not found in {model.name}")
    return only_trained(made, lambda n: bool(ADAPTER.search(n)), entered=checkpointed)


def _said(targets: str | tuple[str, ...]) -> str:
    return targets if isinstance(targets, str) else ", ".join(targets)


def _ends(name: str, targets: tuple[str, ...]) -> bool:
    return any(name == t or name.endswith(f".{t}") for t in targets)


def _matches(name: str, targets: str | tuple[str, ...]) -> bool:
    if isinstance(targets, str):
        return re.fullmatch(targets, name) is not None
    return _ends(name, targets)


def _rank(layer: Layer, module: Module, config: LoraConfig, targets: str | tuple[str, ...]) -> int:
    """Of the adapter on a module; 0: none."""
    name = layer.full(module.name)
    if _matches(name, config.exclude_modules) or _saved(layer, module, config):
        return 0
    linear = product_of(module)
    if targets == ALL_LINEAR:
        return config.rank(name) if linear and layer.kind != "head" else 0
    if not _matches(name, targets) or not _chosen_layer(name, config) or _no_module(module):
        return 0
    if linear is None:
        raise ValueError(
            f"{name} is a {module.cls}; adapters are simulated on Linear and Conv1D alone"
        )
    return config.rank(name)


def _no_module(module: Module) -> bool:
    """What runs beside a head under its name: the loss, a cap, a scale."""
    return not module.name and not module.parameters


def _chosen_layer(name: str, config: LoraConfig) -> bool:
    if not config.layers_to_transform:
        return True
    patterns = config.layers_pattern or ("[^.]*",)
    for pattern in patterns:
        at = re.match(rf".*?\.{pattern}\.(\d+)\.", name)
        if at is not None:
            return int(at.group(1)) in config.layers_to_transform
    return False


def product_of(module: Module) -> Operator | None:
    """The product of a plain linear module."""
    products = [o for o in module.operators if o.kind == "gemm" and o.split != "expert"]
    return products[0] if LINEAR.fullmatch(module.cls) and len(products) == 1 else None


def _saved(layer: Layer, module: Module, config: LoraConfig) -> bool:
    return bool(module.parameters) and _ends(layer.full(module.name), config.modules_to_save)


def _parts(module: Module, rank: int, saved: bool, config: LoraConfig) -> Iterator[Module]:
    if rank:
        yield from _lora(module, rank, config)
    elif saved:
        yield _copied(module)
    else:
        yield module


def _copied(module: Module) -> Module:
    """``ModulesToSaveWrapper``: the copy runs and is trained, the original stays."""
    copies = [_within(module, p, "modules_to_save.default") for p in module.parameters]
    copies = [replace(p, tied_to=None) for p in copies]
    originals = [_within(module, p, "original_module") for p in module.parameters]
    return replace(module, parameters=(*copies, *originals))


def _within(module: Module, parameter: Parameter, part: str) -> Parameter:
    """A parameter one level further down."""
    own = parameter.name.removeprefix(f"{module.name}.") if module.name else parameter.name
    return replace(parameter, name=_part(_part(module.name, part), own))


def _part(name: str, own: str) -> str:
    """Of a module; a head is its layer, and has no name in it."""
    return f"{name}.{own}" if name else own


def _lora(module: Module, rank: int, config: LoraConfig) -> Iterator[Module]:
    """``lora.Linear`` in the place of a linear module."""
    base = product_of(module)
    assert base is not None
    assert base.gemm is not None
    out = base.result or f"{module.name}.out"
    yield replace(
        module,
        name=_part(module.name, "base_layer"),
        operators=tuple(
            replace(o, name=f"{o.name}.base_layer", result=f"{out}.base") if o is base else o
            for o in module.operators
        ),
        parameters=tuple(_within(module, p, "base_layer") for p in module.parameters),
    )
    yield from _Adapter(module.name, base, rank, out, config).modules()


class _Adapter:
    """What one adapter runs; ``x`` is what the linear reads, ``y`` as wide as what it gives."""

    def __init__(self, name: str, base: Operator, rank: int, out: str, config: LoraConfig) -> None:
        assert base.gemm is not None
        self.name, self.rank, self.out = name, rank, out
        self.dropout, self.fp32 = config.lora_dropout, config.fp32
        self.dropout_name = _part(name, "lora_dropout")
        self.rows, self.n, self.k = base.gemm.rows, base.gemm.n, base.gemm.k
        kept = base.saves[0] if base.saves else Saved(name=f"{name}.in", numel=0.0)
        self.x = kept if kept.numel else replace(kept, numel=self.rows * self.k)
        self.x_numel, self.y_numel = self.rows * self.k, self.rows * self.n

    def modules(self) -> Iterator[Module]:
        """In the order in which they run."""
        source = self.x
        if self.dropout:
            dropped = self._dropped()
            source = replace(self.x, name=f"{self.name}.dropped", numel=self.x_numel)
            yield Module(name=self.dropout_name, cls="Dropout", operators=(dropped,))
        else:
            yield Module(name=self.dropout_name, cls="Identity")
        if self.fp32:  # autocast's own copy of what the adapter was given in fp32
            source = replace(source, name=f"{self.name}.cast", numel=self.x_numel)
        yield self._product("lora_A", source, self.k, self.rank)
        inner = Saved(name=f"{self.name}.lora_A.out", numel=self.rows * self.rank)
        yield self._product("lora_B", inner, self.rank, self.n)
        yield Module(name=self.name, cls="lora.Linear", operators=(self._sum(),))

    def _dropped(self) -> Operator:
        """Its mask has a byte an element."""
        moved = (2.0 * (WIDE if self.fp32 else 1.0) + 0.5) * self.x_numel
        mask = Saved(name=f"{self.name}.mask", numel=self.x_numel, dtype="bool")
        return Operator(
            name=self.dropout_name, kind="elementwise", moved=moved,
            moved_backward=moved, saves=(mask,), output=self.x_numel, kernels_backward=1,
            reads=(replace(self.x, numel=self.x_numel),), result=f"{self.name}.dropped",
        )  # fmt: skip

    def _product(self, part: str, source: Saved, k: int, n: int) -> Module:
        first = part == "lora_A"
        moved = self.rows * (k + n)
        # The input's gradient is added to that of the frozen product.
        fork = 3.0 * self.x_numel if first else 0.0
        operator = Operator(
            name=f"{self.name}.{part}", kind="gemm", flops=2.0 * self.rows * k * n,
            moved=moved, moved_backward=2.0 * moved + fork,
            gemm=Gemm(rows=self.rows, n=n, k=k), saves=(source,), output=self.rows * n,
            kernels_backward=2 + first, dispatches=4, reads=(replace(source, numel=self.rows * k),),
            result=f"{self.name}.{part}.out", autocast="half",
            joined=(source.name,) if first else (),
        )  # fmt: skip
        weight = Parameter(
            name=_part(self.name, f"{part}.default.weight"), shape=(n, k),
            stored_bytes=4.0 if self.fp32 else None,
        )  # fmt: skip
        operators = (self._casts(), operator) if first and self.fp32 else (operator,)
        return Module(
            name=_part(self.name, part), cls="Linear", operators=operators, parameters=(weight,)
        )

    def _casts(self) -> Operator:
        """PEFT makes an fp32 copy for fp32 adapters, autocast a 16-bit one of that."""
        moved = 2.0 * CAST_MOVED * self.x_numel
        return Operator(
            name=f"{self.name}.lora_A.cast", kind="elementwise", moved=moved, moved_backward=moved,
            indexed=2.0 * self.x_numel, indexed_backward=2.0 * self.x_numel, output=self.x_numel,
            kernels=2, kernels_backward=2, reads=(replace(self.x, numel=self.x_numel),),
            result=f"{self.name}.cast",
        )  # fmt: skip

    def _sum(self) -> Operator:
        """Scaled, and added to what the frozen layer gives."""
        return Operator(
            name=f"{self.name}.add", kind="elementwise", moved=5.0 * self.y_numel,
            moved_backward=2.0 * self.y_numel, output=self.y_numel, kernels=2, kernels_backward=1,
            reads=(
                Saved(name=f"{self.out}.base", numel=self.y_numel),
                Saved(name=f"{self.name}.lora_B.out", numel=self.y_numel),
            ),
            result=self.out,
        )  # fmt: skip
