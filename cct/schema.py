"""Checking settings against the signatures that take them.

A setting of a node is a keyword-only argument of the class or function its ``_target_`` names, with
the type and range of its annotation (``cct/limits.py``); what the program itself passes is
positional. Only what this project and torch's optimisers define is called, so that configurations
and checkpoints from strangers run no code. Every mistake is a ValueError of one line that names the
key, the value and what is allowed.
"""

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from cct.limits import Range

PACKAGES = ("cct", "torch.optim")  # whose classes and functions a ``_target_`` may name


def check_mapping(values: Mapping, kinds: Mapping[str, Any], key: str) -> dict:
    """Return the settings of a node, or of the top level, each as its annotated type."""
    prefix = f"{key}." if key else ""
    for name, value in values.items():
        if name not in kinds:
            given = "" if isinstance(value, Mapping) else f"={value}"
            hint = _hint(name, values, kinds, prefix)
            raise ValueError(f"{prefix}{name}{given}: no such setting; {hint}")
    for name in kinds:
        if name not in values:
            raise ValueError(f"{prefix}{name}: missing")
    plain_first = sorted(values, key=lambda name: isinstance(values[name], Mapping))
    keys = {name: f"{prefix}{name}" for name in plain_first}
    return {name: _check_value(values[name], kinds[name], key) for name, key in keys.items()}


def _hint(name: str, values: Mapping, kinds: Mapping[str, Any], prefix: str) -> str:
    """Say what may have been meant: the same name inside a group, a similar one, or any known."""
    inside = [f"{group}.{name}" for group, node in values.items() if name in _names(node)]
    close = inside or difflib.get_close_matches(str(name), kinds, 1)
    if close:
        return f"did you mean {prefix}{close[0]}?"
    return f"there are: {', '.join(kinds) or 'none for this choice'}"


def _names(node: Any) -> list[str]:
    return [str(name) for name in node] if isinstance(node, Mapping) else []


def one_line(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())


def _check_node(node: Any, key: str) -> dict:
    if not isinstance(node, Mapping) or not isinstance(node.get("_target_"), str):
        raise ValueError(f"{key}={node}: a choice of conf/{key.replace('.', '/')} is needed here")
    target = target_of(node["_target_"], f"{key}._target_")
    meta = {name: node[name] for name in ("_target_", "_partial_") if name in node}
    if meta.get("_partial_", True) is not True:
        raise ValueError(f"{key}._partial_={meta['_partial_']}: is true or absent")
    settings = {name: value for name, value in node.items() if name not in meta}
    return {**meta, **check_mapping(settings, settings_of(target), key)}


def target_of(path: str, key: str, packages: tuple[str, ...] = PACKAGES) -> Callable[..., Any]:
    """Return what a ``_target_`` names; ValueError unless one of the packages defines it."""
    module, _, name = path.rpartition(".")
    foreign = f"{key}={path}: only what is defined in {' or '.join(packages)} is called"
    if not _inside(module, packages):  # before it is imported, which runs it
        raise ValueError(foreign)
    try:
        target = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as mistake:
        raise ValueError(f"{key}={path}: {mistake}") from mistake
    if not callable(target) or not _inside(getattr(target, "__module__", ""), packages):
        raise ValueError(foreign)
    return target


def _inside(module: str, packages: tuple[str, ...]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def check_targets(
    node: Any,
    key: str,
    words: tuple[str, ...] = ("_target_",),
    packages: tuple[str, ...] = PACKAGES,
) -> None:
    """Look at every value under one of these words, however deep; ValueError as ``target_of``."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    if isinstance(node, Mapping):
        for name, value in node.items():
            if name in words and isinstance(value, str):
                target_of(value, f"{key}.{name}", packages)
            check_targets(value, f"{key}.{name}", words, packages)


def settings_of(target: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword-only arguments of a class or function with their annotations."""
    function = target.__init__ if inspect.isclass(target) else target
    hints = get_type_hints(function, include_extras=True)
    arguments = inspect.signature(function).parameters.values()
    settings = [argument.name for argument in arguments if argument.kind is argument.KEYWORD_ONLY]
    for name in settings:
        if name not in hints:
            raise ValueError(f"{target.__module__}.{target.__name__}: annotate the type of {name}")
    return {name: hints[name] for name in settings}


def _check_value(value: Any, kind: Any, key: str) -> Any:
    """Return the value as its annotated type; ValueError naming key, value and what is allowed."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Callable:
        return _check_node(value, key)
    if origin in (Union, UnionType):
        for option in arguments:
            if _fits(value, option):
                return _check_value(value, option, key)
    elif origin is dict and isinstance(value, Mapping):
        return check_mapping(value, dict.fromkeys(value, arguments[1]), key)
    elif origin is list and isinstance(value, list):
        return [_check_value(one, arguments[0], f"{key}[{i}]") for i, one in enumerate(value)]
    elif _fits(value, kind):
        if isinstance(value, Mapping):
            return check_mapping(value, get_type_hints(kind, include_extras=True), key)
        convert = {float: float, str: str}.get(_base(kind), lambda same: same)
        return convert(value)
    shown = "null" if value is None else value
    raise ValueError(f"{key}={shown}: must be {describe(kind)}")


def _base(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _fits(value: Any, kind: Any) -> bool:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        inside = [limit for limit in arguments[1:] if isinstance(limit, Range)]
        return _fits(value, arguments[0]) and all(value in limit for limit in inside)
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in arguments)
    if origin is list:
        return isinstance(value, list)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is NoneType:
        return value is None
    if kind is str:
        return type(value) in (str, int)  # study=2026
    if hasattr(kind, "__annotations__"):  # a class that declares keys
        return isinstance(value, Mapping)
    return type(value) is kind  # bool is an int to isinstance


def describe(kind: Any) -> str:
    """Say in words what values an annotation allows."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        limits = " ".join(str(limit) for limit in arguments[1:])
        return f"{describe(arguments[0])} {limits}"
    if origin in (Union, UnionType):
        return " or ".join(describe(one) for one in arguments)
    if origin is Literal:
        return f"{'one of ' * (len(arguments) > 1)}{', '.join(map(str, arguments))}"
    if origin is list:
        return f"a list [...] of: {describe(arguments[0])}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return words.get(kind, "null" if kind is NoneType else "settings of a group")
