"""The module ``ray.serve.llm`` (2.60): applications of language models.

Real counterpart: ``serve/llm/__init__.py`` and the builders of ``llm/_internal/serve``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysim.rayapi.llm.apart import PDDecodeServer, PDPrefillServer, PDServingArgs
from raysim.rayapi.llm.configs import (
    CloudMirrorConfig,
    DPServingArgs,
    LLMConfig,
    LLMServingArgs,
    LoraConfig,
    ModelLoadingConfig,
    ServingArgs,
)
from raysim.rayapi.llm.ingress import OpenAiIngress
from raysim.rayapi.llm.openai_models import card_of
from raysim.rayapi.llm.server import UNLIMITED, DPServer, LLMServer
from raysim.rayapi.serve.deployment import Application, deployment
from raysim.rayapi.unsupported import NotEmulatedError, getattr_of

SERVER_OPTIONS = {
    "max_ongoing_requests": UNLIMITED, "health_check_period_s": 10, "health_check_timeout_s": 10,
    "autoscaling_config": {"target_ongoing_requests": UNLIMITED},
}  # fmt: skip


def build_llm_deployment(
    llm_config: LLMConfig, *, name_prefix: str | None = None,
    bind_kwargs: Mapping[str, Any] | None = None,
    override_serve_options: Mapping[str, Any] | None = None, deployment_cls: Any = None,
) -> Application:  # fmt: skip
    """One model's servers, without an ingress."""
    server = deployment_cls or llm_config.server_cls or LLMServer
    options = server.get_deployment_options(llm_config)
    called = llm_config.model_id.replace("/", "--").replace(".", "_")
    options["name"] = (name_prefix or f"{server.__name__}:") + options.get("name", called)
    merged = _over(SERVER_OPTIONS, options | dict(override_serve_options or {}))
    bound: Application = deployment(server, **merged).bind(
        llm_config=llm_config, **(bind_kwargs or {})
    )
    return bound


def build_openai_app(llm_serving_args: Any) -> Application:
    """All models' servers behind one ``OpenAiIngress``."""
    said = LLMServingArgs.model_validate(llm_serving_args)
    servers = {c.model_id: build_llm_deployment(c) for c in said.llm_configs}
    return _behind_ingress(said, said.llm_configs, servers)


def build_dp_deployment(llm_config: LLMConfig, **more: Any) -> Application:
    """One model's servers, whose engines have attention apart and share experts."""
    return build_llm_deployment(llm_config, **{"deployment_cls": DPServer} | more)


def build_dp_openai_app(builder_config: Any) -> Application:
    """Such servers behind one ``OpenAiIngress``."""
    said = DPServingArgs.model_validate(builder_config)
    config = said.llm_config
    return _behind_ingress(said, [config], {config.model_id: build_dp_deployment(config)})


def build_pd_openai_app(pd_serving_args: Any) -> Application:
    """One model whose prompts are computed by other engines than those that decode."""
    said = PDServingArgs.model_validate(pd_serving_args)
    prefill = build_llm_deployment(
        said.prefill_config, name_prefix="Prefill:", deployment_cls=PDPrefillServer
    )
    decode = build_llm_deployment(
        said.decode_config, name_prefix="Decode:", deployment_cls=PDDecodeServer,
        bind_kwargs={"prefill_server": prefill},
    )  # fmt: skip
    return _behind_ingress(said, [said.decode_config], {said.decode_config.model_id: decode})


def _behind_ingress(
    said: ServingArgs, configs: list[LLMConfig], servers: dict[str, Application]
) -> Application:
    ingress = said.ingress_cls_config.ingress_cls or OpenAiIngress
    if isinstance(ingress, str):
        raise NotEmulatedError("ingress_cls= by name", "the class itself")
    options = _over(ingress.get_deployment_options(configs), said.ingress_deployment_config)
    bound: Application = deployment(ingress, **options).bind(
        llm_deployments=servers, model_cards={c.model_id: card_of(c) for c in configs},
        **said.ingress_cls_config.ingress_extra_kwargs,
    )  # fmt: skip
    return bound


def _over(defaults: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults under what is said; a number of replicas leaves no way to scale."""
    made = dict(defaults)
    if "num_replicas" in said:
        made.pop("autoscaling_config", None)
    for key, value in said.items():
        both = isinstance(value, Mapping) and isinstance(made.get(key), Mapping)
        made[key] = _over(made[key], value) if both else value
    return made


__getattr__ = getattr_of("ray.serve.llm")

__all__ = [
    "CloudMirrorConfig",
    "LLMConfig",
    "LLMServer",
    "LLMServingArgs",
    "LoraConfig",
    "ModelLoadingConfig",
    "build_dp_deployment",
    "build_dp_openai_app",
    "build_llm_deployment",
    "build_openai_app",
    "build_pd_openai_app",
]
