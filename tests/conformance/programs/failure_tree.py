"""The tree of ray.exceptions."""
# cluster: 1 CPU

import ray
from ray import exceptions

ray.init()
names = [
    "RayError",
    "RayTaskError",
    "TaskCancelledError",
    "TaskUnschedulableError",
    "ActorUnschedulableError",
    "RayActorError",
    "ActorDiedError",
    "ActorUnavailableError",
    "WorkerCrashedError",
    "NodeDiedError",
    "LocalRayletDiedError",
    "ObjectLostError",
    "OwnerDiedError",
    "ReferenceCountingAssertionError",
    "ObjectReconstructionFailedError",
    "ObjectReconstructionFailedMaxAttemptsExceededError",
    "ObjectReconstructionFailedLineageEvictedError",
    "ObjectFetchTimedOutError",
    "ObjectFreedError",
    "GetTimeoutError",
    "OutOfMemoryError",
    "OutOfDiskError",
    "ObjectStoreFullError",
    "RuntimeEnvSetupError",
    "TaskPlacementGroupRemoved",
    "ActorPlacementGroupRemoved",
    "PendingCallsLimitExceeded",
    "RaySystemError",
    "PlasmaObjectNotAvailable",
    "AsyncioActorExit",
    "CrossLanguageError",
    "UserCodeException",
]
for name in names:
    found = getattr(exceptions, name, None)
    bases = [base.__name__ for base in found.__mro__[1:-2]] if found else "missing"
    print(name, bases)
