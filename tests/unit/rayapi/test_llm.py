"""``ray.serve.llm`` in programs: engines, what clients see, refusals."""

from __future__ import annotations

import json
from importlib import import_module
from itertools import pairwise
from typing import Any

import pytest

from raysim.hardware import catalog
from raysim.kernel.simulation import Simulation
from raysim.rayapi.llm import serving
from raysim.rayapi.llm.engine import Model
from raysim.rayapi.llm.server import frontend_s
from raysim.rayapi.llm.texts import said
from raysim.rayapi.loader import run_program
from raysim.raylibs.llm.config import ColdStart
from raysim.raylibs.serve.costs import DEFAULT
from raysim.serving.capacity import capacity_of
from raysim.serving.engine import LLMEngine, Request
from raysim.serving.fleet import Fleet, IngressSpec
from raysim.serving.loads import Clients, Lengths, Load
from raysim.serving.timing import IterationTimes
from tests.unit.rayapi.llm_parts import MODEL, URL, app, chat, gpu_cluster, played


def test_the_api_answers_as_openai_s_does() -> None:
    def main() -> Any:
        import requests
        from ray import serve

        serve.run(app())
        whole = requests.post(f"{URL}/chat/completions", json=chat(max_tokens=5)).json()
        more = chat(max_tokens=5, stream=True, stream_options={"include_usage": True})
        lines = requests.post(f"{URL}/chat/completions", json=more).text.splitlines()
        text = requests.post(f"{URL}/completions", json={"prompt": "San", "n": 2}).json()
        models = requests.get(f"{URL}/models").json()
        one = requests.get(f"{URL}/models/qwen").json()
        wrong = [
            requests.post(f"{URL}/chat/completions", json=chat() | {"model": "gpt"}),
            requests.post(f"{URL}/chat/completions", json=chat(max_tokens=10**6)),
            requests.post(f"{URL}/chat/completions", json={"model": "qwen"}),
            requests.get(f"{URL}/models/gpt"),
        ]
        codes = [(r.status_code, r.json()["error"]["code"]) for r in wrong]
        return whole, lines, text, models, one, codes, wrong[1].json()

    whole, lines, text, models, one, codes, long = played(main)
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"]["content"] == said(5)
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"] == {"prompt_tokens": 83, "total_tokens": 88, "completion_tokens": 5}
    assert lines[1::2] == [""] * 8
    assert lines[-2] == "data: [DONE]"
    parts = [json.loads(line.removeprefix("data: ")) for line in lines[:-2:2]]
    assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(p["choices"][0]["delta"]["content"] for p in parts[:-1]) == said(5)
    assert [p["choices"][0]["finish_reason"] for p in parts[:-1]] == [None] * 5 + ["length"]
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"] == whole["usage"]
    assert len({p["id"] for p in parts}) == 1
    assert [c["text"] for c in text["choices"]] == [said(16)] * 2
    assert text["usage"]["completion_tokens"] == 32
    assert [card["id"] for card in models["data"]] == [one["id"]] == ["qwen"]
    assert codes == [(404, 404), (400, 400), (400, 400), (404, 404)]
    assert "maximum context length is 32768 tokens" in long["error"]["message"]


def engine_of(sim: Simulation) -> LLMEngine:
    """The same model without Ray."""
    gpu = catalog.node("hgx-h100-8").gpu
    assert gpu is not None
    model = Model(MODEL, {})
    settings = model.engine.for_gpu(gpu)
    times = IterationTimes(model.decoder, gpu, None, kv_bytes=2, eager=False)
    return LLMEngine(sim, times, capacity_of(model.decoder, gpu, settings), settings)


