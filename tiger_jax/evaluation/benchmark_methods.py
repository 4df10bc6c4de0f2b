"""The ways to answer that a benchmark compares: the verifier, pairs, and drafters alone."""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiger_jax import embedded
from tiger_jax.errors import UserError
from tiger_jax.evaluation import variants
from tiger_jax.evaluation.benchmark_config import PLAIN
from tiger_jax.evaluation.exact_report import identity
from tiger_jax.evaluation.variants import Variant
from tiger_jax.pipeline import Pipeline
from tiger_jax.weights import head_io
from tiger_jax.weights.fingerprint import fingerprint

CONFIG = "config.json"
BESIDE = ("tokenizer*", "*processor*.json", "*_template*", "vocab.*", "merges.txt",
          "*_tokens*.json", "generation_config.json", "tiger_config.json")  # fmt: skip
"""Files beside the weights that prompts and answers depend on."""
MODEL = "model:"
"""Before `tiger` and `full` in a variant's drafter: those that the config's fields name."""


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to answer."""

    name: str
    variant: Variant | None = None
    """None: the verifier alone."""
    alone: bool = False
    """The drafter answers by itself; nothing is verified."""

    def load(self, verifier: Pipeline, draft_length: int) -> Pipeline:
        """The verifier with this method's drafter. Raises UserError."""
        if self.variant is None:
            return verifier
        return verifier.with_drafter(
            self.variant.folder, draft_length=draft_length, selector=self.variant.selector,
            routed_tokens=self.variant.routed_tokens,
        )  # fmt: skip

    def facts(self, verifier: Path) -> dict:
        """What a row says of it. Raises UserError."""
        if self.variant is None:
            return {
                "variant": self.name, "drafter": None, "verifier": str(verifier),
                "drafter_kind": None, "selector": None, "k": None, "pooled": None, "query": None,
                "trained_k": None, "alone": False, "weights": None,
            }  # fmt: skip
        facts = identity(self.variant, verifier)
        facts.pop("parameters")
        return facts | {"alone": self.alone, "weights": weights_name(self.variant.folder)}


def find(config: Any) -> tuple[list[Method], list[str]]:
    """(methods in the config's order, names of those left out). Raises UserError."""
    wanted = [dict(fields) for fields in config.variants]
    alone = {fields.get("name"): bool(fields.pop("alone", False)) for fields in wanted}
    plain = [fields for fields in wanted if fields.get("name") == PLAIN]
    drafting = [_resolved(config, fields) for fields in wanted if fields.get("name") != PLAIN]
    found, missing = [], []
    if drafting:
        found, missing = _find(config, drafting)
    methods = [Method(PLAIN) for _ in plain[:1]]
    for variant in found:
        for each in _by_k(variant, config.routed_tokens):
            if alone[variant.name] and variant.kind != embedded.VLM:
                missing.append(f"{variant.name} (a head cannot answer alone)")
            else:
                methods.append(Method(each.name, each, alone[variant.name]))
    if not methods:
        raise UserError(f"variants: expected at least one with a folder, got {', '.join(missing)}")
    return methods, missing


def weights_name(folder: Path) -> str:
    """A fingerprint of a model or a head with its processor and router; of an Orbax folder, which
    has none, its path."""
    try:
        name = fingerprint(folder, head_io.CONFIG_FILE if head_io.is_head(folder) else CONFIG)
    except UserError:
        return str(folder.resolve())
    beside = hashlib.sha256(name.encode())
    for path in sorted({path for form in BESIDE for path in folder.glob(form)}):
        beside.update(path.name.encode() + b"\0" + path.read_bytes())
    return beside.hexdigest()[:16]


def _find(config: Any, drafting: list[dict]) -> tuple[list[Variant], list[str]]:
    """As variants.find; with `skip_missing`, none may be left."""
    variants.check(drafting)
    found, missing = [], []
    for fields in drafting:
        try:
            more, left = variants.find([fields], (), config.runs, False, config.pair)
        except UserError:
            if not (config.skip_missing and _has_no_folder(config, fields["drafter"])):
                raise
            more, left = [], [fields["name"]]
        found += more
        missing += left
    return found, missing


def _has_no_folder(config: Any, drafter: str) -> bool:
    try:
        return not variants.folder(drafter, config.runs, config.pair).is_dir()
    except UserError:  # an embedded one that this pair does not have
        return True


def _resolved(config: Any, fields: Mapping[str, Any]) -> dict:
    """With the folder that the config gives for model:tiger or model:full."""
    drafter = fields.get("drafter", "")
    if not drafter.startswith(MODEL):
        return dict(fields)
    name = drafter.removeprefix(MODEL)
    given = {"tiger": config.tiger, "full": config.drafter}
    if name not in given:
        raise UserError(f"variants: expected model:tiger or model:full, got {drafter}")
    return dict(fields) | {"drafter": given[name] or f"{variants.EMBEDDED}{name}"}


def _by_k(variant: Variant, routed_tokens: tuple[int, ...]) -> list[Variant]:
    """The variant with each number of routed tokens, where it routes and does not say how many."""
    if not (routed_tokens and variant.routes and variant.routed_tokens is None):
        return [variant]
    return [
        dataclasses.replace(
            variant, name=f"{variant.name}, k = {k}", routed_tokens=k,
            router=dataclasses.replace(variant.router, routed_tokens=k),
        )
        for k in routed_tokens
    ]  # fmt: skip
