"""What the proxy says itself, and what becomes of the values that replicas answer it with."""
# cluster: 8 CPU

import ray
import requests
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse

app = FastAPI(title="T")


class Item(BaseModel):
    name: str
    n: int = 1


@serve.deployment
class Helper:
    def fail(self):
        raise ValueError("helper")


@serve.deployment
@serve.ingress(app)
class Api:
    def __init__(self, helper):
        self.helper = helper

    @app.get("/add/{a}")
    async def add(self, a: int, b: int = 2):
        return a + b

    @app.post("/items", status_code=201)
    async def put(self, item: Item):
        return item

    @app.get("/fails")
    async def fails(self):
        return await self.helper.fail.remote()

    @app.get("/gone")
    def gone(self):
        raise HTTPException(404, detail="no item")


@serve.deployment
class Raw:
    def __call__(self, request: Request):
        kind = request.query_params.get("k", "")
        if kind == "raises":
            raise ValueError("raw")
        if kind == "stream":
            return StreamingResponse((str(i) for i in range(3)), status_code=206)
        values = {
            "dict": {"a": 1}, "list": [1, 2], "int": 5, "none": None, "str": "text",
            "bytes": b"bytes", "json": JSONResponse({"j": 1}, status_code=203),
            "object": object, "model": Item(name="x"),
        }  # fmt: skip
        return values[kind]


def ask(path, method="get", **options):
    answer = getattr(requests, method)("http://127.0.0.1:8000" + path, **options)
    return answer.status_code, answer.headers.get("content-type"), answer.text[:70]


ray.init()
serve.run(Api.bind(Helper.bind()), name="api", route_prefix="/api")
serve.run(Raw.bind(), name="raw", route_prefix="/raw")
for path in ("add/3", "add/3?b=5", "add/x", "fails", "gone", "none"):
    print(path, *ask(f"/api/{path}"))
print("post", *ask("/api/items", "post", json={"name": "q", "n": 3}))
print("wrong", ask("/api/items", "post", json={"n": 1})[0], ask("/api/gone", "post")[0])
print("schema", sorted(requests.get("http://127.0.0.1:8000/api/openapi.json").json()["paths"]))
for kind in (
    "dict", "list", "int", "none", "str", "bytes", "json", "stream", "model", "raises", "object",
):  # fmt: skip
    print(kind, *ask(f"/raw?k={kind}"))
print("routes", *ask("/-/routes"))
print("health", *ask("/-/healthz"))
print("nobody", *ask("/nobody"))
serve.delete("raw")
print("deleted", *ask("/raw?k=int"))
print("routes", *ask("/-/routes"))
serve.shutdown()
