"""``build_dp_openai_app``: engines with attention apart that share experts."""

from __future__ import annotations

from typing import Any

import pytest

from raysim.rayapi.unsupported import NotEmulatedError
from tests.unit.rayapi.llm_parts import URL, app, chat, played

SPARSE = {"model_id": "qwen", "model_source": "Qwen/Qwen3-30B-A3B"}
KWARGS = {"data_parallel_size": 4, "tensor_parallel_size": 2, "enable_expert_parallel": True}


def test_a_group_is_as_many_replicas() -> None:
    def main() -> Any:
        import ray
        import requests
        from ray import serve
        from ray.serve.llm import LLMConfig, build_dp_openai_app

        config = LLMConfig(
            model_loading_config=SPARSE, accelerator_type="H100", engine_kwargs=KWARGS,
            deployment_config={"num_replicas": 2},
        )  # fmt: skip
        serve.run(build_dp_openai_app({"llm_config": config}))
        answer = requests.post(f"{URL}/chat/completions", json=chat(max_tokens=5)).json()
        [application] = serve.status().applications.values()
        [servers] = [d for name, d in application.deployments.items() if name.startswith("DPS")]
        free = ray.available_resources().get("GPU", 0.0)  # type: ignore[no-untyped-call]
        return free, servers.replica_states, answer["usage"]

    free, states, usage = played(main, nodes=2)
    assert free == 0.0
    assert sum(states.values()) == 8
    assert usage["completion_tokens"] == 5


def test_servers_by_themselves_share_nothing() -> None:
    def plain() -> None:
        app(engine_kwargs=KWARGS)

    def scaled() -> None:
        from ray.serve.llm import LLMConfig, build_dp_deployment

        build_dp_deployment(
            LLMConfig(
                model_loading_config=SPARSE, engine_kwargs=KWARGS,
                deployment_config={"autoscaling_config": {"min_replicas": 1, "max_replicas": 2}},
            )
        )  # fmt: skip

    with pytest.raises(NotEmulatedError, match=r"ray\.serve\.llm\.build_dp_openai_app"):
        played(plain)
    with pytest.raises(NotEmulatedError, match="autoscaling of data-parallel groups"):
        played(scaled)
