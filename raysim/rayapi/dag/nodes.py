"""Nodes of a graph of tasks and methods, made by ``bind``, and running it with ``execute``.

Real counterpart: ``python/ray/dag/{dag_node,function_node,class_node,input_node,output_node}.py``
of ray 2.60. Nodes may be inside of lists, tuples, dicts and sets of arguments.

Not modelled: tensor transport, visualisation, Ray's warning that ``execute`` is deprecated.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from raysim.rayapi.dag.text import node_text

_uuids = count(1)

_CHILD = tuple[Any, ...]


def find_nodes(value: Any, found: list[DAGNode] | None = None) -> list[DAGNode]:
    """Nodes in a value, also within containers, in order."""
    found = [] if found is None else found
    if isinstance(value, DAGNode):
        found.append(value)
    elif isinstance(value, dict):
        for item in value.items():
            find_nodes(item, found)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            find_nodes(item, found)
    return found


def _replaced(value: Any, results: dict[DAGNode, Any]) -> Any:
    """The value with what its nodes have become."""
    if isinstance(value, DAGNode):
        return results[value]
    kind = type(value)
    if kind is dict:
        return {_replaced(k, results): _replaced(v, results) for k, v in value.items()}
    if kind in (list, tuple, set, frozenset):
        return kind(_replaced(item, results) for item in value)
    return value


class DAGNode:
    """A call that is not made yet."""

    def __init__(
        self,
        args: _CHILD,
        kwargs: dict[str, Any],
        options: dict[str, Any],
        other_args_to_resolve: dict[str, Any],
    ) -> None:
        self._bound_args = tuple(args)
        self._bound_kwargs = kwargs
        self._bound_options = options
        self._bound_other_args_to_resolve = other_args_to_resolve
        self._stable_uuid = f"{next(_uuids):032x}"
        self._downstream_nodes: list[DAGNode] = []
        self._args_contain_nested_dag_node = False
        self._upstream_nodes: list[DAGNode] = []
        for arg in self._bound_args:
            nodes = find_nodes(arg)
            self._upstream_nodes += nodes
            if not isinstance(arg, DAGNode):
                self._args_contain_nested_dag_node = bool(nodes)
        self._upstream_nodes += find_nodes([kwargs, other_args_to_resolve])
        for node in self._upstream_nodes:
            node._downstream_nodes.append(self)
        self.is_cgraph_output_node = False
        self.cache_from_last_execute: dict[str, Any] = {}

    def get_args(self) -> _CHILD:
        """Positional arguments."""
        return self._bound_args

    def get_kwargs(self) -> dict[str, Any]:
        """Keyword arguments."""
        return dict(self._bound_kwargs)

    def get_options(self) -> dict[str, Any]:
        """Options of the call."""
        return dict(self._bound_options)

    def get_other_args_to_resolve(self) -> dict[str, Any]:
        """The actor, and the call before."""
        return dict(self._bound_other_args_to_resolve)

    def get_stable_uuid(self) -> str:
        """Its name."""
        return self._stable_uuid

    def clear_cache(self) -> None:
        """Forget what the last execution made."""
        self.cache_from_last_execute = {}

    def execute(self, *args: Any, _ray_cache_refs: bool = False, **kwargs: Any) -> Any:
        """Make all the calls, each after those it needs; a reference, handle or list of them."""
        results: dict[DAGNode, Any] = {}
        given = DAGInputData(*args, **kwargs) if kwargs or len(args) != 1 else args[0]
        self._resolve(results, given)
        if _ray_cache_refs:
            self.cache_from_last_execute = {n._stable_uuid: r for n, r in results.items()}
        return results[self]

    def _resolve(self, results: dict[DAGNode, Any], given: Any) -> None:
        if self in results:
            return
        children = [self._bound_args, self._bound_kwargs, self._bound_other_args_to_resolve]
        for node in find_nodes(children):
            node._resolve(results, given)
        args = _replaced(self._bound_args, results)
        kwargs = _replaced(self._bound_kwargs, results)
        if isinstance(self, InputNode) and any(
            isinstance(node, InputNode) for node in results if node is not self
        ):
            raise AssertionError("Each DAG should only have one unique InputNode.")
        results[self] = self._run(args, kwargs, results, given)

    def _run(
        self, args: _CHILD, kwargs: dict[str, Any], results: dict[DAGNode, Any], given: Any
    ) -> Any:
        raise NotImplementedError

    def experimental_compile(
        self,
        _submit_timeout: float | None = None,
        _buffer_size_bytes: int | None = None,
        enable_asyncio: bool = False,
        _max_inflight_executions: int | None = None,
        _max_buffered_results: int | None = None,
        _overlap_gpu_communication: bool | None = None,
        _default_communicator: Any = "create",
    ) -> Any:
        """Let the actors run it in loops, through channels."""
        from raysim.rayapi.dag.compiled_dag import compile_dag

        if self.is_cgraph_output_node:
            raise ValueError(
                "It is not allowed to call `experimental_compile` on the same DAG object multiple "
                "times no matter whether `teardown` is called or not. Please reuse the existing "
                "compiled DAG or create a new one."
            )
        self.is_cgraph_output_node = True
        return compile_dag(
            self,
            submit_timeout=_submit_timeout,
            buffer_size_bytes=_buffer_size_bytes,
            enable_asyncio=enable_asyncio,
            max_inflight_executions=_max_inflight_executions,
            max_buffered_results=_max_buffered_results,
        )

    def with_tensor_transport(self, *_args: Any, **_kwargs: Any) -> DAGNode:
        """Not emulated."""
        from raysim.rayapi.unsupported import NotEmulatedError

        raise NotEmulatedError("DAGNode.with_tensor_transport()", "channels in shared memory")

    def _find_root(self) -> DAGNode:
        node: DAGNode = self
        while not isinstance(node, InputNode):
            if not node._upstream_nodes:
                raise ValueError(
                    "No InputNode found in the DAG: when traversing upwards, no upstream node was "
                    f"found for {node}."
                )
            node = node._upstream_nodes[0]
        return node

    def __getattr__(self, name: str) -> Any:
        if name == "bind":
            raise AttributeError(f".bind() cannot be used again on {type(self)} ")
        if name == "remote":
            raise AttributeError(
                f".remote() cannot be used on {type(self)}. To execute the task graph for this "
                "node, use .execute()."
            )
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def _body_text(self) -> str:
        return type(self).__name__

    def __str__(self) -> str:
        return node_text(self, self._body_text())


class FunctionNode(DAGNode):
    """A task."""

    def __init__(
        self, function: Any, args: _CHILD, kwargs: dict[str, Any], options: dict[str, Any]
    ) -> None:
        self._remote_function = function
        super().__init__(args, kwargs, options, {})

    def _run(
        self, args: _CHILD, kwargs: dict[str, Any], _results: dict[DAGNode, Any], _given: Any
    ) -> Any:
        return self._remote_function._remote(self._bound_options, args, kwargs)

    def _body_text(self) -> str:
        return str(self._remote_function._function)


class ClassNode(DAGNode):
    """An actor to be."""

    def __init__(
        self, actor_class: Any, args: _CHILD, kwargs: dict[str, Any], options: dict[str, Any]
    ) -> None:
        self._body = actor_class
        self._last_call: ClassMethodNode | None = None
        super().__init__(args, kwargs, options, {})
        if any(isinstance(n, (InputNode, InputAttributeNode)) for n in self._upstream_nodes):
            raise ValueError(
                "InputNode handles user dynamic input the DAG, and cannot be used as args, kwargs, "
                "or other_args_to_resolve in ClassNode constructor because it is not available at "
                "class construction or binding time."
            )

    def _run(
        self, args: _CHILD, kwargs: dict[str, Any], _results: dict[DAGNode, Any], _given: Any
    ) -> Any:
        from raysim.rayapi.actors import create

        return create(self._body, self._bound_options, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        kind = self._body._info.kind
        if name == "bind" and not hasattr(kind, "bind"):
            raise AttributeError(f".bind() cannot be used again on {type(self)} ")
        getattr(kind, name)  # says so if there is none
        return _UnboundClassMethodNode(self, name)

    def _body_text(self) -> str:
        return str(self._body._info.kind)


class _UnboundClassMethodNode:
    """``Class.bind(...).method``."""

    def __init__(self, actor: ClassNode, name: str) -> None:
        self._actor = actor
        self._name = name
        self._options: dict[str, Any] = {}

    def bind(self, *args: Any, **kwargs: Any) -> ClassMethodNode:
        """A call of it, after those bound before."""
        other = {"parent_class_node": self._actor, "prev_class_method_call": self._actor._last_call}
        node = ClassMethodNode(self._name, args, kwargs, self._options, other)
        self._actor._last_call = node
        return node

    def options(self, **options: Any) -> _UnboundClassMethodNode:
        """With other options."""
        self._options = options
        return self

    def __getattr__(self, name: str) -> Any:
        if name == "remote":
            raise AttributeError(
                ".remote() cannot be used on ClassMethodNodes. Use .bind() instead to express an "
                "symbolic actor call."
            )
        raise AttributeError(name)


class ClassMethodNode(DAGNode):
    """A call of an actor's method, or one of its several return values."""

    def __init__(
        self,
        method_name: str,
        args: _CHILD,
        kwargs: dict[str, Any],
        options: dict[str, Any],
        other_args_to_resolve: dict[str, Any],
    ) -> None:
        self._method_name = method_name
        self._parent_class_node = other_args_to_resolve["parent_class_node"]
        self._bind_index: int = other_args_to_resolve.get("bind_index", -1)
        self.is_class_method_output: bool = other_args_to_resolve.get(
            "is_class_method_output", False
        )
        super().__init__(args, kwargs, options, other_args_to_resolve)

    @property
    def is_class_method_call(self) -> bool:
        """Not one of several return values."""
        return not self.is_class_method_output

    @property
    def class_method_call(self) -> ClassMethodNode | None:
        """Of a return value: the call."""
        return self._bound_args[0] if self.is_class_method_output else None

    @property
    def output_idx(self) -> int | None:
        """Of a return value: which."""
        return self._bound_args[1] if self.is_class_method_output else None

    def get_method_name(self) -> str:
        """The method's."""
        return self._method_name

    def _run(
        self, args: _CHILD, kwargs: dict[str, Any], results: dict[DAGNode, Any], _given: Any
    ) -> Any:
        if self.is_class_method_output:
            return args[0][args[1]]
        parent = self._parent_class_node
        actor = results[parent] if isinstance(parent, DAGNode) else parent
        given = {name: value for name, value in self._bound_options.items() if value is not None}
        given.pop("name", None)
        return getattr(actor, self._method_name).options(**given).remote(*args, **kwargs)

    def _body_text(self) -> str:
        return f"{self._method_name}()"

    __repr__ = DAGNode.__str__


