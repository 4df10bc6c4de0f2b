"""The drafters that an evaluation compares: a folder each, perhaps run otherwise than trained.

A variant in a config is a dict:

    {"name": "k = 4", "drafter": "embedded:tiger", "selector": "", "routed_tokens": 4}

`drafter` is embedded:tiger, embedded:full or, of a head, embedded:METHOD (the package's own),
run:NAME (what the training run NAME exported, RUNS/NAME/export), or any other folder. selector ""
and routed_tokens 0, which may be left out, mean what the folder says. "oracle": True routes by the
verifier's own attention on the text to come, which only an exact evaluation can know: what a
perfect router would give.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.typing import DTypeLike

from tiger_jax import embedded
from tiger_jax.embedded import VLM
from tiger_jax.errors import UserError
from tiger_jax.head_loading import choose_head_router
from tiger_jax.pipeline import Pipeline, choose_router
from tiger_jax.routing.router import RouterConfig
from tiger_jax.weights.head_io import read_head
from tiger_jax.weights.router_io import read_router

RUN, EMBEDDED = "run:", "embedded:"
_MODELS = {"tiger": None, "full": "full"}
"""Small models of an embedded pair: their names, and the selectors that they were trained for."""
_DEFAULTS = {"selector": "", "routed_tokens": 0, "oracle": False}
_FIELDS = ("name", "drafter", *_DEFAULTS)


@dataclasses.dataclass(frozen=True)
class Variant:
    """A drafter that can be loaded, and how it sees pictures."""

    name: str
    folder: Path
    selector: str | None
    """As asked for; None: as the folder says."""
    routed_tokens: int | None
    router: RouterConfig | None
    """What it is run with; None for a head that does not route."""
    trained: RouterConfig | None
    """What its folder says; None for a folder without a router."""
    kind: str = VLM
    """vlm, or the method of a head."""
    visual: str = ""
    """What a head sees of the pictures; "" = as the router says."""
    parameters: int | None = None
    """Trained ones of a head."""
    oracle: bool = False
    """Routed by the verifier's attention instead."""

    def load(self, verifier: str | Path, draft_length: int, dtype: DTypeLike) -> Pipeline:
        """The pair. Raises UserError."""
        return Pipeline.load(
            verifier, self.folder, draft_length=draft_length, dtype=dtype, selector=self.selector,
            routed_tokens=self.routed_tokens,
        )  # fmt: skip

    @property
    def routed(self) -> int | None:
        """k; None where nothing is routed."""
        return self.router.routed_tokens if self.routes else None

    @property
    def routes(self) -> bool:
        """Whether it sees a few tokens that a router chose."""
        return self.router is not None and self.router.routes

    @property
    def sees(self) -> str:
        """How it sees pictures, in one word."""
        return self.visual if not self.routes and self.visual else self.router.selector

    @property
    def pooled(self) -> int | None:
        """Pooled tokens a picture in the stream; None where there are none."""
        return self.router.pooled_tokens if self.routes and self.kind == VLM else None


def find(
    wanted: Sequence[Mapping[str, Any]],
    more: Sequence[str],
    runs: str,
    skip_missing: bool = False,
    pair: str = embedded.PAIRS[0],
) -> tuple[list[Variant], list[str]]:
    """Look everything up before any work is done: (variants, names of those left out).

    Args:
        wanted: variants as configs write them.
        more: further folders, each a variant as its folder says, named after it.
        runs: the folder that `run:NAME` looks in.
        skip_missing: leave those of `wanted` that have no folder out, instead of raising.
        pair: whose drafters `embedded:NAME` are.

    Raises:
        UserError: a missing folder, an unknown selector, one that the folder has no weights for, or
            nothing left to compare.
    """
    asked = [*wanted, *({"name": _short_name(folder), "drafter": folder} for folder in more)]
    check(asked)
    found, missing = [], []
    for number, fields in enumerate(asked):
        may_lack = skip_missing and number < len(wanted)
        try:
            path = folder(fields["drafter"], runs, pair)
        except UserError:
            if not may_lack:
                raise
            path = None
        if may_lack and (path is None or not path.is_dir()):
            missing.append(fields["name"])
        else:
            found.append(_variant(_DEFAULTS | dict(fields), path))
    if not found:
        raise UserError(f"variants: expected at least one with a folder, got {', '.join(missing)}")
    return found, missing


def check(wanted: Sequence[Mapping[str, Any]]) -> None:
    """UserError for the first variant that is written wrongly; looks at no folder."""
    if not wanted:
        raise UserError("variants: expected at least one, got none")
    for fields in wanted:
        if unknown := sorted(set(fields) - set(_FIELDS)):
            raise UserError(
                f"variants: expected only the fields {', '.join(_FIELDS)}, got {', '.join(unknown)}"
            )
        for name in ("name", "drafter"):
            if not fields.get(name):
                raise UserError(f"variants: expected a {name} in each, got {dict(fields)}")
    names = [fields["name"] for fields in wanted]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"variants: expected different names, got {twice[0]} twice")


def folder(drafter: str, runs: str, pair: str = embedded.PAIRS[0]) -> Path:
    """Where a variant's drafter lies. Raises UserError for one that the pair has not."""
    if drafter.startswith(RUN):
        return Path(runs) / drafter.removeprefix(RUN) / "export"
    if not drafter.startswith(EMBEDDED):
        return Path(drafter)
    name = drafter.removeprefix(EMBEDDED)
    if name in _MODELS:
        return embedded.drafter(_MODELS[name], VLM, pair)
    return embedded.drafter(kind=name, pair=pair)


def _variant(fields: Mapping[str, Any], path: Path) -> Variant:
    if not path.is_dir():
        raise UserError(f"variant {fields['name']}: expected a drafter's folder, got {path}")
    selector, routed_tokens = fields["selector"] or None, fields["routed_tokens"] or None
    try:
        head = read_head(path)
        if head is not None:
            if fields["oracle"]:
                raise UserError("oracle: expected a model as drafter, got a head")
            return Variant(
                fields["name"], path, selector, routed_tokens,
                choose_head_router(head, selector, routed_tokens), head.router,
                kind=head.method, visual=head.config.visual,
                parameters=sum(leaf.size for leaf in jax.tree.leaves(head.params)),
            )  # fmt: skip
        kept = read_router(path)
        trained = kept and kept[0]
        router = choose_router(trained, selector, routed_tokens)
    except UserError as error:
        raise UserError(f"variant {fields['name']}: {error}") from None
    return Variant(
        fields["name"],
        path,
        selector,
        routed_tokens,
        router,
        trained,
        oracle=bool(fields["oracle"]),
    )


def _short_name(drafter: str) -> str:
    """The run's name of runs/NAME/export, the last part of any other path."""
    path = Path(drafter.removeprefix(RUN))
    return path.parent.name if path.name == "export" else path.name
