"""A client that leaves: its request is cancelled, and so are the calls that this has made."""
# cluster: 4 CPU

import asyncio
import time

import ray
import requests
from ray import serve


@ray.remote
class Log:
    def __init__(self):
        self.lines = []

    def add(self, line):
        self.lines.append(line)

    def get(self):
        return sorted(self.lines)


@serve.deployment
class Below:
    def __init__(self, log):
        self.log = log

    async def slow(self):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await self.log.add.remote("below: slow")
            raise

    async def stream(self):
        try:
            for number in range(600):
                yield number
                await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            await self.log.add.remote("below: stream")
            raise


@serve.deployment
class Above:
    def __init__(self, below, log):
        self.below, self.log = below, log

    async def __call__(self, request):
        try:
            if request.url.path == "/stream":
                async for _ in self.below.options(stream=True).stream.remote():
                    pass
            return await self.below.slow.remote()
        except asyncio.CancelledError:
            await self.log.add.remote(f"above: {request.url.path}")
            raise


def main():
    ray.init()
    log = Log.remote()
    serve.run(Above.bind(Below.bind(log), log))
    for path in ("/slow", "/stream"):
        try:
            requests.get(f"http://localhost:8000{path}", timeout=2)
        except requests.exceptions.Timeout as error:
            print(type(error).__name__)
        time.sleep(3)
    print(ray.get(log.get.remote()))
    serve.shutdown()


if __name__ == "__main__":
    main()
