"""What vLLM's workers do when weights come."""

import torch


class Receives:
    """For ``worker_extension_cls``."""

    def ready(self):
        return True

    def join_trainers(self, address, port, first, world_size):
        from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
        from vllm.distributed.parallel_state import get_world_group
        from vllm.distributed.utils import StatelessProcessGroup

        rank = first + get_world_group().rank
        group = StatelessProcessGroup.create(address, port, rank, world_size)
        self.link = PyNcclCommunicator(group, device=self.device)

    def take_weight(self, name, dtype, shape):
        weight = torch.empty(shape, dtype=dtype, device="cuda")
        self.link.broadcast(weight, src=0)
        self.model_runner.model.load_weights(weights=[(name, weight)])

    def open_weight(self, name, handle):
        rebuild, arguments = handle
        arguments = list(arguments)
        arguments[6] = self.device.index
        self.model_runner.model.load_weights(weights=[(name, rebuild(*arguments))])
        torch.cuda.synchronize()
