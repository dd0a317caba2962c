"""Serve asked by aiohttp; ids of requests, names of ray.serve.schema, responses as objects."""
# cluster: 4 CPU

import asyncio

import aiohttp
import ray
import requests
from ray import serve
from ray.serve.schema import (
    ApplicationStatus,
    ApplicationStatusOverview,
    LoggingConfig,
    ServeStatus,
)
from starlette.responses import StreamingResponse


@serve.deployment(logging_config=LoggingConfig(log_level="ERROR", enable_access_log=False))
class Echo:
    async def __call__(self, request):
        if request.url.path == "/stream":
            return StreamingResponse(self.parts(), media_type="text/plain")
        if request.url.path == "/fails":
            raise ValueError("not for you")
        if request.url.path == "/slow":
            await asyncio.sleep(5)
        if request.method == "POST":
            said = request.headers.get("content-type", "").partition(";")[0]
            return {"type": said, "body": (await request.body()).decode()}
        return {
            "query": dict(request.query_params),
            "mine": request.headers.get("x-mine"),
            "id": len(request.headers.get("x-request-id", "")),
        }

    async def parts(self):
        for number in range(3):
            yield f"part {number}\n"
            await asyncio.sleep(0.1)


async def ask():
    async with aiohttp.ClientSession("http://localhost:8000/") as session:
        async with session.get("/", params={"a": "1"}, headers={"x-mine": "b"}) as answer:
            print(answer.status, answer.ok, answer.content_type, await answer.json())
        many = await asyncio.gather(*(session.get(f"/?n={n}") for n in range(3)))
        print([(await one.json())["query"] for one in many])
        async with session.post("/", json={"a": 1}) as answer:
            print(await answer.json())
        async with session.post("/", data={"k": "v w"}) as answer:
            print(await answer.json())
        async with session.post("/", data=b"bytes") as answer:
            print(await answer.json())
        async with session.get("/stream") as answer:
            print([line.decode() async for line in answer.content])
        try:
            await session.get("/slow", timeout=aiohttp.ClientTimeout(total=0.5))
        except TimeoutError as error:
            print("timeout", type(error).__name__)


@ray.remote
class Requester:
    async def status(self, path):
        url = f"http://127.0.0.1:8000{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            try:
                answer.raise_for_status()
            except aiohttp.ClientResponseError as error:
                return error.status, error.message
            return answer.status


def ids():
    answer = requests.get("http://localhost:8000/", headers={"X-Request-ID": "123-234"})
    print(answer.headers["X-Request-ID"], answer.json()["id"])
    answer = requests.get("http://localhost:8000/")
    print(len(answer.headers["X-Request-ID"]), answer.json()["id"])


@ray.remote
def shout(text):
    return f"{text}!"


@serve.deployment
class Inner:
    def __call__(self, number=1):
        return "hi" if number else 1 / number


@serve.deployment
class Outer:
    def __init__(self, inner):
        self.inner = inner

    async def __call__(self):
        ref = await self.inner.remote()._to_object_ref()
        return await shout.remote(ref)


def schema():
    status = serve.status()
    print(
        type(status) is ServeStatus,
        type(status.applications["default"]) is ApplicationStatusOverview,
    )
    print(status.applications["default"].status == ApplicationStatus.RUNNING)
    print(LoggingConfig().log_level, LoggingConfig().encoding, LoggingConfig().enable_access_log)
    for wrong in ({"encoding": "XML"}, {"log_level": "LOUD"}):
        try:
            LoggingConfig(**wrong)
        except ValueError:
            print("refused")


def main():
    ray.init()
    serve.run(Echo.bind(), logging_config={"log_level": "ERROR"})
    asyncio.run(ask())
    requester = Requester.remote()
    print(ray.get([requester.status.remote(path) for path in ("/", "/fails")]))
    ids()
    schema()
    serve.delete("default")
    gone = requests.get("http://localhost:8000/")
    print(gone.status_code, len(gone.headers.get("X-Request-ID", "")))
    handle = serve.run(Outer.bind(Inner.bind()), name="outer", route_prefix="/outer")
    print(handle.remote().result())
    inner = serve.get_deployment_handle("Inner", app_name="outer")
    print(ray.get(shout.remote(inner.remote()._to_object_ref_sync())))
    try:
        ray.get(inner.remote(0)._to_object_ref_sync())
    except ZeroDivisionError:
        print("raised")
    serve.shutdown()


if __name__ == "__main__":
    main()
