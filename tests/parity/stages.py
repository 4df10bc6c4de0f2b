"""Every stage of models.md 10.1 on both sides, by name and in order, and the error of each."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from pairs import Pair
from PIL import Image

from tiger_jax.data.batches import PromptBatch, PromptInputs, batch_prompts, make_prompt
from tiger_jax.models.interface import Params, VisionLanguageModel

GATE = 5e-6
"""Largest relative L2 error of a stage in float32."""
Stages = dict[str, np.ndarray]


def relative_l2(got: np.ndarray, wanted: np.ndarray) -> float:
    assert got.shape == wanted.shape
    return float(np.linalg.norm(got - wanted) / max(np.linalg.norm(wanted), 1e-30))


def stage_errors(got: Stages, wanted: Stages) -> dict[str, float]:
    """Relative L2 error of each stage, in order; infinite where shapes differ."""
    return {name: _error(got.get(name), wanted[name]) for name in wanted}


def _error(got: np.ndarray | None, wanted: np.ndarray) -> float:
    same = got is not None and got.shape == wanted.shape
    return relative_l2(got, wanted) if same else float("inf")


def first_failure(errors: dict[str, float], gate: float = GATE) -> str | None:
    """The first stage beyond the gate; NaN is beyond it."""
    return next((name for name, error in errors.items() if not error <= gate), None)


def reference_inputs(pair: Pair, text: str | list[str], images: Sequence[Image.Image]) -> dict:
    return dict(pair.reference_processor(
        text=text, images=list(images) or None, return_tensors="pt",
        padding=isinstance(text, list),
    ))  # fmt: skip


@torch.no_grad()
def reference_stages(pair: Pair, text: str, images: Sequence[Image.Image]) -> Stages:
    """Forward hooks on transformers' modules; only the blocks that the chosen layers need."""
    core = pair.reference.model
    tower, decoder = core.vision_tower, core.language_model
    seen: dict[str, torch.Tensor] = {}
    hooks = []

    def keep(name: str, module: torch.nn.Module, first_input: bool = False) -> None:
        def hook(_, inputs, output):
            value = inputs[0] if first_input else output
            seen[name] = value[0] if isinstance(value, tuple) else value

        hooks.append(module.register_forward_hook(hook))

    keep("patch rows", tower.embeddings.patch_embedding)
    keep("pre norm", tower.pre_layrnorm)
    for i in range(_last_block(pair)):
        keep(f"block {i}", tower.encoder.layers[i])
    keep("selected", core.multi_modal_projector, first_input=True)
    keep("projected", core.multi_modal_projector)
    keep("merged", decoder.layers[0], first_input=True)
    for i, layer in enumerate(decoder.layers):
        keep(f"layer {i}", layer)
    keep("final norm", decoder.norm)
    inputs = reference_inputs(pair, text, images)
    try:
        logits = pair.reference(**inputs).logits
    finally:
        for hook in hooks:
            hook.remove()

    stages: Stages = {"token ids": inputs["input_ids"][0].numpy()}
    if images:
        sizes = inputs["image_sizes"]
        stages["image sizes"] = sizes.numpy()
        packed = core.get_image_features(inputs["pixel_values"], sizes).pooler_output
        pixels = inputs["pixel_values"].flatten(0, 1)
        pixels = pixels[pixels.flatten(1).any(dim=1)]  # without the tiles that pad a picture's row
        stages["tiles"] = pixels.permute(0, 2, 3, 1).numpy()
        seen["patch rows"] = seen["patch rows"].flatten(2).transpose(1, 2)
        for name in ("patch rows", "pre norm", *_blocks(pair), "selected", "projected"):
            stages[name] = seen[name].float().numpy()
        stages |= {f"packed {i}": rows.float().numpy() for i, rows in enumerate(packed)}
    for name in ("merged", *(f"layer {i}" for i in range(len(decoder.layers))), "final norm"):
        stages[name] = seen[name][0].float().numpy()
    stages["logits"] = logits[0].float().numpy()
    return stages


def make_prompts(
    pair: Pair, cases: Sequence[tuple[str, Sequence[Image.Image]]]
) -> list[PromptInputs]:
    return [make_prompt(pair.processor, pair.config, text, images) for text, images in cases]


