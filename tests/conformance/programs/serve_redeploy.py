"""Applications that take another's place: another ingress, another prefix, another version."""
# cluster: 4 CPU

import requests
from ray import serve


@serve.deployment
class First:
    """Answers by name."""

    def __call__(self, request):
        return {"first": request.query_params}


@serve.deployment
class Second:
    """Another one."""

    def __call__(self, request):
        return "second"


URL = "http://localhost:8000"
serve.run(First.bind())
print(requests.get(f"{URL}/?a=b&c=d").json())
serve.run(Second.bind())
print(requests.get(URL).text)
serve.run(Second.bind(), route_prefix="/other")
print(requests.get(f"{URL}/other").text)
handle = serve.run(First.bind(), route_prefix="/third")
print(
    requests.get(f"{URL}/third").json(), sorted(serve.status().applications["default"].deployments)
)
serve.shutdown()
