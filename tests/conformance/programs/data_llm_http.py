"""``HttpRequestProcessorConfig``: requests of a batch one by one, their pace and their retries."""
# cluster: 4 CPU

import time

import ray
from ray import serve
from ray.data.llm import HttpRequestProcessorConfig, build_processor
from starlette.responses import JSONResponse


@serve.deployment
class Flaky:
    def __init__(self):
        self.asked = {}

    async def __call__(self, http):
        x = (await http.json())["x"]
        self.asked[x] = self.asked.get(x, 0) + 1
        if x < 3 and self.asked[x] <= x:
            return JSONResponse({"busy": 1}, status_code=503)
        return {"x": x, "tries": self.asked[x], "mine": http.headers.get("x-mine")}


def answers(first, after, **more):
    config = HttpRequestProcessorConfig(
        url="http://localhost:8000/", batch_size=8, concurrency=1, **more
    )
    processor = build_processor(
        config,
        preprocess=lambda row: {"payload": {"x": int(row["id"])}},
        postprocess=lambda row: row["http_response"],
    )
    began = time.time()
    ds = ray.data.from_items([{"id": i} for i in range(first, after)], override_num_blocks=1)
    rows = processor(ds).take_all()
    return [(row["x"], row["tries"], row["mine"]) for row in rows], time.time() - began


def main():
    ray.init()
    serve.run(Flaky.bind(), route_prefix="/")
    rows, took = answers(
        0, 3, max_retries=2, base_retry_wait_time_in_s=2, headers={"X-Mine": "yes"}
    )
    print(rows, took >= 8)
    rows, took = answers(3, 11, qps=2)
    print(rows, took >= 4)
    serve.delete("default")
    serve.run(Flaky.bind(), route_prefix="/")
    try:
        answers(0, 3, max_retries=1, base_retry_wait_time_in_s=0.1)
    except Exception as error:
        print(type(error).__name__, "Reached maximum retries of 1 for input row" in str(error))
    serve.shutdown()


if __name__ == "__main__":
    main()
