"""``trainer.fit()``, in a driver.

Real counterpart: ``DataParallelTrainer.fit`` of ``train/v2/api/data_parallel_trainer.py``.
"""

from __future__ import annotations

from raysim.raycore.scripts import Script, here, now
from raysim.raycore.tasks import NodeAffinity
from raysim.raylibs.train.controller import CONTROLLER
from raysim.raylibs.train.records import RunRecord
from raysim.raylibs.train.trainer import TrainerSpec


def fit(spec: TrainerSpec, record: RunRecord | None = None) -> Script:
    """``outcome = yield from fit(spec)``: a ``TrainOutcome``; a TaskError if the controller dies.

    ``record`` is filled while the run goes on, for who wants to know of one that never ends.
    """
    record = RunRecord() if record is None else record
    record.name = spec.run_config.name
    process = yield here()
    record.begin_ns = yield now()
    record.phase(record.begin_ns, "startup")
    at_home = NodeAffinity(node_id=process.me.node_id)
    controller = yield from CONTROLLER.options(strategy=at_home).remote(spec, record)
    outcome = yield from controller.ask("run")
    yield controller.kill()
    record.ended((yield now()))
    return outcome
