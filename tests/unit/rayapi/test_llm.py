"""``ray.serve.llm`` and ``ray.data.llm`` in programs: engines, what clients see, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup
from raysim.kernel.simulation import Simulation
from raysim.rayapi.llm.engine import ANSWER_TOKENS, Model, Sampling
from raysim.rayapi.llm.known import HUB, config_of, longest_of
from raysim.rayapi.llm.server import frontend_s
from raysim.rayapi.llm.texts import chat_tokens, counter, said, said_of
from raysim.rayapi.loader import run_program
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raycore.cluster import Cluster
from raysim.raycore.state_log import StateLog
from raysim.raylibs.llm.config import ColdStart
from raysim.raylibs.serve.costs import DEFAULT
from raysim.serving.capacity import capacity_of
from raysim.serving.decoder import read_decoder
from raysim.serving.engine import LLMEngine, Request
from raysim.serving.fleet import Fleet, IngressSpec
from raysim.serving.loads import Clients, Lengths, Load
from raysim.serving.timing import IterationTimes
from raysim.validate.serving import MODELS

CONFIGS = Path(__file__).parents[2] / "data" / "hf_configs"
URL = "http://localhost:8000/v1"
MODEL = "Qwen/Qwen2.5-7B-Instruct"
PUBLISHED = {
    "llama-2-7b": 6.74, "llama-2-13b": 13.0, "llama-2-70b": 69.0, "llama-3-8b": 8.03,
    "llama-3-70b": 70.6, "llama-3.1-8b": 8.03, "llama-3.1-70b": 70.6, "llama-3.2-1b": 1.24,
    "llama-3.2-3b": 3.21, "llama-3.3-70b": 70.6, "tinyllama-1.1b": 1.10, "mistral-7b": 7.25,
    "mixtral-8x7b": 46.7, "qwen2.5-0.5b": 0.494, "qwen2.5-1.5b": 1.54, "qwen2.5-3b": 3.09,
    "qwen2.5-7b": 7.62, "qwen2.5-14b": 14.8, "qwen2.5-32b": 32.8, "qwen2.5-72b": 72.7,
    "qwen3-0.6b": 0.596, "qwen3-1.7b": 1.72, "qwen3-4b": 4.02, "qwen3-8b": 8.19,
    "qwen3-14b": 14.8, "qwen3-32b": 32.8, "gpt-oss-20b": 20.9, "gpt-oss-120b": 116.8,
    "deepseek-v3": 671.0, "qwen3-30b-a3b": 30.5, "llama-3.1-405b": 405.9, "qwen2-7b": 7.62,
}  # fmt: skip
"""Billions of parameters, as the hub's pages show them."""


def played(main: Callable[[], Any]) -> Any:
    """What a driver returns, on one node of eight H100."""
    group = NodeGroup(name="head", node=catalog.node("hgx-h100-8"), count=1, head=True)
    spec = ClusterSpec(groups=(group,), fabric=FabricSpec(kind="star"))
    return run_program(main, Cluster(Simulation(), spec, log=StateLog(enabled=False)))[0]


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


# ---- models ----------------------------------------------------------------------------------


def test_models_of_the_hub_have_the_parameters_that_it_shows() -> None:
    assert HUB.keys() == PUBLISHED.keys()
    for name, billions in PUBLISHED.items():
        assert read_decoder(HUB[name]).parameters / 1e9 == pytest.approx(billions, rel=6e-3), name


@pytest.mark.parametrize("file", sorted(HUB.keys() & {f.stem for f in CONFIGS.iterdir()}))
def test_they_are_what_the_hubs_files_say(file: str) -> None:
    said_ = read_decoder(json.loads((CONFIGS / f"{file}.json").read_text()))
    if file == "mistral-7b":  # the file is of its first version, the table of its third
        said_ = replace(said_, vocabulary=32_768)
    assert replace(read_decoder(HUB[file]), name="") == replace(said_, name="")


