"""How long Ray's own code takes: service times of its threads and event loops.

Reference machine: one m5.16xlarge (64 vCPU Xeon Platinum 8175M, 2.5 GHz), where Ray publishes its
microbenchmarks (``release/perf_metrics/microbenchmark.json`` of ray-project/ray).

Twelve numbers are fixed by rows of Ray 2.48.0, marked calibration in
``validation/data/published/ray_core.json``: the two submissions, get, put, wait per reference and
memcpy by one row each; gRPC's hop and a trivial execution by a synchronous actor call; the four
parts of a lease by a synchronous task, which says only their sum; a placement group by its own row;
pages touched for the first time by the 100 GiB object. The others are inferred from the order of
magnitude of such work, or from the sources named beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

COPY_THREADS = 6
"""That copy an object into the store (``MEMCOPY_THREADS`` of ``serialization.pxi``)."""
COPIED_ALONE_BYTES = 2**20 + 2**10
"""Up to this size one does: a buffer of 1 MiB (``kMemcopyDefaultThreshold`` there) and headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayCosts:
    """Nanoseconds of a single thread unless the name says otherwise."""

    core_speed: float = 1.0
    """How fast the cores run Ray's code, those of the reference machine being 1. A profile that
    says it has all times of this class divided by it, but those that it says themselves."""

    # the program's own thread (driver, or task)
    submit_task_ns: int = 117_000
    """``f.remote()``: make the spec, serialise small arguments."""
    submit_actor_task_ns: int = 107_900
    submitters_frac: float = 0.095
    """How much longer a call takes for every other program that submits on the same host: shared
    caches, turbo, the kernel's loopback. From 4 clients calling 32 actors (27,376 calls/s)."""
    submit_args_ns: int = 32_000
    """More for a call with values among its arguments: each is pickled into a message of its own.
    In a burst 121 us of a driver's thread where a call without took 84 (as ``execute_args_ns``)."""
    serialize_bytes_per_s: float = 2e9
    """Pickling of plain Python values; arrays go out of band and are copied once, into plasma."""
    per_arg_ns: int = 5_000
    """Of each argument, all at its caller. Of the second to the fifth 4 us were, and 15 at who read
    them (as ``execute_args_ns``); told apart, shuffles of the calibration came out worse."""
    get_ns: int = 49_200
    """``ray.get`` of something that is here: the call itself, without the store's answer."""
    per_ref_get_ns: int = 7_500
    """Of one more reference whose value is in the store: read and deserialised when all are here.
    """
    per_value_get_ns: int = 2_600
    """The same of a value that came with a reply. 1.9 to 2.7 us beside 17 to 24 in the store (ray
    2.60, a Xeon of 2 cores with ``core_speed`` 1, 2026-11)."""
    put_ns: int = 102_800
    wait_ns: int = 30_000
    per_ref_wait_ns: int = 100

    # a core worker's io thread
    io_submit_ns: int = 10_000
    io_lease_reply_ns: int = 50_000
    io_reply_ns: int = 40_000
    """A PushTask reply."""
    io_message_ns: int = 10_000
    """Any other message."""
    io_object_ns: int = 10_000
    """A node says where an object is. More follows for its owner, who is subscribed to and asked
    for its eviction: accounts of puts gave its io thread 97 us a put where they had 18."""
    io_task_ns: int = 40_000
    """More for a task than for an actor's call: its scheduling key, the worker's lease. Seen only
    where nodes share few cores, as the two of "threads" below. 92 us on 2 cores on which calls take
    2.1 times as long (2026-11, /proc schedstat)."""

    # a worker's execution thread
    execute_ns: int = 91_000
    """A trivial call: deserialise, run nothing, serialise, reply."""
    execute_task_ns: int = 100_000
    """What a task takes beyond an actor's call: 98 us of its process's main thread, measured on 2
    cores, where tasks one by one take 2.1 times as long (2026-11, /proc schedstat). A synchronous
    task says only the sum of this and of the parts of a lease."""
    execute_async_ns: int = 144_000
    """What a call of an async actor takes beyond that: a fiber of its own, its coroutine to the
    event loop's thread and back. From ``1_1_async_actor_calls_async`` of 2.48.0 (4,260 calls/s);
    ``1_1_async_actor_calls_sync`` then comes out 6 % too fast (1,460 calls/s measured)."""
    execute_async_wait_ns: int = 0
    """Of a call of an async actor, what passes while none of its process's three threads works:
    each waits to be woken with Python's lock, in turn. Told apart from work only where accounts of
    threads were measured; elsewhere it is within ``execute_async_ns``."""
    execute_args_ns: int = 58_000
    """More for a call with values among its arguments: unpickled, bound to the signature. In a
    burst an actor's thread worked 62 us per call without arguments, 135 with one, 147 with two, 195
    with five (ray 2.60, a Xeon of 2 cores with ``core_speed`` 1, 2026-11, /proc schedstat)."""
    execute_after_ns: int = 0
    """What an actor's thread works for a call when its answer is on its way; nothing is left of the
    accounts of tasks and async actors. Told apart only where accounts of threads were measured;
    elsewhere it is within ``execute_ns``."""
    force_exit_ns: int = 5_000_000
    """Of a process whose actor is killed, before it is gone: it looks through all of ``/proc`` (150
    processes) for children of its own, and answers nobody meanwhile. 4 to 6 ms from the first line
    to the last in its log (the same Xeon, idle; 20 to 45 beside a program that does not sleep)."""
    export_function_ns: int = 600_000
    """A function's first call in a process: pickled and described for the GCS. 0.47 ms of CPU of
    an actor's thread, 0.68 of a driver's (the same Xeon)."""
    import_function_ns: int = 330_000
    """A process's first run of a function: unpickled. 0.59 ms with the GCS's answer (the same)."""
    per_return_ns: int = 5_000
    generator_item_ns: int = 31_000
    """An item of a streaming generator, small or not: serialise, report. 21 us of CPU of its
    process's main thread on the EPYC of ``connect_ns`` (2026-11)."""
    stored_arg_ns: int = 49_200
    """An argument out of the store: got and deserialised, as by ``get_ns``."""
    stored_return_ns: int = 102_800
    """A return value into the store, beside copying it, as by ``put_ns``."""

    # raylet main loop
    raylet_lease_ns: int = 64_000
    raylet_pop_worker_ns: int = 60_000
    raylet_return_ns: int = 30_000
    raylet_message_ns: int = 10_000
    raylet_blocked_ns: int = 22_000
    """A task's notice that it waits in ``ray.get``, or goes on. 56 us of the raylet's main thread
    for both, per call of an actor by one of four tasks (as ``execute_args_ns``)."""
    pin_ns: int = 30_000

    # plasma store thread
    plasma_request_ns: int = 15_000

    # object manager
    object_manager_message_ns: int = 10_000
    transfer_ns: int = 120_000
    """Of each object that goes to another node, what the main threads of both raylets work beside
    the emulated messages: 200 objects of one ``ray.get`` took them 180 us each (as
    ``execute_args_ns``)."""
    chunk_ns: int = 50_000
    copy_bytes_per_s: float = 2.7e9
    """One object-manager thread: plasma to protobuf to socket, or back. 2.0 and 4.3 GB/s in those
    200 objects, of 256 KiB and of 1 MiB, into pages that were written to before."""
    spill_bytes_per_s: float = 1.0e9
    """One spill worker, through Python's buffered files: 0.1-1 GB/s (assumed)."""
    spill_again_bytes_per_s: float = 1.0e9
    """The same into pages of memory that deleted files have left. A virtual host whose memory is
    given on first use, and taken back when it has been free for seconds (free page reporting),
    wrote 0.42 GB/s into others and 5.3 into these, and Ray on it spilled 0.43 and 2 (kernel 6.18,
    2026-11); a host that has its memory knows no difference."""
    restore_ns: int = 1_570_000
    """Of each object that a restore worker reads back: opens the file, makes room, seals. 1.04 ms
    on an EPYC of 2025 with ``core_speed`` 1.5; 0.5 to 0.6 of its Python's main thread on a Xeon,
    and gRPC's and the io thread's beside (ray 2.60, 2026-11, /proc schedstat)."""
    restore_bytes_per_s: float = 3.5e9
    """One restore worker, into pages that it has written to before: what objects of 16 MiB took
    longer than those of 2 on a Xeon of 2 cores (15 GB/s on that EPYC; ray 2.60, 2026-11)."""

    # GCS main loop
    gcs_message_ns: int = 20_000
    gcs_register_actor_ns: int = 700_000
    gcs_create_actor_ns: int = 800_000
    gcs_placement_group_ns: int = 415_000
    gcs_prepare_commit_ns: int = 150_000
    gcs_kv_ns: int = 50_000

    # compiled graphs: measured with ray 2.60 on a host of 2 cores (2026-11): driver, one actor and
    # back 135 us, a second method of the same actor 54 us more, where an actor's call took 860 us
    channel_wake_ns: int = 10_000
    """From a write to the reader that waits for it: a semaphore in shared memory."""
    channel_execute_ns: int = 30_000
    """``execute``: check, serialise, write into the input channels."""
    channel_get_ns: int = 35_000
    """``get`` of a result: read and deserialise."""
    channel_task_ns: int = 50_000
    """One method in an actor's loop: read, call, write."""

    # transport
    unix_socket_ns: int = 15_000
    grpc_same_host_ns: int = 119_000
    """A hop in all, ``grpc_work_ns`` of it work: never less. A synchronous call tells what waits in
    it from what threads work only where accounts say the latter; fitted there, it is shorter."""
    grpc_cross_host_extra_ns: int = 70_000
    grpc_work_ns: int = 22_000
    """Of a hop, what gRPC's threads of both ends work; told apart from the wait only where nodes
    share few cores. Measured: 45 us in a burst of actor calls on 2 cores on which such calls take
    2.1 times as long as on the reference machine (2026-11, ray 2.60, /proc schedstat)."""
    connect_ns: int = 1_800_000
    """What a process's first message to another takes longer: a channel, a socket, HTTP/2's
    settings. 1.2 ms on an EPYC of 2025 with ``core_speed`` 1.5, of calls of actors that others had
    called before. A process's first task waits for two, to the raylet and to the worker (ray 2.60,
    2026-11; ``strace``)."""
    grpc_bytes_per_s: float = 0.9e9
    """What a core of gRPC's threads moves, both ends: 1.1 s per GiB pulled (measured there too)."""

    # threads, seen only where nodes share few cores; elsewhere it is within the other numbers
    cold_factor: float = 2.0
    """How many times as long the same work takes a thread that has slept long (futex, Python's
    lock, caches that others used meanwhile). On a virtual host of 2 cores calls one by one took
    each thread 2.0 to 2.4 times what they took in a burst, and more where more threads took part
    (2026-11, ray 2.60, /proc schedstat)."""
    cold_ns: int = 500_000
    """Sleep after which that is so but for 1/e (assumed)."""
    node_background_cores: float = 0.1
    """Of the cores of its machine, what a node's other threads use while calls are made: agents,
    metrics, events of tasks, the GCS, idle workers. 0.18 on that host (0.07 when it is idle)."""

    # Ray's libraries: their own Python, beside the calls of Ray Core that it makes. Fitted on the
    # rows of ``validation/workloads/ray_libraries/*_fitted.py`` (ray 2.60, 2 cores, 2026-11)
    data_run_ns: int = 20_000_000
    """Of a dataset: plan, optimize, start and end the executor, its threads and its logs."""
    data_step_ns: int = 1_000_000
    """One step of the executor's loop, before tasks (assumed)."""
    data_active_task_ns: int = 20_000
    """The same, of each running task it waits for (assumed)."""
    data_task_ns: int = 1_000_000
    """Dispatching one task: select, bundle, metrics."""
    data_block_ns: int = 500_000
    """Taking one output block: its metadata object, queues, metrics."""
    data_map_ns: int = 6_200_000
    """A map task in its worker: the function, the chain of transforms, metadata of blocks. In
    ``ray.timeline`` reads of 1,000 rows took 4.2 ms, and 0.5 ms of that is said elsewhere (60 of
    ``data_fitted.py``, ray 2.60, an EPYC of 2025 with ``core_speed`` 1.67)."""
    data_batch_ns: int = 210_000
    """One batch of ``map_batches`` there: a slice of the block, its format, and back. 0.12 ms: a
    task of 150 took 22.6 ms (the same)."""
    data_exchange_ns: int = 1_000_000
    """A task of a sort or shuffle, no generator: 1.3 ms and 0.9 ms in all (the same)."""
    data_iterated_batch_ns: int = 150_000
    """One batch of ``iter_batches``, for who iterates: threads hand it over under one lock."""
    data_worker_core_s: float = 0.55
    """A worker's first task of a dataset, or an actor of a pool: imports of ``ray.data`` (pandas,
    pyarrow); 0.50 to 0.53 s, and 0.05 s for the operators (ray 2.60, an EPYC of 2025, 2026-11)."""
    serve_speed: float = 1.0
    """How fast the cores run what a request passes (``raylibs/serve/costs.py``), m7a's being 1."""
    serve_replica_core_s: float = 0.88
    """A replica's actor, or the controller: imports of ``ray.serve``, 830 modules. 0.51 to 0.53 s
    of CPU in a worker of an EPYC of 2025 (ray 2.60, 2026-11), whose ``core_speed`` is 1.67."""
    train_worker_core_s: float = 2.3
    """A training worker: torch 1.2 s and ``ray.train`` 1.1 s, CPU time beyond ``import ray``, warm
    files, on 2 slower cores (2026-11)."""
    train_torch_core_s: float = 0.9
    """What torch imports for a process's first optimizer or DDP wrapper: 820 modules, of
    ``torch._dynamo`` the most; warm 0.85 to 1.03 s (torch 2.13, an EPYC of 2025, 2026-11)."""
    tune_speed: float = 1.0
    """How fast the cores run Tune's driver (``raylibs/tune/defaults.py``), m5's being 1."""
    tune_first_core_s: float = 1.4
    """A driver's first ``fit()`` imports what the later ones find, loggers and file systems the
    most: 1.49 s of CPU beside 0.1 (ray 2.60, the same EPYC)."""
    tune_trial_core_s: float = 0.55
    """A trial's actor: imports of ``ray.tune`` (pandas, pyarrow) before ``setup``."""

    # memory
    memcpy_bytes_per_s: float = 28.5e9
    """``ray.put`` of an array into pages that were written to before."""
    first_touch_bytes_per_s: float = 7.24e9
    """The same into pages that the kernel must first provide, by ``COPY_THREADS``; reading such
    pages costs as much."""
    mapping_share: float = 0.44
    """Of what it costs to provide a page, what it costs a process to map one that is there: on a
    virtual host a copy into /dev/shm ran at 0.90 GB/s into new pages, 1.77 into pages that another
    process had written, 7.5 into its own (one thread; kernel 6.18, 2026-11)."""

    # processes
    worker_start_core_s: float = 0.7
    """Median of a lognormal: interpreter, imports, registration, on a quiet core, up to the first
    answer."""
    first_value_core_s: float = 0.0
    """Of that, what comes with the first value that a process reads or writes: imports of pydantic
    and starlette, whose serializers are registered then. A driver pays it too. 0.11 s on a host of
    2 cores (2026-11, ray 2.60); 0: not told apart."""
    setup_worker_core_s: float = 0.5
    """More, with a runtime environment: ``setup_worker.py``, an interpreter that imports Ray only
    to become the worker (0.8 s where a worker takes 1.2 s; 2026-11, ray 2.60)."""
    worker_start_sigma: float = 0.25
    worker_memory_bytes: int = 80_000_000
    """Resident size of an idle worker."""

    def write_s(
        self, size_bytes: int, fresh_bytes: int, unmapped_bytes: int, cores: float
    ) -> tuple[float, float]:
        """Seconds of a copy into the store, and of how many threads, each on a core.

        One thread moves bytes as fast as several (20 GB/s on 2 cores, ray 2.60, 2026-11), but each
        provides pages for itself: 1.6 GB/s alone there, as the sixth part of what six do on the
        reference machine.

        Parameters
        ----------
        size_bytes
            Of the object.
        fresh_bytes, unmapped_bytes
            Of those, on pages that nobody has written to, and on others that this process has not.
        cores
            That are there.
        """
        copy_s, provide_s = 1.0 / self.memcpy_bytes_per_s, self._provide_s
        pages = fresh_bytes + self.mapping_share * unmapped_bytes
        threads = min(float(COPY_THREADS), cores)
        if size_bytes <= COPIED_ALONE_BYTES:
            return size_bytes * copy_s + pages * provide_s * threads, 1.0
        return size_bytes * copy_s + pages * provide_s, threads

    @property
    def _provide_s(self) -> float:
        """Seconds per byte of new pages, with all threads that copy."""
        return max(0.0, 1.0 / self.first_touch_bytes_per_s - 1.0 / self.memcpy_bytes_per_s)

    def new_memory_s(self, size_bytes: int, cores: float) -> float:
        """Seconds in which one thread is given so much memory that its process never had.

        Taken to cost what pages of the store do: 8 MiB of a task's arrays took 3.3 and then 0.9 ms
        of its process, with 2,013 and no page faults (ray 2.60, a Xeon of 2 cores, 2026-11).
        """
        return size_bytes * self._provide_s * min(float(COPY_THREADS), cores)

    def spill_s(self, size_bytes: int, fresh_bytes: int) -> float:
        """Seconds that one spill worker writes, some of it into pages that no file had before."""
        used_bytes = size_bytes - fresh_bytes
        return fresh_bytes / self.spill_bytes_per_s + used_bytes / self.spill_again_bytes_per_s

    def restore_s(
        self, size_bytes: int, fresh_bytes: int, unmapped_bytes: int, cores: float
    ) -> float:
        """Seconds that one restore worker, which reads into the store by itself, is at work.

        Parameters
        ----------
        size_bytes
            Of the object.
        fresh_bytes, unmapped_bytes, cores
            As of ``write_s``.
        """
        pages_s = self.pages_s(fresh_bytes, unmapped_bytes, cores)
        return self.restore_ns * 1e-9 + size_bytes / self.restore_bytes_per_s + pages_s

    def pages_s(self, fresh_bytes: int, unmapped_bytes: int, cores: float) -> float:
        """Seconds in which one thread is given pages of the store, as of ``write_s``."""
        unmapped_s = self.mapping_share * self.new_memory_s(unmapped_bytes, cores)
        return self.new_memory_s(fresh_bytes, cores) + unmapped_s

    def at_speed(self, core_speed: float) -> RayCosts:
        """The same code on cores of that speed: work takes ``core_speed`` times less long."""
        ratio = self.core_speed / core_speed
        slower: dict[str, Any] = {
            f.name: getattr(self, f.name) * ratio
            for f in fields(self)
            if f.name.endswith(("_ns", "_core_s")) and f.name != "cold_ns"
        }
        whole = {name: round(t) if name.endswith("_ns") else t for name, t in slower.items()}
        return replace(self, core_speed=core_speed, **whole)