def bind_method(
    handle: Any,
    name: str,
    method: Any,
    options: dict[str, Any],
    args: _CHILD,
    kwargs: dict[str, Any],
) -> Any:
    """``handle.method.bind(...)``: a node, or one per return value."""
    method.signature.check(args, kwargs)
    num_returns = options.get("num_returns") or method.options.get("num_returns") or 1
    other = {"parent_class_node": handle, "bind_index": handle._bind_index}
    handle._bind_index += 1
    node = ClassMethodNode(name, args, kwargs, {**options, "num_returns": num_returns}, other)
    if num_returns == 1:
        return node
    made = {"is_class_method_output": True, "parent_class_node": handle}
    return tuple(
        ClassMethodNode(f"return_idx_{k}", (node, k), {}, {}, made) for k in range(num_returns)
    )


class InputNode(DAGNode):
    """What ``execute`` is given; used as a context manager."""

    def __init__(self, *args: Any, input_type: Any = None, **kwargs: Any) -> None:
        del input_type
        if args or kwargs:
            raise ValueError("InputNode should not take any args or kwargs.")
        self.input_attribute_nodes: dict[int | str, InputAttributeNode] = {}
        self._in_context = False
        super().__init__((), {}, {}, {})

    def _run(
        self, _args: _CHILD, _kwargs: dict[str, Any], _results: dict[DAGNode, Any], given: Any
    ) -> Any:
        assert self._in_context, (
            "InputNode is a singleton instance that should be only used in context manager for dag "
            "building and execution. See the docstring of class InputNode for examples."
        )
        return given

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_bound_args", "input_attribute_nodes"):
            raise AttributeError(name)
        return self._attribute(name, "__getattr__")

    def __getitem__(self, key: int | str) -> Any:
        assert isinstance(key, (str, int)), (
            "Please only use int index or str as first-level key to access fields of dag input."
        )
        return self._attribute(key, "__getitem__")

    def _attribute(self, key: int | str, accessor: str) -> InputAttributeNode:
        node = self.input_attribute_nodes.get(key)
        if node is None:
            node = self.input_attribute_nodes[key] = InputAttributeNode(self, key, accessor)
        return node

    def __enter__(self) -> InputNode:
        self._in_context = True
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def _body_text(self) -> str:
        return "__InputNode__"