@pytest.mark.parametrize("name", ["gpt-oss-20b", "gpt-oss-120b"])
def test_mixtures_are_those_that_published_runs_served(name: str) -> None:
    assert replace(read_decoder(HUB[name]), name="") == replace(read_decoder(MODELS[name]), name="")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("unsloth/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"),
        ("Qwen/Qwen2.5-0.5B-Instruct", "qwen2.5-0.5b"),
        ("Qwen/Qwen3-0.6B", "qwen3-0.6b"),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b"),
        ("Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b"),
        ("Qwen/QwQ-32B", "qwen2.5-32b"),
    ],
)
def test_a_model_is_found_by_what_programs_call_it(source: str, name: str) -> None:
    assert config_of(source) is HUB[name]


def test_a_quantised_model_has_smaller_weights() -> None:
    whole = read_decoder(config_of("Qwen/Qwen3-4B-Instruct-2507"))
    half = read_decoder(config_of("Qwen/Qwen3-4B-Instruct-2507-FP8"))
    assert half.parameters == whole.parameters
    assert 0.5 < half.total_bytes / whole.total_bytes < 0.65  # embeddings stay
    assert read_decoder(config_of("Qwen/Qwen2.5-7B-Instruct-AWQ")).total_bytes < 6e9


def test_a_folder_and_the_hubs_cache_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = dict(HUB["qwen3-0.6b"], max_position_embeddings=123)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(own))
    assert longest_of(config_of(str(tmp_path / "mine"))) == 123
    cached = tmp_path / "hub" / "models--a--b" / "snapshots" / "1f2e"
    cached.mkdir(parents=True)
    (cached / "config.json").write_text(json.dumps(own))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert longest_of(config_of("a/b")) == 123
    with pytest.raises(ValueError, match=r"no config\.json of 'a/c'"):
        config_of("a/c")


def test_texts_are_counted_as_they_are_made() -> None:
    count = counter("no folder")
    assert [count(said(n)) for n in (1, 2, 7, 100)] == [1, 2, 7, 100]
    assert "".join(said_of(n, n + 1) for n in range(9)) == said(9)
    assert chat_tokens([{"role": "user", "content": "x" * 40}], count) == (10 + 4 + 4, 0)


def test_an_answer_is_as_long_as_a_chat_or_as_is_asked_for() -> None:
    room = 4000
    assert Sampling().output_tokens(room) == ANSWER_TOKENS
    assert Sampling(max_tokens=20).output_tokens(room) == 20
    assert Sampling(max_tokens=1000).output_tokens(room) == ANSWER_TOKENS
    assert Sampling(max_tokens=1000, ignore_eos=True).output_tokens(room) == 1000
    assert Sampling(max_tokens=1000, min_tokens=500).output_tokens(room) == 500
    assert Sampling(max_tokens=9000, ignore_eos=True).output_tokens(room) == room


# ---- serving ---------------------------------------------------------------------------------


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


def test_what_is_not_there_is_refused_by_name() -> None:
    def main() -> None:
        from ray.serve.llm import build_dp_openai_app  # noqa: F401

    with pytest.raises(NotEmulatedError, match=r"ray\.serve\.llm\.build_dp_openai_app"):
        played(main)


# ---- batches ---------------------------------------------------------------------------------


