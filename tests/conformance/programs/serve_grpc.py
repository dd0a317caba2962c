"""gRPC: services that are there, applications by metadata, what methods say beside messages."""
# cluster: 2 CPU

import asyncio

import grpc
import ray
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from ray import serve
from ray.serve.config import gRPCOptions
from ray.serve.grpc_util import RayServegRPCContext

SERVICE = "opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc"


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Counting:
    def __init__(self, name):
        self.name = name

    def Export(self, request, grpc_context: RayServegRPCContext):
        count = len(request.resource_spans)
        if count == 3:
            raise ValueError("three")
        if count == 4:
            grpc_context.set_code(grpc.StatusCode.OUT_OF_RANGE)
            grpc_context.set_details("four is too many")
            raise ValueError("four")
        grpc_context.set_trailing_metadata([("counted", str(count))])
        response = messages.ExportTraceServiceResponse()
        response.partial_success.rejected_spans = count
        response.partial_success.error_message = self.name
        return response


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Plain:
    async def Export(self, request):
        response = messages.ExportTraceServiceResponse()
        response.partial_success.error_message = serve.get_multiplexed_model_id() or "no model"
        return response


def spans(count):
    request = messages.ExportTraceServiceRequest()
    for _ in range(count):
        request.resource_spans.add()
    return request


def failing(call):
    try:
        call()
    except grpc.RpcError as error:
        return error.code().name, error.details()


ray.init()
serve.start(
    grpc_options=gRPCOptions(
        port=9123, grpc_servicer_functions=[f"{SERVICE}.add_TraceServiceServicer_to_server"]
    )
)
serve.run(Counting.bind("first"), name="first", route_prefix="/first")
with grpc.insecure_channel("localhost:9123") as channel:
    grpc.channel_ready_future(channel).result(timeout=10)
    stub = TraceServiceStub(channel)
    answer = stub.Export(spans(2)).partial_success
    print(answer.rejected_spans, answer.error_message)
    metadata = (("application", "first"), ("request_id", "number-7"))
    answer, call = stub.Export.with_call(request=spans(1), metadata=metadata)
    print(answer.partial_success.rejected_spans, call.code().name)
    print(sorted((k, v) for k, v in call.trailing_metadata() if k in ("counted", "request_id")))
    code, details = failing(lambda: stub.Export(spans(3)))
    print(code, "three" in details)
    print(failing(lambda: stub.Export(spans(4))))

    serve.run(Plain.bind(), name="second", route_prefix="/second")
    for metadata in (
        (("application", "second"),),
        (("application", "second"), ("multiplexed_model_id", "m1")),
    ):
        print(stub.Export(spans(0), metadata=metadata).partial_success.error_message)
    print(failing(lambda: stub.Export(spans(0)))[0])
    print(failing(lambda: stub.Export(spans(0), metadata=(("application", "third"),))))
    other = channel.unary_unary("/no.Such/Method", None, None)
    print(failing(lambda: other(b""))[0])


async def concurrently():
    async with grpc.aio.insecure_channel("localhost:9123") as channel:
        stub = TraceServiceStub(channel)
        metadata = (("application", "first"),)
        calls = [stub.Export(spans(n), metadata=metadata) for n in (0, 1, 2)]
        answers = await asyncio.gather(*calls)
        return [a.partial_success.rejected_spans for a in answers], await calls[0].code()


print(asyncio.run(concurrently()))
serve.shutdown()
