"""Every stage of models.md 10.1 of Qwen3-VL on both sides, by name and in order.

B: prompts, S: tokens, N: frames of the batch, P: patches of a padded frame.

Stages of the tower hold a prompt's frames in the order of the prompt, whatever order the side runs
them in, and real patches only.
"""

from collections.abc import Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from qwen3_vl_pairs import MERGE, Batch, Prompt, Qwen3VLPair, batch_prompts, reference_inputs
from stages import Stages
from transformers.vision_utils import get_vision_interpolation_indices_and_weights

from tiger_jax.models.interface import Params, VisionLanguageModel
from tiger_jax.ops.rotary import rope_deltas

LENGTH, FRAMES, PATCHES = 192, 8, 384
"""The shape that one compiled program serves all cases in."""


@torch.no_grad()
def reference_stages(pair: Qwen3VLPair, prompts: Sequence[Prompt]) -> list[Stages]:
    """Forward hooks on transformers' modules, cut into prompts; its own padding is on the left."""
    core = pair.reference.model
    tower, decoder = core.visual, core.language_model
    seen: dict[str, list] = {}
    hooks = []

    def keep(name: str, module: torch.nn.Module, pick: Callable = lambda _, output: output):
        def hook(_, inputs, output):
            seen.setdefault(name, []).append(pick(inputs, output))

        hooks.append(module.register_forward_hook(hook))

    def entering(inputs, _):
        return inputs[0]

    keep("patch embed", tower.patch_embed)
    keep("embedded", tower.blocks[0], entering)
    keep("vision rope", tower.rotary_pos_emb, lambda _, output: torch.cat(output, -1))
    for i, block in enumerate(tower.blocks):
        keep(f"block {i}", block)
    for i, merger in enumerate(tower.deepstack_merger_list):
        keep(f"tap {i}", merger)
    keep("merger", tower.merger)
    keep("positions", decoder.rotary_emb, lambda inputs, _: inputs[1].movedim(0, -1))
    keep("text rope", decoder.rotary_emb, lambda _, output: torch.cat(output, -1))
    for i, layer in enumerate(decoder.layers):
        # what enters the next layer has its tap added
        after = decoder.layers[i + 1] if i + 1 < len(decoder.layers) else decoder.norm
        keep("merged" if i == 0 else f"layer {i - 1}", layer, entering)
        keep(f"layer {i} before", layer)
    keep(f"layer {i}", after, entering)
    keep("final norm", decoder.norm)
    inputs = reference_inputs(prompts)
    core.rope_deltas = None  # else what an earlier prompt left would be used
    try:
        seen["logits"] = [pair.reference(**inputs).logits]
    finally:
        for hook in hooks:
            hook.remove()
    if core.rope_deltas is not None:
        seen["delta"] = [core.rope_deltas]
    if grids := [inputs[k] for k in ("image_grid_thw", "video_grid_thw") if k in inputs]:
        seen["position embedding"] = [_reference_positions(tower, grid) for grid in grids]
    return _cut_reference(prompts, {name: [x.float().numpy() for x in calls]
                                    for name, calls in seen.items()})  # fmt: skip


def _reference_positions(tower: torch.nn.Module, grid: torch.Tensor) -> torch.Tensor:
    """As the tower's forward has it, cast included; no module gives it alone."""
    indices, weights = get_vision_interpolation_indices_and_weights(
        grid, num_grid_per_side=tower.num_grid_per_side, mode=tower.interpolation_mode,
        align_corners=tower.interpolation_align_corners, spatial_merge_size=MERGE,
    )  # fmt: skip
    positions = (tower.pos_embed(indices) * weights[:, :, None]).sum(1)
    return positions.to(tower.pos_embed.weight.dtype)


def _cut_reference(prompts: Sequence[Prompt], seen: dict[str, list[np.ndarray]]) -> list[Stages]:
    """transformers runs all pictures of a batch, then all videos; a prompt mixes them."""
    ran = [(b, f) for b, prompt in enumerate(prompts) for f in prompt.images]
    ran += [(b, f) for b, prompt in enumerate(prompts) for own in prompt.videos for f in own]
    counts = [int(prompts[b].frames.counts[f]) for b, f in ran]
    stages = []
    for b, prompt in enumerate(prompts):
        own: Stages = {"token ids": prompt.tokens}
        if len(prompt.frames):
            order = [ran.index((b, f)) for f in range(len(prompt.frames))]
            for name in tower_stages(seen):
                rows = np.concatenate(seen[name])
                ends = np.cumsum(counts) // (sum(counts) // len(rows))
                parts = np.split(rows, ends[:-1])
                own[name] = np.concatenate([parts[i] for i in order])
        for name in decoder_stages(seen):
            rows = seen[name][0]  # positions and rope of texts are there once for all of them
            own[name] = rows[b if len(rows) > 1 else 0, -len(prompt.tokens) :]
            if name == "positions":  # a batch of texts has no delta there
                own["delta"] = seen["delta"][0][b] if "delta" in seen else np.zeros(1)
        stages.append(own)
    return stages


