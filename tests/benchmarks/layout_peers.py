"""Peers that say memory and time of a training layout, each as a function of a layout.

    PEERS/bin/python tests/benchmarks/layout_peers.py llm_analysis < layouts.json

Runs under the interpreter that has them (``make bench`` makes one), without raysim: their packages
would not go with its own. Reads a model and layouts (ZeRO stage, micro-batch, accumulation, whether
activations are recomputed), and prints CPU seconds per layout and what is said of each: bytes of a
GPU and seconds of a step, or null of what is said not to fit.

llm-analysis: closed forms, layer by layer: FLOPs at a given share of the peak or bytes at the
memory's bandwidth, collectives at the links'; memory of weights, gradients, states, activations.
ftuneai: one formula each: six FLOPs per parameter and token at a fixed share of the peak, which
falls with the number of GPUs; memory of weights, gradients, states by ZeRO stage, and activations
by factors, with a fifth on top. Neither knows buckets, prefetches, an allocator, hosts or kernels.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

Said = tuple[float, float] | None
ROUNDS, TIMES = 5, 50


def llm_analysis(asked: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Said]:
    """llm-analysis 0.2.2."""
    analysis: Any = importlib.import_module("llm_analysis.analysis")
    config: Any = importlib.import_module("llm_analysis.config")
    analysis.logger.setLevel("CRITICAL")
    m = asked["model"]
    model = config.ModelConfig(
        name="model", model_type="llama", num_layers=m["num_hidden_layers"],
        n_head=m["num_attention_heads"], num_key_value_heads=m["num_key_value_heads"],
        hidden_dim=m["hidden_size"], ffn_embed_dim=m["intermediate_size"],
        expansion_ratio=m["intermediate_size"] / m["hidden_size"],
        vocab_size=m["vocab_size"], max_seq_len=asked["seq_len"],
    )  # fmt: skip
    gpu = config.get_gpu_config_by_name("h100-sxm-80gb")
    again = analysis.ActivationRecomputation

    def said(layout: Mapping[str, Any]) -> Said:
        peer = analysis.LLMAnalysis(
            model, gpu, config.DtypeConfig(), config.ParallelismConfig(dp_size=asked["gpus"]),
            flops_efficiency=0.6,
        )  # fmt: skip
        try:
            found = peer.training(
                batch_size_per_gpu=layout["micro_batch"], seq_len=asked["seq_len"],
                gradient_accumulation_steps=layout["accumulation"],
                total_num_tokens=asked["tokens"], ds_zero=analysis.DSZeRO(layout["stage"]),
                activation_recomputation=again.FULL if layout["recomputed"] else again.NONE,
                mlp_gated_linear_units=True,
            )  # fmt: skip
        except AssertionError:  # how it says that a layout does not fit
            return None
        return found["(weight+op_state+grad+act)_memory_per_gpu"], found["latency_per_iter"]

    return said


def ftuneai(asked: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Said]:
    """ftuneai 0.4.1."""
    models: Any = importlib.import_module("ftuneai.core.models")
    memory: Any = importlib.import_module("ftuneai.core.memory")
    times: Any = importlib.import_module("ftuneai.core.time")
    gpu = importlib.import_module("ftuneai.loader").get_gpu("H100-80GB")
    m = asked["model"]
    model = models.ModelSpec(
        name="model", parameters=asked["parameters"], hidden_size=m["hidden_size"],
        num_layers=m["num_hidden_layers"], num_attention_heads=m["num_attention_heads"],
        num_kv_heads=m["num_key_value_heads"], intermediate_size=m["intermediate_size"],
        vocab_size=m["vocab_size"], max_seq_length=asked["seq_len"],
    )  # fmt: skip

    def said(layout: Mapping[str, Any]) -> Said:
        config = models.TrainingConfig(
            method=models.FineTuneMethod.FULL, batch_size=layout["micro_batch"],
            seq_length=asked["seq_len"], gradient_checkpointing=layout["recomputed"],
            flash_attention=True, sharding=models.ShardingStrategy(f"zero_{layout['stage']}"),
            num_gpus=asked["gpus"],
        )  # fmt: skip
        needs = memory.MemoryEstimator(model, config)
        held, (fit,) = needs.estimate(), needs.check_gpu_fit([gpu])
        samples = asked["gpus"] * layout["micro_batch"] * layout["accumulation"]
        steps = asked["tokens"] // (samples * asked["seq_len"])
        taken = times.TimeEstimator(model, config).estimate(
            gpu, dataset_size=steps * samples, epochs=1, num_gpus=asked["gpus"],
            gradient_accumulation_steps=layout["accumulation"],
        )  # fmt: skip
        return (held.total_gb * 2**30, taken.total_hours * 3600 / steps) if fit.fits else None

    return said


def main() -> None:
    asked = json.load(sys.stdin)
    said = {"llm_analysis": llm_analysis, "ftuneai": ftuneai}[sys.argv[1]](asked)
    layouts = asked["layouts"]
    spent = []
    for _ in range(ROUNDS):
        started = time.process_time()
        for layout in layouts * TIMES:
            said(layout)
        spent.append((time.process_time() - started) / TIMES / len(layouts))
    print(json.dumps([min(spent), [said(layout) for layout in layouts]]))


if __name__ == "__main__":
    main()
