"""LoRA adapters of ``ray.serve.llm`` and ``ray.data.llm``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.rayapi.llm_parts import MODEL, URL, app, chat, played

BUCKET = "s3://adapters/of/qwen"
ENGINE = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 32}


def test_an_adapter_is_fetched_once_by_each_replica_that_serves_it() -> None:
    def main() -> Any:
        import time

        import requests
        from ray import serve

        serve.run(app(lora_config={"dynamic_lora_loading_path": BUCKET}, engine_kwargs=ENGINE))

        def ask(model: str) -> tuple[str, float]:
            began_s = time.perf_counter()
            body = chat(max_tokens=20) | {"model": model}
            answer = requests.post(f"{URL}/chat/completions", json=body).json()
            return answer["model"], time.perf_counter() - began_s

        asked = ("qwen", "qwen:law:1", "qwen:law:1", "qwen:law:2", "qwen")
        found = [ask(model) for model in asked]
        listed = [m["id"] for m in requests.get(f"{URL}/models").json()["data"]]
        missing = requests.post(
            f"{URL}/chat/completions", json=chat() | {"model": "llama:law:1"}
        ).json()
        return asked, found, listed, missing["error"]["message"]

    asked, found, listed, missing = played(main)
    assert tuple(model for model, _ in found) == asked
    plain, first, again, other, last = (seconds for _, seconds in found)
    assert plain == pytest.approx(last, rel=0.02)
    assert plain < again < 1.5 * plain
    assert first == pytest.approx(other, rel=0.05)
    assert first > again + 0.1  # two requests to the bucket, and 160 MB
    assert listed == ["qwen"]
    assert 'Could not find base model with ID "llama"' in missing


def test_the_report_says_what_adapters_are_taken_to_be() -> None:
    from raysim.rayapi.loader import run_program
    from tests.unit.rayapi.llm_parts import gpu_cluster

    def main() -> None:
        import requests
        from ray import serve

        serve.run(app(lora_config={"dynamic_lora_loading_path": BUCKET}, engine_kwargs=ENGINE))
        requests.post(f"{URL}/chat/completions", json=chat(max_tokens=2) | {"model": "qwen:a"})

    cluster = gpu_cluster()
    run_program(main, cluster)
    [report] = [r for r in cluster.env.reports if r.kind == "llm"]
    assert "1 LoRA adapters, taken to be of rank 32 on all products, read 1 times" in report.text


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"engine_kwargs": ENGINE}, 500),
        ({"lora_config": {"dynamic_lora_loading_path": BUCKET}}, 500),
    ],
    ids=["no lora_config", "no enable_lora"],
)
def test_what_is_not_set_up_fails_the_request_and_no_other(changes: Any, why: int) -> None:
    def main() -> Any:
        import requests
        from ray import serve

        serve.run(app(**changes))
        codes = []
        for model in ("qwen:law", "qwen"):
            body = chat(max_tokens=2) | {"model": model}
            codes.append(requests.post(f"{URL}/chat/completions", json=body).status_code)
        return codes

    assert played(main) == [why, 200]


def test_a_bucket_has_a_scheme_that_is_known() -> None:
    def served() -> None:
        app(lora_config={"dynamic_lora_loading_path": "disk/adapters"})

    def batched() -> None:
        from ray.data.llm import vLLMEngineProcessorConfig

        vLLMEngineProcessorConfig(model_source=MODEL, dynamic_lora_loading_path="disk/adapters")

    for main in (served, batched):
        with pytest.raises(ValueError, match="Only AWS S3"):
            played(main)


def test_rows_of_a_dataset_name_their_adapters() -> None:
    def main() -> Any:
        import ray
        from ray.data.llm import build_processor, vLLMEngineProcessorConfig

        config = vLLMEngineProcessorConfig(
            model_source=MODEL, engine_kwargs=ENGINE, concurrency=1, batch_size=8,
            dynamic_lora_loading_path=BUCKET, accelerator_type="H100",
        )  # fmt: skip
        processor = build_processor(
            config,
            preprocess=lambda row: {
                "messages": [{"role": "user", "content": "Hello"}],
                "sampling_params": {"max_tokens": 5},
                "model": MODEL if row["id"] % 2 else f"adapter-{row['id'] % 4}",
            },
            postprocess=lambda row: {"tokens": row["num_generated_tokens"]},
        )
        return [row["tokens"] for row in processor(ray.data.range(8)).take_all()]

    assert played(main) == [5] * 8
