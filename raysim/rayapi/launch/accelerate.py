"""``accelerate launch``: read by accelerate itself, on a machine whose GPUs are the cluster's.

Real counterpart: ``accelerate/commands/launch.py`` and ``utils/launch.py`` (1.15). Flags, the YAML
of ``--config_file`` and the user's default one are put together by accelerate's own code, which
says the environment of the ranks and what it hands to torchrun, to DeepSpeed's runner or to python.

Not modelled: TPUs, SageMaker, Megatron-LM and MPI behind it. Of several machines, each of which is
told its ``--machine_rank``, one command stands for all.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, NoReturn
from unittest.mock import patch

from raysim.errors import ScenarioError

SEVERAL = 2
"""GPUs of the machine while nobody knows how many there are."""
_GPUS = ("torch.cuda.is_available", "torch.cuda.device_count")
_INSTEAD = "the launchers of GPUs: multi-GPU, FSDP and DeepSpeed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What accelerate makes of a command line."""

    given: Namespace
    """Its own flags, with the file's; for torchrun, torchrun's."""
    environment: tuple[tuple[str, str], ...]
    """Of the ranks, beside the launcher's own."""
    through: Literal["torchrun", "deepspeed", "python"]
    runner: tuple[str, ...] = ()
    """The command line of DeepSpeed's."""
    all_gpus: bool = False
    """Nobody has said how many processes."""


def read_launch(words: tuple[str, ...], gpus: int) -> Launch:
    """What follows ``accelerate launch``, on a machine of so many GPUs.

    Raises
    ------
    ScenarioError
        accelerate is not installed or refuses it, or it asks for what is not emulated.
    """
    if find_spec("accelerate") is None:
        raise ScenarioError(
            "accelerate launch is read by accelerate, which is not installed: "
            "pip install raysim[real]"
        )
    theirs: Any = import_module("accelerate.commands.launch")
    parser = theirs.launch_command_parser()
    parser.error = _refused
    with _machine(theirs, gpus):
        try:
            return _understood(theirs, parser.parse_args(list(words)))
        except (ValueError, OSError, AssertionError, RuntimeError) as error:
            raise ScenarioError(f"accelerate launch: {error}") from None


def _refused(message: str) -> NoReturn:
    raise ScenarioError(f"accelerate launch: {message}")


@contextmanager
def _machine(theirs: Any, gpus: int) -> Iterator[None]:
    """What accelerate looks at is the cluster's; no port is in use, and all libraries are quiet."""
    with ExitStack() as stack:
        for name, value in zip(_GPUS, (gpus > 0, gpus), strict=True):
            stack.enter_context(patch(name, lambda value=value: value))
        stack.enter_context(patch("accelerate.utils.launch.is_port_in_use", lambda _: False))
        stack.enter_context(patch.object(theirs.logger, "warning"))  # of defaults taken
        yield


def _understood(theirs: Any, args: Namespace) -> Launch:
    """As ``launch_command`` decides."""
    unsaid = args.num_processes is None
    args, defaults, from_file = theirs._validate_launch_command(args)  # noqa: SLF001
    args.machine_rank = args.machine_rank or 0  # one command stands for all machines
    sagemaker = defaults is not None and "SAGEMAKER" in str(defaults.compute_environment)
    for name, asked in (
        ("--tpu", args.tpu), ("--use_megatron_lm", args.use_megatron_lm), ("SageMaker", sagemaker),
        ("--mpirun_hostfile", args.mpirun_hostfile), ("--no_python", args.no_python),
    ):  # fmt: skip
        if asked:
            raise ScenarioError(
                f"accelerate launch {name} is not emulated by raysim. Emulated instead: {_INSTEAD}."
            )
    alone = args.cpu or not (args.use_deepspeed or args.use_fsdp or args.multi_gpu)
    if alone:
        _, environment = theirs.prepare_simple_launcher_cmd_env(args)
        return Launch(given=args, environment=_new(environment), through="python")
    if args.use_deepspeed:
        fields = list(defaults.deepspeed_config) if defaults else []
        fields += ["mixed_precision"] * from_file
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        runner, environment = theirs.prepare_deepspeed_cmd_env(args)
        if runner is not None:
            return Launch(
                given=args, environment=_new(environment), through="deepspeed",
                runner=tuple(map(str, runner)),
            )  # fmt: skip
    else:
        environment = theirs.prepare_multi_gpu_env(args)
    import torch.distributed.run as torchrun

    script = ["--training_script", args.training_script, *args.training_script_args]
    for_torchrun = theirs._filter_args(args, torchrun.get_args_parser(), script)  # noqa: SLF001
    return Launch(
        given=for_torchrun, environment=_new(environment), through="torchrun",
        all_gpus=unsaid and defaults is None,
    )  # fmt: skip


def _new(environment: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((k, v) for k, v in environment.items() if os.environ.get(k) != v)


def launch_words(words: Sequence[str]) -> tuple[str, ...]:
    """Of ``accelerate`` and what follows: what follows ``launch``.

    Raises
    ------
    ScenarioError
        It is another of accelerate's commands.
    """
    if words[:1] != ["launch"]:
        asked = " ".join(["accelerate", *words[:1]])
        raise ScenarioError(
            f"{asked} is not emulated by raysim. Emulated instead: accelerate launch."
        )
    return tuple(words[1:])