def test_a_request_takes_what_it_takes_in_a_fleet_without_ray() -> None:
    """The fitted way of a request through Serve LLM, against the program's hops one by one."""

    def main() -> list[float]:
        import time

        import requests
        from ray import serve

        serve.run(app())
        taken = []
        for _ in range(10):
            began_s = time.perf_counter()
            requests.post(f"{URL}/chat/completions", json=chat(max_tokens=200))
            taken.append(time.perf_counter() - began_s)
        return taken

    sim = Simulation()
    fleet = Fleet(sim, IngressSpec(replicas=0), sim.rng("router"))
    fleet.add(engine_of(sim))
    found: list[float] = []
    fleet.submit(Request(prompt_tokens=83, output_tokens=200), lambda s: found.append(s.seconds))
    sim.run()
    taken = sorted(played(main))
    assert taken[5] == pytest.approx(found[0], rel=0.01)
    assert 0.008 < frontend_s(DEFAULT) < 0.0193


def test_a_fleet_under_load_is_as_fast_as_one_without_ray() -> None:
    """A closed loop of clients, by hops and handles, against the fitted ingress."""
    clients, each, tokens = 60, 2, 100

    def main() -> float:
        import asyncio
        import time

        import aiohttp
        from ray import serve

        serve.run(app(ingresses=2, deployment_config={"num_replicas": 2}))

        async def ask(session: Any) -> None:
            for _ in range(each):
                async with session.post(
                    f"{URL}/chat/completions", json=chat(max_tokens=tokens, stream=True)
                ) as reply:
                    await reply.read()

        async def ask_all() -> float:
            began_s = time.perf_counter()
            async with aiohttp.ClientSession() as session:
                await asyncio.gather(*(ask(session) for _ in range(clients)))
            return clients * each / (time.perf_counter() - began_s)

        return asyncio.run(ask_all())

    sim = Simulation()
    fleet = Fleet(sim, IngressSpec(replicas=2), sim.rng("router"))
    for _ in range(2):
        fleet.add(engine_of(sim))
    load = Load(
        prompt=Lengths(mean=83), output=Lengths(mean=tokens), requests=clients * each,
        concurrency=clients,
    )  # fmt: skip
    sent = Clients(sim, fleet, load, sim.rng("clients"))
    sent.start()
    sim.run()
    per_s = len(sent.served) / max(s.finished_ns for s in sent.served) * 1e9
    assert played(main) == pytest.approx(per_s, rel=0.1)