class InputAttributeNode(DAGNode):
    """A part of the input: by position, attribute or key."""

    def __init__(self, dag_input_node: InputNode, key: int | str, accessor_method: str) -> None:
        self.key = key
        self._accessor_method = accessor_method
        other = {"dag_input_node": dag_input_node, "key": key, "accessor_method": accessor_method}
        super().__init__((), {}, {}, other)

    def _run(
        self, _args: _CHILD, _kwargs: dict[str, Any], results: dict[DAGNode, Any], _given: Any
    ) -> Any:
        given = results[self._bound_other_args_to_resolve["dag_input_node"]]
        if not isinstance(given, DAGInputData) and self._accessor_method == "__getattr__":
            return getattr(given, str(self.key))
        return given[self.key]

    def _body_text(self) -> str:
        return f'["{self.key}"]'


class DAGInputData:
    """Several inputs in one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._args = list(args)
        self._kwargs = kwargs

    def __getitem__(self, key: int | str) -> Any:
        return self._args[key] if isinstance(key, int) else self._kwargs[key]


class MultiOutputNode(DAGNode):
    """Several outputs of a graph."""

    def __init__(self, args: Any, other_args_to_resolve: dict[str, Any] | None = None) -> None:
        if not isinstance(args, (list, tuple)):
            raise ValueError(f"Invalid input type for `args`, {type(args)}.")
        super().__init__(tuple(args), {}, {}, other_args_to_resolve or {})

    def _run(
        self, args: _CHILD, _kwargs: dict[str, Any], _results: dict[DAGNode, Any], _given: Any
    ) -> Any:
        return list(args)

    def _body_text(self) -> str:
        return "__MultiOutputNode__"
