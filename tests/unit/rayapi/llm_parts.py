"""Language models in programs: a node to run them on, an application, a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup
from raysim.kernel.simulation import Simulation
from raysim.rayapi.loader import run_program
from raysim.raycore.cluster import Cluster
from raysim.raycore.state_log import StateLog

URL = "http://localhost:8000/v1"
MODEL = "Qwen/Qwen2.5-7B-Instruct"


def gpu_cluster(nodes: int = 1) -> Cluster:
    """Nodes of eight H100."""
    group = NodeGroup(name="head", node=catalog.node("hgx-h100-8"), count=nodes, head=True)
    spec = ClusterSpec(groups=(group,), fabric=FabricSpec(kind="star"))
    return Cluster(Simulation(), spec, log=StateLog(enabled=False))


def played(main: Callable[[], Any], nodes: int = 1) -> Any:
    """What a driver returns, there."""
    return run_program(main, gpu_cluster(nodes))[0]


def app(*, ingresses: int = 1, **changes: Any) -> Any:
    """One model behind OpenAI's API."""
    from ray.serve.llm import LLMConfig, build_openai_app

    config = LLMConfig(
        model_loading_config={"model_id": "qwen", "model_source": MODEL},
        accelerator_type="H100",
        **changes,
    )
    ingress = {"num_replicas": ingresses}
    return build_openai_app({"llm_configs": [config], "ingress_deployment_config": ingress})


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "qwen", "messages": [{"role": "user", "content": "Hello!" * 50}], **more}
