"""``ray.data.llm`` processors that need no engine: a deployment's methods, and a server's answers."""
# cluster: 4 CPU

import ray
from ray import serve
from ray.data.llm import (
    HttpRequestProcessorConfig,
    ServeDeploymentProcessorConfig,
    build_processor,
)

ray.init()


@serve.deployment
class Calculator:
    async def cube(self, request):
        if request["number"] == 3:
            raise ValueError("no threes")
        yield {"answer": request["number"] ** 3, "had_id": "request_id" in request}

    async def __call__(self, http):
        return {"tripled": 3 * (await http.json())["x"]}


serve.run(Calculator.bind(), name="calc", route_prefix="/")


def asked(row):
    return {"method": "cube", "dtype": None, "request_kwargs": {"number": int(row["id"])}}


config = ServeDeploymentProcessorConfig(
    deployment_name="Calculator", app_name="calc", batch_size=4, concurrency=1
)
processor = build_processor(
    config, preprocess=asked, postprocess=lambda row: {"answer": row["answer"], "id": row["id"]}
)
print(processor.list_stage_names())
rows = processor(ray.data.range(3)).take_all()
print(sorted((row["id"], row["answer"]) for row in rows))
whole = build_processor(config, preprocess=asked)(ray.data.range(1)).take_all()
print(sorted(whole[0]), whole[0]["request_id"], whole[0]["had_id"])

tolerant = ServeDeploymentProcessorConfig(
    deployment_name="Calculator",
    app_name="calc",
    batch_size=4,
    concurrency=1,
    should_continue_on_error=True,
)
rows = build_processor(
    tolerant, preprocess=asked, postprocess=lambda row: {"answer": row["answer"], "id": row["id"]}
)(ray.data.range(5)).take_all()
for row in sorted(rows, key=lambda row: row["id"]):
    print(row["id"], row.get("answer"), "threes" in row["__inference_error__"])
try:
    build_processor(config, preprocess=asked)(ray.data.range(5)).take_all()
except Exception as error:
    print("raised", "no threes" in str(error))

config = HttpRequestProcessorConfig(url="http://localhost:8000/", batch_size=2, concurrency=1)
processor = build_processor(
    config,
    preprocess=lambda row: {"payload": {"x": int(row["id"])}},
    postprocess=lambda row: {"tripled": row["http_response"]["tripled"]},
)
print(processor.list_stage_names())
print(sorted(row["tripled"] for row in processor(ray.data.range(5)).take_all()))
for wrong in (
    lambda: ServeDeploymentProcessorConfig(app_name="calc"),
    lambda: HttpRequestProcessorConfig(url="http://localhost:8000/", concurrency=0),
    lambda: HttpRequestProcessorConfig(url="http://localhost:8000/", concurrency=(3, 2)),
    lambda: build_processor(config, builder_kwargs={"preprocess": None}),
    lambda: build_processor(HttpRequestProcessorConfig(url="http://x/", http_request_stage=False)),
    lambda: processor.get_stage_by_name("vLLMEngineStage"),
):
    try:
        wrong()
    except ValueError as error:
        print(str(error).splitlines()[0])
serve.shutdown()
