"""What an LLM application is made of, by Ray Serve LLM's names; and how long a replica starts.

Real counterparts (ray 2.60): ``ray.serve.llm.LLMConfig``, ``build_openai_app``,
``build_pd_openai_app`` (``llm/_internal/serve``). Without an ``autoscaling_config`` the number of
replicas stands; so it does here.

Not modelled: autoscaling (``max_ongoing_requests`` is without limit by default, so that Ray Serve
does not scale an LLM unless told to), requests that name LoRA adapters, prefix-aware routing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raysim.serving.decoder import Decoder
from raysim.serving.fleet import KV_BYTES_PER_S, IngressSpec
from raysim.serving.settings import EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """Phases of a replica's start, once its bundles are there; seconds but for the bandwidth.

    From Anyscale's cold starts of Llama 70B with four ranks on H100 (rows ``coldstart.llama70b`` of
    ``validation/data/published/serving.json``): 61 s torch.compile and 16 s graphs of 80 layers,
    15 s more of the engine, 40 s before and after; the rest of 359 s, and of 170 s from sharded
    states, is 141 GB of weights.
    """

    process_s: float = 40.0
    """Ray's actor, imports, the first health check, routing tables."""
    load_bytes_per_s: float = 0.621e9
    """Of all ranks together, from the hub or a bucket; sharded states: 3.7e9."""
    compile_layer_s: float = 0.76
    """torch.compile, of one layer; with a warm cache 0.196."""
    graphs_layer_s: float = 0.2
    profile_s: float = 15.0
    """The largest batch once, and blocks of the cache."""

    def seconds(self, decoder: Decoder, *, eager: bool = False) -> float:
        """From bundles to the first request."""
        compiled = 0.0 if eager else decoder.layers * (self.compile_layer_s + self.graphs_layer_s)
        return self.process_s + self.load_s(decoder) + compiled + self.profile_s

    def load_s(self, decoder: Decoder) -> float:
        """Of it, reading weights."""
        return decoder.total_bytes / self.load_bytes_per_s


SHARDED_BYTES_PER_S = 3.7e9
"""``load_format: sharded_state`` on a local disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMApp:
    """One model, served.

    Parameters
    ----------
    model
        Its name.
    decoder, engine
        What runs in each replica.
    num_replicas
        Engines; those that decode, if others prefill.
    prefill_replicas
        Engines that only prefill (``build_pd_openai_app``); 0: every engine does both.
    ingress
        ``OpenAiIngress`` replicas and what they cost.
    cold_start
        None: engines are warm when they are placed.
    cpus
        A replica's actor holds.
    kv_bytes_per_s
        Keys and values between engines.
    """

    model: str
    decoder: Decoder
    engine: EngineSettings
    num_replicas: int = 1
    prefill_replicas: int = 0
    ingress: IngressSpec = field(default_factory=IngressSpec)
    cold_start: ColdStart | None = field(default_factory=ColdStart)
    cpus: float = 1.0
    kv_bytes_per_s: float = KV_BYTES_PER_S


def default_ingress_replicas(num_replicas: int) -> int:
    """``OpenAiIngress``: two per model replica, from 2 to 10 (``builders.py``)."""
    return min(10, max(2, 2 * num_replicas))
