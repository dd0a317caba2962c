"""An ``llm`` section as a spec of ``workloads.llm_job``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from raysim.errors import Problem, ScenarioError
from raysim.models.config import read_config
from raysim.raylibs.llm.config import ColdStart, LLMApp, default_ingress_replicas
from raysim.scenario.documents import Document, KeyPath
from raysim.scenario.schema_llm import ColdStartSection, LengthsSection, LlmSection
from raysim.serving.decoder import read_decoder
from raysim.serving.fleet import IngressSpec
from raysim.serving.loads import Lengths, Load
from raysim.serving.settings import engine_settings
from raysim.workloads.llm_job import LlmJob

CACHED_COMPILE_LAYER_S = 0.196
"""15.7 s of 80 layers (``coldstart.llama70b``, cached)."""


def read_llm(
    said: LlmSection, at: KeyPath, folder: Path, document: Document, inputs: dict[KeyPath, Path]
) -> LlmJob:
    """The job.

    Raises
    ------
    ScenarioError
        The model cannot be served, or an argument of the engine is unknown or wrong.
    """
    file = folder / said.model
    inputs[*at, "model"] = file
    try:
        config = read_config(file)
    except ScenarioError as error:
        raise ScenarioError(_at(p, document, (*at, "model")) for p in error.problems) from None
    try:
        engine, _ = engine_settings(said.engine_kwargs)
    except ScenarioError as error:
        raise ScenarioError(
            _at(p, document, (*at, "engine_kwargs")) for p in error.problems
        ) from None
    decoder = read_decoder(config, quantization=engine.quantization)
    text = config.get("text_config")
    longest = (text if isinstance(text, dict) else config).get("max_position_embeddings")
    if engine.max_model_len is None and isinstance(longest, int):
        engine = replace(engine, max_model_len=longest)
    ingress = said.ingress_replicas
    if ingress is None:
        ingress = default_ingress_replicas(said.replicas)
    return LlmJob(
        app=LLMApp(
            model=f"{config.get('model_type')} {decoder.parameters / 1e9:.3g} B",
            decoder=decoder,
            engine=engine,
            num_replicas=said.replicas * engine.data_parallel_size,
            prefill_replicas=said.prefill_replicas * engine.data_parallel_size,
            ingress=IngressSpec(replicas=ingress),
            cold_start=_cold_start(said.cold_start),
            cpus=said.cpus,
            **({"kv_bytes_per_s": said.kv_transfer} if said.kv_transfer else {}),
        ),
        load=Load(
            prompt=_lengths(said.load.prompt),
            output=_lengths(said.load.output),
            requests=said.load.requests,
            rate_per_s=said.load.rate,
            concurrency=said.load.concurrency,
            prefixes=said.load.prefixes,
            prefix_tokens=said.load.prefix_tokens,
            max_model_len=engine.max_model_len,
        ),
    )


def _at(problem: Problem, document: Document, path: KeyPath) -> Problem:
    if problem.where is not None and problem.where.line is not None:
        return problem
    message = problem.message
    if problem.where is not None:
        message = f"{problem.where}: {message}"
    return document.problem(path, message)


def _lengths(said: LengthsSection) -> Lengths:
    return Lengths(mean=said.mean, cv=said.cv)


def _cold_start(said: ColdStartSection | None) -> ColdStart | None:
    if said is None:
        return None
    cold = ColdStart()
    if said.load is not None:
        cold = replace(cold, load_bytes_per_s=said.load)
    if said.compile_cached:
        cold = replace(cold, compile_layer_s=CACHED_COMPILE_LAYER_S)
    return cold
