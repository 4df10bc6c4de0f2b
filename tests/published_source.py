"""Functions of transformers whose modules import only where torchvision is installed."""

import ast
import importlib.util
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np


def from_source(module: str, name: str) -> Callable:
    """The function `name` of a file below transformers, without its annotations and defaults."""
    package = importlib.util.find_spec("transformers").submodule_search_locations[0]
    tree = ast.parse((Path(package) / module).read_text())
    function = next(x for x in ast.walk(tree) if getattr(x, "name", None) == name)
    function.returns, function.args.defaults = None, []
    for argument in function.args.args:
        argument.annotation = None
    space = {"math": math, "np": np}
    exec(compile(ast.Module([function], []), name, "exec"), space)
    return space[name]