@pytest.mark.parametrize("interval_ms", [0, 50, 200])
def test_a_stream_comes_in_the_intervals_that_are_asked_for(interval_ms: float) -> None:
    def main() -> list[tuple[float, int]]:
        import time

        import requests
        from ray import serve

        serve.run(app(experimental_configs={"stream_batching_interval_ms": interval_ms}))
        asked = chat(max_tokens=200, stream=True)
        came = []
        with requests.post(f"{URL}/chat/completions", json=asked, stream=True) as reply:
            for chunk in reply.iter_content(chunk_size=None):
                came.append((time.perf_counter(), chunk.count(b"tok")))  # noqa: PERF401  (as users do)
        return [c for c in came if c[1]]

    came = played(main)
    assert sum(tokens for _, tokens in came) == 200
    gaps = sorted(b[0] - a[0] for a, b in pairwise(came))
    middle = gaps[len(gaps) // 2]
    if interval_ms:
        assert middle == pytest.approx(interval_ms / 1e3, abs=0.01)
    else:
        assert len(came) == 200
        sim = Simulation()
        alone: list[float] = []
        request = Request(prompt_tokens=83, output_tokens=200)
        engine_of(sim).submit(request, lambda o: alone.append(o.tpot_s))
        sim.run()
        assert middle == pytest.approx(alone[0], rel=0.05)


def test_the_report_says_what_engines_did() -> None:
    def main() -> None:
        import requests
        from ray import serve

        serve.run(app())
        for _ in range(3):
            requests.post(f"{URL}/chat/completions", json=chat(max_tokens=100))
        left = chat(max_tokens=20_000, ignore_eos=True)
        with pytest.raises(requests.exceptions.ReadTimeout):
            requests.post(f"{URL}/chat/completions", json=left, timeout=1)

    cluster = gpu_cluster()
    run_program(main, cluster)
    (report,) = [r for r in cluster.env.reports if r.kind == "llm"]
    assert f"{MODEL} in 1 engines on 1 GPUs: 3 requests" in report.text
    assert report.metrics["ttft_mean"] < report.metrics["tpot_mean"] * 3
    assert report.metrics["output_tokens_per_s"] == pytest.approx(
        100 * report.metrics["requests_per_s"]
    )
    engines = next(table for table in report.tables if table.title == "engines")
    assert engines.rows[0][1:3] == (3, 300)


def test_a_replica_holds_its_ranks_and_starts_cold() -> None:
    def main() -> Any:
        import time

        import ray
        from ray import serve

        ray.init()
        whole = ray.cluster_resources()["accelerator_type:H100"]
        began_s = time.perf_counter()
        serve.run(app(engine_kwargs={"tensor_parallel_size": 2}))
        return whole, time.perf_counter() - began_s, ray.available_resources()["GPU"]

    whole, took_s, left = played(main)
    assert (whole, left) == (1.0, 6.0)
    cold_s = ColdStart().seconds(Model(MODEL, {}).decoder)
    assert cold_s < took_s < cold_s + 10


def test_an_engine_may_have_stages_on_two_nodes() -> None:
    def main() -> Any:
        import ray
        from ray import serve

        ray.init()
        whole = ray.cluster_resources()["GPU"]
        serve.run(app(engine_kwargs={"tensor_parallel_size": 4, "pipeline_parallel_size": 3}))
        return whole, ray.available_resources()["GPU"]

    assert played(main, nodes=2) == (16.0, 4.0)


def test_tensor_parallel_ranks_on_two_nodes_wait_for_the_nics() -> None:
    def main() -> Any:
        import time

        import ray
        import requests
        from ray import serve

        took = {}
        for ranks in (7, 14):
            serve.run(app(engine_kwargs={"tensor_parallel_size": ranks}))
            free = ray.available_resources()["GPU"]
            began_s = time.perf_counter()
            requests.post(f"{URL}/chat/completions", json=chat(max_tokens=100))
            took[ranks] = time.perf_counter() - began_s, free
            serve.shutdown()
        return took

    took = played(main, nodes=2)
    assert (took[7][1], took[14][1]) == (9.0, 2.0)
    assert took[14][0] > 1.2 * took[7][0]


@pytest.mark.parametrize("package", ["httpx", "httpx2"])
def test_many_requests_are_decoded_together(package: str) -> None:
    """Sixteen at once take a little longer than one, not sixteen times as long."""
    pytest.importorskip(package)

    def main() -> tuple[float, float]:
        import asyncio
        import time

        httpx = import_module(package)
        from ray import serve

        serve.run(app())

        async def ask(n: int) -> float:
            began_s = time.perf_counter()
            async with httpx.AsyncClient() as client:
                asked = [
                    client.post(f"{URL}/chat/completions", json=chat(max_tokens=200))
                    for _ in range(n)
                ]
                await asyncio.gather(*asked)
            return time.perf_counter() - began_s

        return asyncio.run(ask(1)), asyncio.run(ask(16))

    one, sixteen = played(main)
    assert one < sixteen < 1.3 * one


def test_prefill_apart_takes_what_it_takes_in_a_fleet_without_ray() -> None:
    def main() -> list[float]:
        import time

        import requests
        from ray import serve
        from ray.serve.llm import LLMConfig, build_pd_openai_app

        config = LLMConfig(
            model_loading_config={"model_id": "qwen", "model_source": MODEL},
            engine_kwargs={"kv_transfer_config": {"kv_connector": "NixlConnector"}},
        )
        serve.run(build_pd_openai_app({"prefill_config": config, "decode_config": config}))
        taken = []
        for _ in range(5):
            began_s = time.perf_counter()
            asked = {"prompt": "x" * 32_000, "max_tokens": 50}
            requests.post(f"{URL}/completions", json=asked)
            taken.append(time.perf_counter() - began_s)
        with pytest.raises(ValueError, match="kv_transfer_config is required"):
            build_pd_openai_app(
                {
                    "prefill_config": config,
                    "decode_config": LLMConfig(model_loading_config={"model_id": "qwen"}),
                }
            )
        return taken

    sim = Simulation()
    fleet = Fleet(sim, IngressSpec(replicas=1, token_s=1e-9), sim.rng("router"))
    fleet.add(engine_of(sim))
    fleet.add(engine_of(sim), prefills=True)
    found: list[float] = []
    request = Request(prompt_tokens=8000, output_tokens=50, prefix="x", prefix_tokens=0)
    fleet.submit(request, lambda s: found.append(s.seconds))
    sim.run()
    assert sorted(played(main))[2] == pytest.approx(found[0], rel=0.02)


def test_a_client_that_leaves_frees_its_place_in_the_engine() -> None:
    def main() -> float:
        import time

        import requests
        from ray import serve

        serve.run(app(engine_kwargs={"max_num_seqs": 1}))
        long = chat(max_tokens=20_000, ignore_eos=True, stream=True)
        with requests.post(f"{URL}/chat/completions", json=long, stream=True) as reply:
            next(reply.iter_lines())
        with pytest.raises(requests.exceptions.ReadTimeout):
            requests.post(f"{URL}/chat/completions", json=long | {"stream": False}, timeout=1)
        began_s = time.perf_counter()
        requests.post(f"{URL}/completions", json={"prompt": "San"})
        return time.perf_counter() - began_s

    assert played(main) < 0.5


def test_a_model_without_room_does_not_deploy() -> None:
    def main() -> None:
        from ray import serve

        kwargs = {"gpu_memory_utilization": 0.1}
        serve.run(app(engine_kwargs=kwargs, deployment_config={"max_constructor_retry_count": 1}))

    with pytest.raises(RuntimeError, match="Deploying application default failed"):
        played(main)


def test_mistakes_are_said_as_ray_says_them() -> None:
    def main() -> list[str]:
        from ray.serve.llm import LLMConfig, build_openai_app

        loading = {"model_id": "m"}
        tries = [
            lambda: LLMConfig(model_loading_config=loading, accelerator_type="H1000"),
            lambda: LLMConfig(model_loading_config=loading, llm_engine="tgi"),
            lambda: LLMConfig(model_loading_config=loading, deployment_config={"replicas": 2}),
            lambda: LLMConfig(model_loading_config={"model": "m"}),
            lambda: LLMConfig(
                model_loading_config=loading, experimental_configs={"num_router_replicas": 2}
            ),
            lambda: build_openai_app({"llm_configs": []}),
            lambda: build_openai_app(
                {"llm_configs": [LLMConfig(model_loading_config=loading)] * 2}
            ),
            lambda: build_openai_app({"llm_configs": ["no/such.yaml"]}),
            lambda: build_openai_app(
                {"llm_configs": [LLMConfig(
                    model_loading_config=loading,
                    deployment_config={"placement_group_strategy": "PACK"},
                )]}
            ),
        ]  # fmt: skip
        said_ = []
        for wrong in tries:
            with pytest.raises(ValueError) as caught:  # noqa: PT011  (looked at below)
                wrong()
            said_.append(str(caught.value))
        return said_

    expected = [
        "Unsupported accelerator type: H1000", "Unsupported engine: tgi",
        "Invalid deployment config", "model_id", "num_ingress_replicas",
        "List of models is empty", "Duplicate models found", "the file does not exist",
        "must not be specified in deployment_config",
    ]  # fmt: skip
    for said_, part in zip(played(main), expected, strict=True):
        assert part in said_


def test_modules_are_found_in_every_way_of_importing() -> None:
    def main() -> bool:
        import ray.data.llm
        import ray.serve.llm
        from ray.data import llm as data_llm
        from ray.serve import llm as serve_llm

        return ray.serve.llm is serve_llm and ray.data.llm is data_llm

    assert played(main)


def test_all_of_ray_serve_llm_is_there() -> None:
    """``__all__`` of ``ray/serve/llm/__init__.py``, 2.60."""
    assert set(serving.__all__) == {
        "LLMConfig", "LLMServingArgs", "ModelLoadingConfig", "CloudMirrorConfig", "LoraConfig",
        "build_llm_deployment", "build_openai_app", "build_pd_openai_app", "build_dp_deployment",
        "build_dp_openai_app", "LLMServer",
    }  # fmt: skip
