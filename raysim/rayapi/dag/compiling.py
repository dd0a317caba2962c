"""From nodes to channels and loops: what ``experimental_compile`` does before anything runs.

Real counterpart: ``CompiledDAG._preprocess`` and ``_get_or_compile`` of
``dag/compiled_dag_node.py``. It asks every actor for its GPUs and its node, has every writer make
its buffers, and starts the loops; each is a call of the actor and costs what a call costs.

Not modelled: communicators and collectives; the search for deadlocks, which Ray has not either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raysim.rayapi.actor_handle import ActorHandle
from raysim.rayapi.actors import ActorClass
from raysim.rayapi.calls import this_core, this_fiber
from raysim.rayapi.dag.channels import DRIVER, Channel, End, Party, Reader, known
from raysim.rayapi.dag.loops import Plan, Task, allocate, exec_tasks
from raysim.rayapi.dag.nodes import (
    ClassMethodNode,
    DAGNode,
    FunctionNode,
    InputAttributeNode,
    InputNode,
    MultiOutputNode,
)

if TYPE_CHECKING:
    from raysim.rayapi.dag.compiled_dag import CompiledDAG


class DAGDriverProxyActor:
    """Stands for the driver where a reader must be an actor."""


class Graph:
    """The nodes of one graph, checked.

    Parameters
    ----------
    output
        The node that ``experimental_compile`` was called on.
    """

    def __init__(self, output: DAGNode) -> None:
        self.nodes = _connected(output)
        inputs = [n for n in self.nodes if isinstance(n, InputNode)]
        assert len(inputs) == 1, "More than one InputNode found"
        self.input = inputs[0]
        self.returns_list = isinstance(output, MultiOutputNode)
        self.outputs = list(output.get_args()) if self.returns_list else [output]
        self.positional: dict[int, None] = {}
        self.keywords: dict[str, None] = {}
        self.direct: bool | None = None
        self.calls: list[ClassMethodNode] = []
        for node in self.nodes:
            self._check(node)
        self._check_unused(output)
        _check_leaves(self.nodes)

    @property
    def positional_count(self) -> int:
        """Of arguments that ``execute`` takes."""
        if self.direct:
            return 1
        return max(self.positional) + 1 if self.positional else 0

    def _check(self, node: DAGNode) -> None:
        if isinstance(node, FunctionNode):
            raise NotImplementedError("Compiled DAGs currently only support actor method nodes")
        if not isinstance(node, (InputNode, InputAttributeNode, MultiOutputNode, ClassMethodNode)):
            raise ValueError(f"Found unsupported node of type {type(node)}")
        if isinstance(node, ClassMethodNode) and node.is_class_method_call:
            if not isinstance(node._parent_class_node, ActorHandle):
                raise ValueError(
                    "Compiled DAGs can only bind methods to an actor that is already created with "
                    "Actor.remote()"
                )
            self.calls.append(node)
        if any(isinstance(value, DAGNode) for value in node.get_kwargs().values()):
            raise ValueError(
                "Compiled DAG currently does not support binding to other DAG nodes as kwargs"
            )
        for arg in node.get_args():
            if isinstance(arg, InputAttributeNode):
                self._uses(direct=False)
                if isinstance(arg.key, int):
                    self.positional[arg.key] = None
                else:
                    self.keywords[arg.key] = None
            elif isinstance(arg, InputNode):
                self._uses(direct=True)

    def _uses(self, *, direct: bool) -> None:
        if self.direct is not None and self.direct != direct:
            raise ValueError(
                "All tasks must either use InputNode() directly, or they must index to specific "
                "args or kwargs."
            )
        self.direct = direct

    def _check_unused(self, output: DAGNode) -> None:
        seen: dict[DAGNode, None] = {}
        stack = [output]
        while stack:
            node = stack.pop()
            if node not in seen:
                seen[node] = None
                stack += node._upstream_nodes
        used = {node.key for node in seen if isinstance(node, InputAttributeNode)}
        unused = [str(key) for key in self.input.input_attribute_nodes if key not in used]
        if unused:
            everything = ", ".join(str(key) for key in self.input.input_attribute_nodes)
            raise ValueError(
                f"Compiled Graph expects input to be accessed using all of attributes {everything},"
                f" but {', '.join(unused)} {'is' if len(unused) == 1 else 'are'} unused. Ensure all"
                " input attributes are used and contribute to the computation of the Compiled Graph"
                " output."
            )


def _connected(output: DAGNode) -> list[DAGNode]:
    """All nodes that have to do with it, from the input on."""
    queue, found = [output._find_root()], dict[DAGNode, None]()
    compiled: DAGNode | None = None
    while queue:
        node = queue.pop(0)
        if node._args_contain_nested_dag_node:
            _refuse_nested(node)
        if node in found:
            continue
        if node.is_cgraph_output_node:
            if compiled is not None:
                raise ValueError(
                    "The DAG was compiled more than once. The following two nodes call "
                    f"`experimental_compile`: (1) {compiled}, (2) {node}"
                )
            compiled = node
        found[node] = None
        queue += [n for n in (*node._downstream_nodes, *node._upstream_nodes) if n not in found]
    return list(found)


def _refuse_nested(node: DAGNode) -> None:
    from raysim.rayapi.dag.nodes import find_nodes

    for arg in node.get_args():
        nested = [] if isinstance(arg, DAGNode) else find_nodes(arg)
        if nested:
            raise ValueError(
                f"Found {len(nested)} DAGNodes from the arg {arg} in {node}. Please ensure that the"
                " argument is a single DAGNode and that a DAGNode is not allowed to be placed"
                " inside any type of container."
            )


def _check_leaves(nodes: list[DAGNode]) -> None:
    leaves = [
        node.get_method_name()
        for node in nodes
        if isinstance(node, ClassMethodNode)
        and not any(node in n.get_args() for n in node._downstream_nodes)
        and not node.is_cgraph_output_node
    ]
    if leaves:
        raise ValueError(
            "Compiled DAG doesn't support leaf nodes, i.e., nodes that don't have downstream nodes "
            f"and are not output nodes. There are {len(leaves)} leaf nodes in the DAG. Please add "
            f"the outputs of {leaves} to the the MultiOutputNode."
        )


class Wiring:
    """Makes the channels and loops of a graph."""

    def __init__(self, dag: CompiledDAG, graph: Graph) -> None:
        self._dag = dag
        self._graph = graph
        self._parties: dict[int, Party] = {}
        self._channels: dict[DAGNode, Channel] = {}
        fiber = this_fiber()
        self._env = fiber.process.session.env
        self._here = this_core(fiber).me.node_id

    def run(self) -> None:
        """Ask, allocate, start; what the driver needs is in the graph's object afterwards."""
        for node in self._graph.calls:
            if node._parent_class_node._actor_id.number not in self._parties:
                self._ask(node._parent_class_node)
        proxy = ActorClass.made_from(DAGDriverProxyActor, {"num_cpus": 0})
        self._dag.proxy = proxy.options(scheduling_strategy=_on_node(self._here)).remote()
        self._driver = Party(DRIVER, self._here, self._dag.proxy)
        _check_inputs(self._graph)
        self._input_channels()
        for node in self._ordered():
            self._output_channels(node)
        self._dag.reader = Reader([self._end(node, DRIVER) for node in self._graph.outputs])
        for handle, plan, constants in self._plans():
            known[id(plan)] = plan
            loop = handle.__ray_call__.options(concurrency_group="_ray_system")
            self._dag.loops.append((handle, plan, loop.remote(exec_tasks, id(plan), constants)))

    def _ask(self, actor: ActorHandle) -> None:
        """Its GPUs, as Ray does, and its node."""
        from raysim.rayapi.api import get

        get(actor.__ray_call__.remote(_gpus_of))
        node_id = get(actor.__ray_call__.remote(_node_of))
        number = actor._actor_id.number
        self._parties[number] = Party(number, node_id, actor)

    def _party(self, node: ClassMethodNode) -> Party:
        return self._parties[node._parent_class_node._actor_id.number]

    def _ordered(self) -> list[ClassMethodNode]:
        """Calls reached from the input, nearest first."""
        start = self._graph.input
        attributes: list[DAGNode] = list(start.input_attribute_nodes.values())
        queue: list[DAGNode] = [start]
        queue += attributes
        found: dict[DAGNode, None] = {}
        while queue:
            node = queue.pop(0)
            if node not in found:
                found[node] = None
                queue += node._downstream_nodes
        return [n for n in found if isinstance(n, ClassMethodNode) and n.is_class_method_call]

    def _readers(self, node: DAGNode) -> list[Party]:
        """Who reads what this node makes, each once; the driver first."""
        readers: dict[int, Party] = {}
        if node in self._graph.outputs:
            readers[DRIVER] = self._driver
        for reader in node._downstream_nodes:
            if isinstance(reader, ClassMethodNode) and reader.is_class_method_call:
                party = self._party(reader)
                readers[party.key] = party
        return list(readers.values())

    def _input_channels(self) -> None:
        graph = self._graph
        nodes: list[DAGNode] = list(graph.input.input_attribute_nodes.values())
        for node in nodes or [graph.input]:
            channel = self._channel(node, self._driver)
            channel.allocate()
            key = node.key if isinstance(node, InputAttributeNode) else None
            self._dag.inputs.append((key, channel))

    def _output_channels(self, node: ClassMethodNode) -> None:
        from raysim.rayapi.api import get

        writer = self._party(node)
        outputs = [n for n in node._downstream_nodes if _is_output_of(n, node)] or [node]
        for made in outputs:
            channel = self._channel(made, writer)
            get(writer.handle.__ray_call__.remote(allocate, id(channel)))

    def _channel(self, node: DAGNode, writer: Party) -> Channel:
        channel = Channel(
            self._env, writer, self._readers(node),
            slots=self._dag.max_inflight_executions, buffer_bytes=self._dag.buffer_size_bytes,
        )  # fmt: skip
        self._channels[node] = channel
        known[id(channel)] = channel
        return channel

    def _end(self, node: DAGNode, key: int) -> End:
        return self._channels[node].end(key)

    def _plans(self) -> list[tuple[ActorHandle, Plan, list[Any]]]:
        """For every actor: its tasks in order, and their constant arguments."""
        plans = []
        for party in self._parties.values():
            nodes = sorted(
                (n for n in self._graph.calls if self._party(n) is party),
                key=lambda n: n._bind_index,
            )
            ends: dict[DAGNode, End] = {}
            tasks, constants = [], []
            for node in nodes:
                task = self._task(node, party, ends)
                tasks.append(task)
                args = tuple(None if isinstance(a, DAGNode) else a for a in node.get_args())
                constants.append((args, node.get_kwargs()))
            plans.append((party.handle, Plan(tasks), constants))
        return plans

    def _task(self, node: ClassMethodNode, party: Party, ends: dict[DAGNode, End]) -> Task:
        """Tasks of one actor that read the same share one end."""
        used: dict[DAGNode, None] = {}
        found: list[End | None] = []
        for arg in node.get_args():
            if not isinstance(arg, DAGNode):
                found.append(None)
                continue
            if arg not in ends:
                ends[arg] = self._end(arg, party.key)
                ends[arg].tasks = 0
            if arg not in used:
                used[arg] = None
                ends[arg].tasks += 1
            found.append(ends[arg])
        outputs = [
            (made.output_idx, self._channels[made])
            for made in node._downstream_nodes
            if isinstance(made, ClassMethodNode) and _is_output_of(made, node)
        ]
        return Task(
            node.get_method_name(), node._bind_index, found,
            list(outputs) or [(None, self._channels[node])],
        )  # fmt: skip


def _is_output_of(node: DAGNode, call: ClassMethodNode) -> bool:
    return isinstance(node, ClassMethodNode) and node.class_method_call is call


def _check_inputs(graph: Graph) -> None:
    for node in graph.calls:
        if not any(isinstance(arg, DAGNode) for arg in node.get_args()):
            raise ValueError(
                "Compiled DAGs require each task to take a ray.dag.InputNode or at least one other "
                f"DAGNode as an input. Invalid task node:\n{node}\nPlease bind the task to proper "
                "DAG nodes."
            )


def _gpus_of(_instance: Any) -> list[str]:
    from raysim.rayapi.runtime_context import get_runtime_context

    return list(get_runtime_context().get_accelerator_ids().get("GPU", []))


def _node_of(_instance: Any) -> int:
    return this_core(this_fiber()).me.node_id


def _on_node(node_id: int) -> Any:
    from raysim.rayapi.identifiers import NodeID
    from raysim.rayapi.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=NodeID(node_id).hex(), soft=False)
