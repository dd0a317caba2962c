"""``vllm.platforms.current_platform``: which GPU is which."""

from __future__ import annotations

from typing import Any

from raysim.rayapi.shapes.here import worker_here


class Platform:
    """CUDA's."""

    device_type = device_name = "cuda"
    simple_compile_backend = "inductor"
    device_control_env_var = "CUDA_VISIBLE_DEVICES"

    def is_cuda(self) -> bool:
        """Always."""
        return True

    is_cuda_alike = is_cuda

    def is_rocm(self) -> bool:
        """Never."""
        return False

    is_cpu = is_tpu = is_xpu = is_rocm

    def get_device_uuid(self, device_id: int = 0) -> str:
        """Of one of those that the process sees: the same in all processes on it."""
        worker: Any = worker_here()
        if worker is None or not getattr(worker, "places", ()):
            raise RuntimeError("No CUDA GPUs are available: start the actor with num_gpus.")
        node, gpu = worker.places[min(device_id or 0, len(worker.places) - 1)]
        return f"GPU-{node:08x}-0000-0000-0000-{gpu:012x}"


current_platform = Platform()

__all__ = ["current_platform"]
