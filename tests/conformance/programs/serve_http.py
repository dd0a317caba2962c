"""Requests over HTTP: paths, queries, bodies, kinds of responses, FastAPI's routes, prefixes."""
# cluster: 8 CPU

import json
import urllib.request

import ray
import requests
from fastapi import FastAPI
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse

ray.init()
URL = "http://127.0.0.1:8000"


@serve.deployment
class Echo:
    async def __call__(self, request: Request):
        path, query = request.url.path, dict(request.query_params)
        if path.endswith("/text"):
            return "plain"
        if path.endswith("/bytes"):
            return b"\x00\x01"
        if path.endswith("/status"):
            return JSONResponse({"made": True}, status_code=201)
        if path.endswith("/own"):
            return PlainTextResponse("own", headers={"x-own": "yes"})
        if path.endswith("/error"):
            raise ValueError("not for you")
        body = await request.body()
        return {"path": path, "query": query, "method": request.method, "body": body.decode()}


def say(reply):
    kind = reply.headers["content-type"]
    value = reply.json() if kind == "application/json" else reply.content
    print(reply.status_code, kind, value)


serve.run(Echo.bind())
say(requests.get(f"{URL}/a/b?x=1&y=two"))
say(requests.post(f"{URL}/", data="some text"))
say(requests.post(f"{URL}/", json={"k": [1, 2]}))
for path in ("text", "bytes", "status", "own"):
    say(requests.get(f"{URL}/{path}"))
print(requests.get(f"{URL}/own").headers["x-own"])
print(requests.get(f"{URL}/error").status_code)
with urllib.request.urlopen(f"{URL}/text") as reply:
    print(reply.status, reply.read())

app = FastAPI()


@serve.deployment
@serve.ingress(app)
class Routes:
    def __init__(self, start):
        self.total = start

    @app.get("/add/{number}")
    def add(self, number: int, times: int = 1):
        self.total += number * times
        return {"total": self.total}

    @app.post("/set")
    async def set(self, value: dict):
        self.total = value["total"]
        return self.total


serve.run(Routes.bind(5), name="routes", route_prefix="/routes")
say(requests.get(f"{URL}/routes/add/3"))
say(requests.get(f"{URL}/routes/add/2?times=10"))
say(requests.post(f"{URL}/routes/set", json={"total": 1}))
print(
    requests.get(f"{URL}/routes/add/word").status_code, requests.get(f"{URL}/routes/no").status_code
)
say(requests.get(f"{URL}/text"))
serve.delete("default")
print(requests.get(f"{URL}/text").status_code)
print(json.dumps(sorted(serve.status().applications)))
serve.shutdown()
