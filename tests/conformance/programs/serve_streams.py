"""Responses that stream over HTTP: clients, errors, who leaves early; batched generators."""
# cluster: 8 CPU

import asyncio
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import httpx
import ray
import requests
from fastapi import FastAPI
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

ray.init()
URL = "http://127.0.0.1:8000"


@serve.deployment
class Numbers:
    async def numbers(self, count):
        for number in range(count):
            yield f"{number};"
            await asyncio.sleep(0.3)

    async def broken(self):
        yield "one"
        await asyncio.sleep(0.3)
        raise ValueError("no more")

    def __call__(self, request: Request):
        if "broken" in request.query_params:
            return StreamingResponse(self.broken(), media_type="text/plain")
        count = int(request.query_params["count"])
        return StreamingResponse(self.numbers(count), status_code=202, media_type="text/plain")


serve.run(Numbers.bind())

began = time.time()
with requests.get(f"{URL}/?count=4", stream=True) as reply:
    print(reply.status_code, reply.headers["transfer-encoding"], reply.headers["content-type"])
    came = [
        (chunk, time.time() - began)
        for chunk in reply.iter_content(chunk_size=None, decode_unicode=True)
    ]
print([chunk for chunk, _ in came], 0.6 < came[-1][1] - came[0][1] < 1.5)
print(requests.get(f"{URL}/?count=3").text)
with urllib.request.urlopen(f"{URL}/?count=3") as found:
    print(found.status, found.read())
with httpx.stream("GET", f"{URL}/?count=3") as streamed:
    print(streamed.status_code, list(streamed.iter_text()))
print(httpx.get(f"{URL}/?count=2").text)


async def ask():
    async with httpx.AsyncClient() as client, client.stream("GET", f"{URL}/?count=3") as streamed:
        return [text async for text in streamed.aiter_text()]


print(asyncio.run(ask()))

try:
    requests.get(f"{URL}/?broken=1")
except requests.exceptions.ChunkedEncodingError as error:
    print("broken:", type(error).__name__)
try:
    httpx.get(f"{URL}/?broken=1")
except httpx.RemoteProtocolError as error:
    print("broken:", str(error))

with requests.get(f"{URL}/?count=1000", stream=True) as reply:
    print(next(reply.iter_content(chunk_size=None)))
print(requests.get(f"{URL}/?count=2").text)

app = FastAPI()


@serve.deployment
@serve.ingress(app)
class Together:
    @serve.batch(max_batch_size=3, batch_wait_timeout_s=0.5)
    async def count(self, most):
        for number in range(max(most)):
            yield [f"{number}/{len(most)} " if number < m else StopIteration for m in most]
            await asyncio.sleep(0.1)

    @serve.batch(max_batch_size=2, batch_wait_timeout_s=0.1)
    async def fail(self, most):
        yield ["first"] * len(most)
        raise ValueError("enough")

    async def each(self, method, most):
        async for item in getattr(self, method)(most):
            yield item

    @app.get("/count/{most}")
    async def route(self, most: int):
        return StreamingResponse(self.count(most), media_type="text/plain")


handle = serve.run(Together.bind(), name="together", route_prefix="/together")
with ThreadPoolExecutor(max_workers=3) as pool:
    replies = pool.map(lambda n: requests.get(f"{URL}/together/count/{n}").text, [1, 3, 2])
    print(list(replies))
print(list(handle.options(stream=True).each.remote("count", 2)))
items = handle.options(stream=True).each.remote("fail", 1)
print(next(items))
for call in (lambda: next(items), lambda: next(handle.options(stream=True).count.remote(1))):
    try:
        call()
    except Exception as error:
        print(str(error).splitlines()[-1])
serve.shutdown()