def tower_stages(names: Iterable[str]) -> list[str]:
    """Those of the tower and the mergers, in order."""
    blocks = _numbered(names, "block {}")
    taps = _numbered(names, "tap {}")
    first = ["patch embed", "position embedding", "embedded", "vision rope"]
    return [*first, *blocks, *taps, "merger"]


def decoder_stages(names: Iterable[str]) -> list[str]:
    """Those behind the tower that have one row a token, in order."""
    layers = _numbered(names, "layer {}")
    pairs = [name for layer in layers for name in (f"{layer} before", layer)]
    return ["merged", "positions", "text rope", *pairs, "final norm", "logits"]


def _numbered(names: Iterable[str], pattern: str) -> list[str]:
    count = 0
    while pattern.format(count) in names:
        count += 1
    return [pattern.format(i) for i in range(count)]


def our_stages(
    pair: Qwen3VLPair, prompts: Sequence[Prompt], *, model: VisionLanguageModel | None = None,
    params: Params | None = None, batch: Batch | None = None, program: Callable | None = None,
) -> list[Stages]:  # fmt: skip
    """The same stages of one padded batch, cut into its prompts.

    model, params and batch take the place of the pair's own, for mutations.
    """
    shown = any(len(prompt.frames) for prompt in prompts)
    batch = batch or batch_prompts(prompts, LENGTH, FRAMES if shown else 0, PATCHES)
    captured = (program or PROGRAM)(model or pair.model, params or pair.params, *arrays(batch))
    captured = jax.device_get(captured)
    deltas = rope_deltas(jnp.asarray(batch.positions), jnp.asarray(batch.lengths))
    stages, first = [], 0
    for b, prompt in enumerate(prompts):
        own: Stages = {"token ids": batch.tokens[b, : len(prompt.tokens)]}
        if len(prompt.frames):
            frames = range(first, first + len(prompt.frames))
            for name in tower_stages(captured):
                own[name] = _real_rows(captured[name], batch, frames)
        for name in decoder_stages(captured):
            own[name] = captured[name][b, : len(prompt.tokens)]
            if name == "positions":
                own["delta"] = np.asarray(deltas[b : b + 1])
        stages.append(own)
        first += len(prompt.frames)
    return stages


def _real_rows(rows: np.ndarray, batch: Batch, frames: Sequence[int]) -> np.ndarray:
    share = batch.frames.patches.shape[1] // rows.shape[1]  # 4 behind a merger
    return np.concatenate([rows[f, : batch.frames.counts[f] // share] for f in frames])


def arrays(batch: Batch) -> tuple:
    """tokens, positions, image rows and frames on the device; no rows and frames where none are."""
    tokens, positions = jnp.asarray(batch.tokens), jnp.asarray(batch.positions)
    if not len(batch.frames):
        return tokens, positions, None, None
    return tokens, positions, jnp.asarray(batch.image_rows), jax.tree.map(jnp.asarray, batch.frames)


def run_stages(model, params, tokens, positions, image_rows, frames):
    """One pass with every module's output kept."""
    out, table = {}, None
    if frames is not None:
        table, kept = _capture(
            model, params, "encode_images", frames.astype(model.dtype),
            names=("__call__", "positions", "embed", "_rope"),
        )  # fmt: skip
        out |= _tower(kept)
    x = model.embed(params, tokens, image_rows, table)
    out["merged"] = x[..., : model.config.text.hidden_size]
    out["positions"] = positions

    def prefill(module):
        layers = model.config.text.num_layers
        cache = model.init_cache(*tokens.shape)
        return module.language_model.prefill(x, positions, cache, tuple(range(1, layers + 1)))

    (hidden, _, taps), kept = _capture(model, params, prefill, names=("finish", "_rope"))
    kept = kept["language_model"]
    out["text rope"] = jnp.concatenate(kept["_rope"][0], axis=-1)
    for i, after in enumerate(jnp.split(taps, model.config.text.num_layers, axis=-1)):
        out[f"layer {i} before"] = kept[f"layers_{i}"]["finish"][0]
        out[f"layer {i}"] = after
    out["final norm"] = hidden
    out["logits"] = model.logits(params, hidden)
    return jax.tree.map(lambda x: x.astype(jnp.float32), out)


def _capture(model, params, method, *args, names):
    result, kept = model.module.apply(
        {"params": params}, *args, method=method, mutable=["intermediates"],
        capture_intermediates=lambda _, name: name in names,
    )  # fmt: skip
    return result, kept["intermediates"]


def _tower(kept):
    tower = kept["vision_tower"]
    out = {
        "patch embed": tower["patch_embedding"]["__call__"][0],
        "position embedding": tower["positions"][0],
        "embedded": tower["embed"][0],
        "vision rope": jnp.concatenate(tower["_rope"][0], axis=-1),
        "merger": kept["merger"]["__call__"][0],
    }
    blocks = (name for name in tower if name.startswith("layers_"))
    out |= {name.replace("layers_", "block "): tower[name]["__call__"][0] for name in blocks}
    taps = [name for name in kept if name.startswith("deepstack_mergers_")]
    return out | {f"tap {name.split('_')[-1]}": kept[name]["__call__"][0] for name in taps}


PROGRAM = jax.jit(run_stages, static_argnames="model")
