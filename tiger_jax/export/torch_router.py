"""The router of an exported drafter in PyTorch.

R: bank rows, k: routed tokens, H: heads of a look, D: width, E: width of queries and keys.

It computes what routing/router.py computes for one state and one bank, from the same two files.
Selectors that need no trained weights, and `full`, have no place in it and are refused.
"""

import dataclasses
import json
from pathlib import Path

from jaxtyping import Float, Int

from tiger_jax.data.visual_stream import POOLED_TOKENS
from tiger_jax.errors import UserError
from tiger_jax.models.config_reader import read_json
from tiger_jax.weights import safetensors_io

try:
    import safetensors.torch
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
except ImportError as error:
    raise UserError(
        f"torch_router: expected torch (pip install 'tiger_jax[export]'), got: {error}"
    ) from error

CONFIG_FILE = "tiger_config.json"
WEIGHTS_FILE = "tiger_router.safetensors"
LOOK_HEADS = 4
_ALLOWED = {
    "format_version": (1,),
    "selector": ("tiger", "image_only"),
    "pooled_tokens": POOLED_TOKENS,
    "query": ("visual", "text_only"),
    "gate": ("none", "straight_through", "sigmoid"),
}


@dataclasses.dataclass(frozen=True)
class RouterOptions:
    """tiger_config.json; routing/router.py says what each field means."""

    format_version: int = 1
    selector: str = "tiger"
    routed_tokens: int = 8
    pooled_tokens: int = 1
    query: str = "visual"
    looks: int = 0
    gate: str = "none"
    width: int = 0

    @classmethod
    def from_folder(cls, folder: str | Path) -> "RouterOptions":
        """Read a folder's options. Raises UserError, also for what this module does not compute."""
        file = Path(folder) / CONFIG_FILE
        if not file.is_file():
            raise UserError(
                f"{folder}: expected {CONFIG_FILE}, found none: a drafter that sees every visual "
                "token needs transformers alone"
            )
        fields = read_json(file)
        kinds = {field.name: type(field.default) for field in dataclasses.fields(cls)}
        for name, got in fields.items():
            if name not in kinds:
                raise UserError(f"{file}: expected only the fields {', '.join(kinds)}, got {name}")
            if type(got) is not kinds[name] or (kinds[name] is int and got < 0):
                kind = "a text" if kinds[name] is str else "a whole number"
                raise UserError(f"{file}: {name}: expected {kind}, got {got!r}")
            if name in _ALLOWED and got not in _ALLOWED[name]:
                choices = ", ".join(map(str, _ALLOWED[name]))
                raise UserError(f"{file}: {name}: expected one of {choices}, got {got!r}")
        return cls(**fields)


class Router(nn.Module):
    """Scores of the bank; parameters are named as in tiger_router.safetensors, and float32."""

    def __init__(self, width: int, options: RouterOptions) -> None:
        super().__init__()
        self.options = options
        inner = options.width or width
        self.query = nn.Linear(width, inner, bias=False)
        self.key = nn.Linear(width, inner, bias=False)
        self.saliency = nn.Parameter(torch.zeros(inner))
        for look in range(options.looks):
            names = ("query", "key", "value")
            parts = {name: nn.Linear(width, inner, bias=False) for name in names}
            parts["out"] = nn.Linear(inner, width, bias=False)
            self.add_module(f"look_{look}", nn.ModuleDict(parts))

    @classmethod
    def from_folder(cls, folder: str | Path, width: int) -> "Router":
        """Read both files; `width` is the drafter's. Raises UserError for files that do not fit."""
        router = cls(width, RouterOptions.from_folder(folder))
        file = Path(folder) / WEIGHTS_FILE
        try:
            router.load_state_dict(safetensors.torch.load_file(file))
        except (OSError, RuntimeError, safetensors.SafetensorError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{file}: does not fit the drafter ({reason})") from None
        return router

    def save(self, folder: str | Path) -> None:
        """Write both files into a folder that exists."""
        text = json.dumps(dataclasses.asdict(self.options), indent=2)
        (Path(folder) / CONFIG_FILE).write_text(text + "\n")
        weights = {name: value.float().cpu().numpy() for name, value in self.state_dict().items()}
        safetensors_io.write_small(Path(folder) / WEIGHTS_FILE, weights)

    def choose(self, scores: Float[Tensor, " R"]) -> Int[Tensor, " k"]:
        """The best rows, ascending; ties go to the lower row."""
        best = torch.sort(scores.detach(), descending=True, stable=True).indices
        return best[: self.options.routed_tokens].sort().values

    def gate(
        self, tokens: Float[Tensor, "k D"], scores: Float[Tensor, " R"], indices: Int[Tensor, " k"]
    ) -> Float[Tensor, "k D"]:
        """Routed tokens, multiplied by what lets a gradient through to the scores."""
        if self.options.gate == "none":
            return tokens
        weight = scores.sigmoid()
        if self.options.gate == "straight_through":
            law = scores.softmax(dim=-1)
            weight = 1 + law - law.detach()
        return tokens * weight[indices, None].to(tokens.dtype)

    def forward(
        self, hidden: Float[Tensor, " D"], bank: Float[Tensor, "R D"]
    ) -> Float[Tensor, " R"]:
        """How well each bank row fits the state at the root, float32."""
        if self.options.selector == "image_only":
            query = self.saliency.float()
        else:
            query = _project(self._look_over(hidden.float(), bank), self.query)
        return _project(bank, self.key) @ query * query.shape[-1] ** -0.5

    def _look_over(self, state: Float[Tensor, " D"], bank: Float[Tensor, "R D"]) -> Tensor:
        """The state after its looks at the whole bank."""
        for number in range(self.options.looks):
            look = self.get_submodule(f"look_{number}")
            query = _project(state, look["query"]).reshape(LOOK_HEADS, -1)
            keys, values = (
                _project(bank, look[name]).reshape(len(bank), *query.shape)
                for name in ("key", "value")
            )
            scores = torch.einsum("hd,rhd->hr", query, keys) * query.shape[-1] ** -0.5
            seen = torch.einsum("hr,rhd->hd", scores.softmax(dim=-1), values)
            state = state + _project(seen.flatten(), look["out"])
        return state


def _project(x: Tensor, layer: nn.Linear) -> Tensor:
    """In float32 whatever the model computes in: the choice must not turn on rounding."""
    return functional.linear(x.float(), layer.weight.float())
