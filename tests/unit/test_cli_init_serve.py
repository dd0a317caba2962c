"""`init` around what KubeRay serves: a scenario of the application, which runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.cli import main
from raysim.scenario.load import load

CONFIG = Path("scenarios/llama3_8b_zero3/config.json").resolve()
SERVICE = """\
apiVersion: ray.io/v1
kind: RayService
metadata: {name: shop}
spec:
  serveConfigV2: |
    applications: [APPLICATION]
  rayClusterConfig:
    headGroupSpec:
      rayStartParams: {}
      template: {spec: {containers: [{name: h, resources: {limits: {cpu: "4", memory: 8Gi}}}]}}
    workerGroupSpecs:
      - {groupName: gpus, replicas: 1, rayStartParams: {}, template: {spec: {containers: [
          {name: w, resources: {limits: {cpu: "8", memory: 64Gi, nvidia.com/gpu: "1"}}}]}}}
"""
LLM_APP = (
    "{name: llm, import_path: 'ray.serve.llm:build_openai_app', args: {llm_configs: "
    "[{model_loading_config: {model_id: tiny, model_source: org/tiny}, engine_kwargs: "
    "{max_model_len: 1024}, deployment_config: {autoscaling_config: {min_replicas: 1}}}]}}"
)


@pytest.mark.parametrize(
    ("application", "config", "job"),
    [
        ("{name: fruit, import_path: 'a:b', deployments: [{name: Mango}]}", None, "serve"),
        (LLM_APP, CONFIG, "llm"),
    ],
)
def test_init_around_a_rayservice_serves(in_tmp: Path, capsys, application, config, job):
    """It was a training job of another model."""
    Path("service.yaml").write_text(SERVICE.replace("APPLICATION", application))
    given = [] if config is None else ["--from", str(config)]
    assert main(["init", "new", "--cluster", "service.yaml", *given]) == 0
    assert capsys.readouterr().out.endswith("Next      raysim run new\n")
    made = load(Path("new"))
    assert made.job.library.kind == job
    assert sorted(p.name for p in Path("new").iterdir()) == sorted(
        ["scenario.yaml", "service.yaml", *(["config.json"] if config else [])]
    )


def test_init_around_a_rayservice_of_vllm_wants_the_models_config(in_tmp: Path, capsys):
    Path("service.yaml").write_text(SERVICE.replace("APPLICATION", LLM_APP))
    assert main(["init", "new", "--cluster", "service.yaml"]) == 2
    assert "serves org/tiny with vLLM: give its config.json too" in capsys.readouterr().err


def test_a_plan_reaches_a_group_of_kuberay_called_as_a_key_is(in_tmp: Path):
    """`cluster.gpu` is a key of a scenario; every choice of a plan was refused."""
    Path("service.yaml").write_text(
        SERVICE.replace("APPLICATION", LLM_APP).replace("groupName: gpus", "groupName: gpu")
    )
    assert main(["init", "new", "--cluster", "service.yaml", "--from", str(CONFIG)]) == 0
    made = load(Path("new")).with_({"cluster.gpu.replicas": 3})
    assert [g.count for g in made.cluster.groups if g.name == "gpu"] == [3]