def our_stages(
    pair: Pair, cases: Sequence[tuple[str, Sequence[Image.Image]]], *,
    model: VisionLanguageModel | None = None, params: Params | None = None,
    prompts: Sequence[PromptInputs] | None = None, seq_bucket: int = 256, tile_bucket: int = 16,
    program: Callable | None = None,
) -> list[Stages]:  # fmt: skip
    """The same stages of one padded batch, cut into its prompts.

    model, params and prompts take the place of the pair's own, for mutations.
    """
    model = model or pair.model
    prompts = prompts or make_prompts(pair, cases)
    no_tiles = not any(len(prompt.tiles) for prompt in prompts)
    batch = batch_prompts(prompts, pair.config, seq_bucket, 0 if no_tiles else tile_bucket)
    captured = jax.device_get((program or PROGRAM)(model, params or pair.params, *_arrays(batch)))
    stages, first = [], 0
    for row, (prompt, (_, images)) in enumerate(zip(prompts, cases, strict=True)):
        tiles = slice(first, first + len(prompt.tiles))
        counts = [pair.processor.tiles(image) for image in images]
        stages.append(_cut(pair, captured, batch, row, tiles, counts))
        first = tiles.stop
    return stages


def run_stages(model, params, tokens, image_rows, tiles):
    """One pass with every module's output kept."""
    out, table = {}, None
    if tiles is not None:
        table, kept = model.module.apply(
            {"params": params}, tiles.astype(model.dtype), method="encode_images",
            capture_intermediates=lambda _, name: name in ("__call__", "vision_features"),
            mutable=["intermediates"],
        )  # fmt: skip
        kept = kept["intermediates"]
        tower = kept["vision_tower"]
        out["patch rows"] = tower["patch_embedding"]["__call__"][0]
        out["pre norm"] = tower["pre_norm"]["__call__"][0]
        for name in sorted(key for key in tower if key.startswith("layers_")):
            out[f"block {name.removeprefix('layers_')}"] = tower[name]["__call__"][0]
        out["selected"] = kept["vision_features"][0]
        out["projected"] = kept["projector"]["__call__"][0]
        out["table"] = table
    out["merged"] = model.embed(params, tokens, image_rows, table)
    layers = model.config.text.num_layers
    cache = model.init_cache(*tokens.shape)
    hidden, _, taps = model.prefill(params, out["merged"], cache, tuple(range(1, layers + 1)))
    for i, tap in enumerate(jnp.split(taps, layers, axis=-1)):
        out[f"layer {i}"] = tap
    out["final norm"] = hidden
    out["logits"] = model.logits(params, hidden)
    return jax.tree.map(lambda x: x.astype(jnp.float32), out)


PROGRAM = jax.jit(run_stages, static_argnames="model")


def fresh_program() -> Callable:
    """`PROGRAM` without what was traced before, and compiled in half the time."""
    return jax.jit(
        lambda *args: run_stages(*args), static_argnums=0,
        compiler_options={"xla_backend_optimization_level": 0},
    )  # fmt: skip


def _arrays(batch: PromptBatch) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    tiles = jnp.asarray(batch.tiles) if len(batch.tiles) else None
    return jnp.asarray(batch.tokens), jnp.asarray(batch.image_rows), tiles


def _cut(pair, captured, batch: PromptBatch, row: int, tiles: slice, pictures) -> Stages:
    """One prompt's own tiles and tokens."""
    length = int(batch.lengths[row])
    stages = {"token ids": batch.tokens[row, :length]}
    if pictures:
        stages["image sizes"] = np.array([size for _, size in pictures])
        stages["tiles"] = batch.tiles[tiles]
        names = [name for name in captured if name.startswith("block")]
        for name in ("patch rows", "pre norm", *names, "selected", "projected"):
            stages[name] = captured[name][tiles]
        image_rows = batch.image_rows[row, :length]
        starts_and_ends = np.flatnonzero(np.diff(image_rows >= 0, prepend=False, append=False))
        for i, (start, end) in enumerate(starts_and_ends.reshape(-1, 2)):
            stages[f"packed {i}"] = captured["table"][image_rows[start:end]]
    decoder = [name for name in captured if name.startswith("layer")]
    for name in ("merged", *decoder, "final norm", "logits"):
        stages[name] = captured[name][row, :length]
    return stages


def _last_block(pair: Pair) -> int:
    """Blocks that run: the deepest chosen hidden state is the output of the last of them."""
    states = pair.reference.config.vision_config.num_hidden_layers + 1
    chosen = pair.reference.config.vision_feature_layer
    return max(layer % states for layer in ([chosen] if isinstance(chosen, int) else chosen))


def _blocks(pair: Pair) -> list[str]:
    return [f"block {i}" for i in range(_last_block(pair))]
