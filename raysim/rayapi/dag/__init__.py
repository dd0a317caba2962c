"""The module that programs import as ``ray.dag``: graphs of calls, run as such or compiled."""

from raysim.rayapi.dag.compiled_dag import CompiledDAG
from raysim.rayapi.dag.context import DAGContext
from raysim.rayapi.dag.nodes import (
    ClassMethodNode,
    ClassNode,
    DAGInputData,
    DAGNode,
    FunctionNode,
    InputAttributeNode,
    InputNode,
    MultiOutputNode,
)
from raysim.rayapi.dag.refs import CompiledDAGFuture, CompiledDAGRef
from raysim.rayapi.unsupported import getattr_of

for _class, _module in (
    (CompiledDAG, "compiled_dag_node"),
    (DAGContext, "context"),
    (DAGNode, "dag_node"),
    (FunctionNode, "function_node"),
    (ClassNode, "class_node"),
    (ClassMethodNode, "class_node"),
    (InputNode, "input_node"),
    (InputAttributeNode, "input_node"),
    (DAGInputData, "input_node"),
    (MultiOutputNode, "output_node"),
):
    _class.__module__ = f"ray.dag.{_module}"
for _ref in (CompiledDAGFuture, CompiledDAGRef):
    _ref.__module__ = "ray.experimental.compiled_dag_ref"

__getattr__ = getattr_of("ray.dag")

__all__ = [
    "ClassMethodNode", "ClassNode", "CompiledDAG", "DAGContext", "DAGInputData", "DAGNode",
    "FunctionNode", "InputAttributeNode", "InputNode", "MultiOutputNode",
]  # fmt: skip
