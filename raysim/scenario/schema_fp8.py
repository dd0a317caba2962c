"""Sections of fp8 training: ``train.fp8``, and Accelerate's ``fp8_config``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from raysim.scenario.section import Section
from raysim.training.settings.fp8 import RECIPES, Library, Linears, Recipe


class Fp8Section(Section):
    """fp8 products of a script that has no file of its own for them."""

    library: Library = Field(
        "transformer_engine", description="Whose linears: transformer_engine or torchao."
    )
    recipe: Recipe | None = Field(
        None,
        description="Scales: delayed, tensorwise, mxfp8 or blockwise; of torchao tensorwise or "
        "rowwise. By default the library's own.",
    )
    format: Literal["hybrid", "e4m3"] = Field(
        "hybrid", description="Of the 8 bits; no effect on the prediction."
    )
    linears: Linears = Field(
        "blocks",
        description="Which torch.nn.Linear: of the blocks, all, or all_but_first_and_last.",
    )
    enable_fsdp_float8_all_gather: bool = Field(
        False, description="Of torchao: FSDP2 gathers weights in fp8."
    )
    precompute_float8_dynamic_scale_for_fsdp: bool = Field(
        False, description="Of torchao: one all-reduce after a step finds all weights' scales."
    )

    @model_validator(mode="after")
    def _of_one_library(self) -> Fp8Section:
        recipes = RECIPES[self.library]
        if self.recipe is not None and self.recipe not in recipes:
            raise ValueError(f"recipe of {self.library} is {' or '.join(recipes)}")
        gathers = self.enable_fsdp_float8_all_gather
        if gathers and (self.library != "torchao" or self.recipe not in (None, "tensorwise")):
            raise ValueError("enable_fsdp_float8_all_gather is torchao's, with recipe tensorwise")
        if self.precompute_float8_dynamic_scale_for_fsdp and not gathers:
            raise ValueError(
                "precompute_float8_dynamic_scale_for_fsdp needs enable_fsdp_float8_all_gather"
            )
        return self


class AccelerateFp8Block(Section):
    """``fp8_config``, where ``x`` is read as ``fp8_x``."""

    fp8_backend: Any = None
    fp8_use_autocast_during_eval: Any = None
    fp8_margin: Any = None
    fp8_interval: Any = None
    fp8_format: Any = None
    fp8_amax_history_len: Any = None
    fp8_amax_history_length: Any = None
    fp8_amax_compute_algo: Any = None
    fp8_amax_compute_algorithm: Any = None
    fp8_override_linear_precision: Any = None
    fp8_use_mxfp8_block_scaling: bool = False
    fp8_opt_level: Any = None
    fp8_optimization_level: Any = None
    fp8_enable_fsdp_float8_all_gather: bool = True
    fp8_pad_inner_dim: bool = True
