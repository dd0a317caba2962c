"""Llama 3.1 8B behind OpenAI's API, on replicas that scale, and an evening's clients. Plain Ray.

As ``ray.serve.llm``'s guide has it: an ``LLMConfig``, ``build_openai_app``, ``serve.run``. The
clients come in waves of a minute, each of them asks again when it has its answer.
"""

import argparse
import asyncio
import time

import aiohttp
from ray import serve
from ray.serve.llm import LLMConfig, build_openai_app

URL = "http://127.0.0.1:8000/v1/chat/completions"
WAVES = (8, 32, 32, 32)
"""Clients, a minute each."""
WAVE_S = 60
PROMPT = "Summarise this thread for someone who was away. " * 40


def app(most: int):
    """One replica and up to ``most``."""
    llm = LLMConfig(
        model_loading_config={
            "model_id": "llama", "model_source": "meta-llama/Llama-3.1-8B-Instruct",
        },
        accelerator_type="H100",
        engine_kwargs={"max_model_len": 8192, "enable_prefix_caching": True},
        deployment_config={
            "autoscaling_config": {
                "min_replicas": 1, "max_replicas": most, "target_ongoing_requests": 12,
                "upscale_delay_s": 5, "downscale_delay_s": 60,
            },
            "max_ongoing_requests": 64,
        },
    )  # fmt: skip
    return build_openai_app({"llm_configs": [llm]})


async def client(session: aiohttp.ClientSession, number: int, until_s: float) -> list[float]:
    """Seconds of each of its requests."""
    taken = []
    while (began_s := time.perf_counter()) < until_s:
        body = {
            "model": "llama", "max_tokens": 256, "ignore_eos": True,
            "messages": [{"role": "user", "content": f"{PROMPT} {number} {len(taken)}"}],
        }  # fmt: skip
        async with session.post(URL, json=body) as response:
            assert response.status == 200, await response.text()
        taken.append(time.perf_counter() - began_s)
    return taken


async def evening() -> None:
    """Waves of clients, one after the other."""
    async with aiohttp.ClientSession() as session:
        for count in WAVES:
            until_s = time.perf_counter() + WAVE_S
            found = await asyncio.gather(*(client(session, n, until_s) for n in range(count)))
            taken = sorted(second for each in found for second in each)
            print(
                f"{count} clients: {len(taken) / WAVE_S:.1f} requests/s, half of them within "
                f"{taken[len(taken) // 2]:.2f} s, nine of ten within "
                f"{taken[len(taken) * 9 // 10]:.2f} s"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", type=int, default=2, help="at most")
    serve.run(app(parser.parse_args().replicas))
    asyncio.run(evening())
