"""FastAPI in front: included routers, what is added too late, several applications, options."""
# cluster: 4 CPU

import ray
import requests
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Header, HTTPException
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from ray import serve
from ray.serve.config import HTTPOptions, gRPCOptions

URL = "http://127.0.0.1:8000"


class Item(BaseModel):
    name: str
    n: int = 1


app, router = FastAPI(), APIRouter(prefix="/r")


@router.get("/x")
def routed():
    return "router"


app.include_router(router)


def doubled(q: int = 5):
    return q * 2


@serve.deployment
@serve.ingress(app)
class Api:
    def __init__(self, k):
        self.k = k

    @app.get("/item/{i}", response_model=Item)
    def item(self, i: int, name: str = "d"):
        return {"name": name, "n": i, "extra": 1}

    @app.post("/item", status_code=201)
    async def post(self, item: Item):
        return {"got": item.model_dump(), "k": self.k}

    @app.get("/dep")
    def dep(self, v: int = Depends(doubled), x_a: str = Header("none")):
        return [v, x_a]

    @app.get("/err")
    def err(self):
        raise HTTPException(404, "nope")

    @app.get("/stream")
    def stream(self):
        return StreamingResponse((f"{i}," for i in range(3)), media_type="text/plain")

    @app.get("/later")
    def later(self, tasks: BackgroundTasks):
        tasks.add_task(lambda: None)
        raise KeyError("k")

    def direct(self, v):
        return v + self.k


@app.exception_handler(KeyError)
def handled(request, error):
    return JSONResponse({"too": "late"}, status_code=418)


@app.get("/late")
def late():
    return "late"


@serve.deployment
class Named:
    def __init__(self, name):
        self.name = name

    def __call__(self, request):
        return self.name


def tried(call):
    try:
        print(call())
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[:2])


def main():
    ray.init()
    handle = serve.run(Api.bind(7), name="api", route_prefix="/api")
    for path in ("item/3?name=z", "item/x", "dep?q=4", "err", "stream", "r/x", "later", "late"):
        answer = requests.get(f"{URL}/api/{path}")
        print(path, answer.status_code, answer.text[:50])
    print(requests.post(f"{URL}/api/item", json={"name": "q", "n": 2}).json())
    print(requests.post(f"{URL}/api/item", json={"n": "x"}).status_code)
    print(handle.direct.remote(1).result())
    tried(lambda: handle.direct.remote(1).result(timeout_s=0))
    targets = [serve.RunTarget(Named.bind(n), name=n, route_prefix=f"/{n}") for n in ("a", "b")]
    print(len(serve.run_many(targets)), [requests.get(f"{URL}/{n}").text for n in ("a", "b")])
    tried(lambda: HTTPOptions(port="x"))
    tried(lambda: HTTPOptions(location="HeadOnly").location)
    tried(lambda: HTTPOptions(num_cpus=2))
    tried(lambda: HTTPOptions(host=None).location)
    tried(HTTPOptions)
    tried(lambda: gRPCOptions(port="z"))
    tried(lambda: serve.batch(5))
    serve.shutdown()


if __name__ == "__main__":
    main()