def test_a_processor_takes_rows_through_an_engine() -> None:
    def main() -> list[dict[str, Any]]:
        import ray
        from ray.data.llm import build_processor, vLLMEngineProcessorConfig

        config = vLLMEngineProcessorConfig(
            model_source=MODEL, accelerator_type="H100", concurrency=1, batch_size=16
        )
        made = build_processor(
            config,
            preprocess=lambda row: {
                "messages": [{"role": "system", "content": "Be brief. " * 40},
                             {"role": "user", "content": f"{row['id']}?"}],
                "sampling_params": {"max_tokens": 30},
            },
            postprocess=lambda row: {
                k: row[k] for k in ("id", "generated_text", "num_input_tokens",
                                    "num_generated_tokens", "time_taken_llm")
            },
        )  # fmt: skip
        found: list[dict[str, Any]] = made(ray.data.range(64)).take_all()
        return found

    rows = played(main)
    assert sorted(row["id"] for row in rows) == list(range(64))
    assert {row["generated_text"] for row in rows} == {said(30)}
    assert {row["num_generated_tokens"] for row in rows} == {30}
    assert all(100 < row["num_input_tokens"] < 130 for row in rows)
    # batches of sixteen, some at a time, in one engine: thirty iterations of some 7 ms each
    assert 0.2 < min(row["time_taken_llm"] for row in rows) < 0.5


def test_engines_side_by_side_share_the_rows() -> None:
    def main(concurrency: int) -> float:
        import time

        import ray
        from ray.data.llm import build_processor, vLLMEngineProcessorConfig

        config = vLLMEngineProcessorConfig(
            model_source=MODEL, concurrency=(concurrency, concurrency), batch_size=16,
            chat_template_stage=False,
            engine_kwargs={"max_num_seqs": 64, "max_model_len": 4096},
        )  # fmt: skip
        made = build_processor(
            config,
            preprocess=lambda _: {
                "prompt": "x" * 400, "sampling_params": {"max_tokens": 300, "ignore_eos": True},
            },
            postprocess=lambda row: {"n": row["num_generated_tokens"]},
        )  # fmt: skip
        began_s = time.perf_counter()
        assert made(ray.data.range(2048, override_num_blocks=128)).sum("n") == 2048 * 300
        return time.perf_counter() - began_s

    cold_s = ColdStart().seconds(Model(MODEL, {}).decoder)
    one, four = (played(lambda n=n: main(n)) - cold_s for n in (1, 4))  # type: ignore[misc]
    assert 2.5 < one / four < 4.5


def test_a_row_that_fails_may_stay_and_say_why() -> None:
    def main() -> list[dict[str, Any]]:
        import ray
        from ray.data.llm import build_processor, vLLMEngineProcessorConfig

        config = vLLMEngineProcessorConfig(
            model_source=MODEL, should_continue_on_error=True, chat_template_stage=False,
            engine_kwargs={"max_model_len": 100},
        )  # fmt: skip
        made = build_processor(
            config,
            preprocess=lambda row: {
                "prompt": "x" * 400 * int(row["id"] + 1) , "sampling_params": {"max_tokens": 8},
            },
            postprocess=lambda row: {"id": row["id"], "text": row["generated_text"]},
        )  # fmt: skip
        found: list[dict[str, Any]] = made(
            ray.data.range(3).map(lambda row: {"id": row["id"] - 1})
        ).take_all()
        return found

    rows = {row["id"]: row for row in played(main)}
    assert rows[-1]["text"] == said(8)
    assert rows[-1]["__inference_error__"] == ""
    assert "longer than the maximum model length of 100" in rows[1]["__inference_error__"]


def test_stages_may_be_left_out_and_are_refused_by_name() -> None:
    def main() -> Any:
        from ray.data.llm import build_processor, vLLMEngineProcessorConfig

        bare = vLLMEngineProcessorConfig(
            model_source=MODEL, chat_template_stage=False, tokenize_stage={"enabled": False},
            detokenize_stage=False,
        )  # fmt: skip
        names = build_processor(bare).list_stage_names()
        refused = []
        for more in ({"task_type": "embed"}, {"prepare_multimodal_stage": True}):
            with pytest.raises(NotEmulatedError) as caught:
                build_processor(vLLMEngineProcessorConfig(model_source=MODEL, **more))
            refused.append(caught.value.name)
        return names, refused

    assert played(main) == (
        ["vLLMEngineStage"],
        ["ray.data.llm with task_type='embed'", "ray.data.llm with prepare_multimodal_stage"],
    )
