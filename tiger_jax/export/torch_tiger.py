"""An exported drafter in PyTorch: where it looks, and what it drafts.

R: bank rows, L: rows of the prefix stream, T: rows of a pass, k: routed tokens, g: draft tokens,
D: width, W: width of a row, A: axes of a position (torch_families.py), V: vocabulary.

A folder that training exports holds a model for transformers, `tiger_router.safetensors` and
`tiger_config.json`. This module puts the three together and runs one round of drafting for one
prompt in one causal pass, without a cache:

    [ stream: text, pooled tokens | committed text .. root | k routed | root | drafts ]

All weights are ordinary parameters and every output has a gradient, so training can go on here:

    tiger = TorchTiger.from_folder("runs/grpo/export", dtype=torch.float32)
    inputs = tiger.inputs("USER: <image>\\nWhat is this? ASSISTANT:", [picture])
    prompt = tiger.read(**inputs)                    # once for each update of the weights
    tokenizer = AutoTokenizer.from_pretrained("runs/grpo/export")
    text, answer = [], tokenizer.encode(" A red cube.", add_special_tokens=False)
    indices, scores, logits = tiger(prompt, text, answer)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(answer))
    tiger.save_folder("further")                     # opens here, in transformers and in tiger_jax

From the shell it prints the routed tokens of a picture and a question:

    python -m tiger_jax.export.torch_tiger --drafter DIR --image photo.jpg --prompt "What is this?"
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from PIL import Image

from tiger_jax.data.batches import TEXT, PromptInputs
from tiger_jax.data.images import load_image
from tiger_jax.data.processor import Processor
from tiger_jax.data.prompts import build_prompt
from tiger_jax.data.visual_stream import FIRST_POOLED, stream_inputs
from tiger_jax.errors import UserError
from tiger_jax.models.config import ModelConfig
from tiger_jax.models.config_reader import read_config

try:
    import torch
    import transformers
    from torch import Tensor, nn

    from tiger_jax.export.torch_families import FAMILIES, Picture, torch_inputs
    from tiger_jax.export.torch_router import Router
except ImportError as error:
    raise UserError(
        f"torch_tiger: expected torch (pip install 'tiger_jax[export]'), got: {error}"
    ) from error


class Prompt(NamedTuple):
    """One prompt as the drafter reads it."""

    stream: Float[Tensor, "L W"]
    """Embeddings of the text and of the pooled tokens in the pictures' places."""
    positions: Int[Tensor, "L *A"]
    """Rotary positions in the full prompt."""
    bank: Float[Tensor, "R W"]
    """The visual tokens, in the order of the full prompt."""
    bank_positions: Int[Tensor, "R *A"]
    next_position: int
    """Of the text behind the full prompt."""


class TorchTiger(nn.Module):
    """transformers' model (`vlm`) and the router of one drafter."""

    def __init__(self, vlm: nn.Module, router: Router, config: ModelConfig) -> None:
        super().__init__()
        self.vlm, self.router, self.config = vlm, router, config
        self.family = FAMILIES[type(config)](vlm, config)
        self.source: Path | None = None

    @classmethod
    def from_folder(cls, folder: str | Path, dtype: torch.dtype = torch.float32) -> "TorchTiger":
        """Read an exported drafter, in evaluation mode.

        Args:
            dtype: of the model; the router stays float32.

        Raises:
            UserError: no drafter with a router, weights that do not fit, or options that this
                module does not compute.
        """
        config = read_config(folder)
        router = Router.from_folder(folder, config.text.hidden_size)
        vlm, report = transformers.AutoModelForImageTextToText.from_pretrained(
            folder, dtype=dtype, output_loading_info=True
        )
        if faults := {kind: sorted(map(str, names)) for kind, names in report.items() if names}:
            raise UserError(f"{folder}: transformers reports {faults}")
        tiger = cls(vlm, router, config)
        tiger.source = Path(folder)
        return tiger.eval()

    def save_folder(self, folder: str | Path) -> None:
        """Write a folder like the one that was read."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for file in self.source.iterdir() if self.source else ():
            if file.is_file() and not file.name.endswith((".safetensors", ".index.json")):
                shutil.copyfile(file, folder / file.name)
        self.vlm.save_pretrained(folder)
        self.router.save(folder)

    def inputs(self, text: str, images: Sequence[Image.Image] = ()) -> dict[str, Tensor]:
        """What `read` takes, of a rendered prompt with pictures."""
        return torch_inputs(self.source, self.config, text, images)

    def read(self, input_ids: Int[Tensor, "1 S"], **others: Any) -> Prompt:
        """Encode the pictures of one prompt and lay out its stream and its bank.

        Args: as transformers' processor returns them, for one prompt.
        """
        tokens = input_ids[0].cpu().numpy().astype(np.int32)
        pictures = self.family.pictures(tokens, **others)
        full = self._layout(tokens, pictures)
        layout = stream_inputs(full, self.router.options.pooled_tokens, self.router.options.query)
        words = self._embed(layout.tokens)
        bank = torch.cat([*(picture.rows for picture in pictures), words[:0]]).to(words.dtype)
        visual = self._tensor(layout.visual)[:, None]
        pooled = self._pool(bank, self._tensor(layout.bank_regions))
        picked = pooled[(FIRST_POOLED - visual[:, 0]).clamp(min=0)]
        return Prompt(
            stream=torch.where(visual <= FIRST_POOLED, picked, words),
            positions=self._tensor(layout.positions),
            bank=bank,
            bank_positions=self._tensor(layout.bank_positions),
            next_position=full.next_position,
        )

    def _layout(self, tokens: np.ndarray, pictures: Sequence[Picture]) -> PromptInputs:
        """Where each token of the full prompt looked; raises UserError if pictures do not fit."""
        counts = [len(picture.rows) for picture in pictures]
        where = np.flatnonzero(np.isin(tokens, self.family.visual_ids))
        if len(where) != sum(counts):
            raise UserError(f"prompt: expected {sum(counts)} image tokens, got {len(where)}")
        rows, images = (np.full(len(tokens), TEXT, np.int32) for _ in range(2))
        places = np.full((len(tokens), 2), TEXT, np.float32)
        rows[where] = np.arange(len(where))
        images[where] = np.repeat(np.arange(len(counts)), counts)
        if pictures:
            places[where] = np.concatenate([picture.places for picture in pictures])
        positions = self.family.positions(tokens, pictures)
        none = np.zeros((0, 1, 1, 3), np.float32)
        return PromptInputs(tokens, rows, none, places, images, positions, tile_rows=1)

    def _pool(self, bank: Float[Tensor, "R W"], regions: Int[Tensor, " R"]) -> Tensor:
        """Mean token of each region, at least one row."""
        count = int(regions.max()) + 1 if len(regions) else 1
        sums = torch.zeros(count, bank.shape[1], device=bank.device)
        sums = sums.index_add(0, regions, bank.float())
        sizes = torch.bincount(regions, minlength=count).clamp(min=1)
        return (sums / sizes[:, None]).to(bank.dtype)

    def prefix(
        self, prompt: Prompt, text: Sequence[int] = ()
    ) -> tuple[Float[Tensor, "T W"], Int[Tensor, "T *A"]]:
        """Embeddings and positions of the stream and the text committed after it; the last of
        these rows is the root."""
        more = self._following(prompt, prompt.next_position, len(text))
        return torch.cat([prompt.stream, self._embed(text)]), torch.cat([prompt.positions, more])

    def _following(self, prompt: Prompt, first: int, count: int) -> Int[Tensor, "T *A"]:
        """Positions of text: the same on every axis."""
        places = first + torch.arange(count, device=prompt.positions.device)
        axes = prompt.positions.shape[1:]
        return places.reshape(-1, *[1] * len(axes)).expand(-1, *axes)

    def route(
        self, prompt: Prompt, text: Sequence[int] = ()
    ) -> tuple[Int[Tensor, " k"], Float[Tensor, " R"]]:
        """The bank rows that the state at the root chooses, ascending, and the scores of all."""
        root = self.family.states(*self.prefix(prompt, text))[-1]
        scores = self.router(root, prompt.bank[:, : len(root)])
        return self.router.choose(scores), scores

    def draft_logits(
        self, prompt: Prompt, text: Sequence[int], drafts: Sequence[int],
        indices: Int[Tensor, " k"], scores: Float[Tensor, " R"],
    ) -> Float[Tensor, "g V"]:  # fmt: skip
        """Entry u is what the drafter says of draft u after the routed tokens, the root and the
        drafts before u."""
        x, places = self.prefix(prompt, text)
        routed = self.router.gate(prompt.bank[indices], scores, indices)
        tail = self._embed(drafts[:-1])
        # The root stands behind the prompt's last token or the text after it, on all axes alike.
        after = self._following(prompt, int(places[-1].max()), len(drafts))
        rows = torch.cat([x, routed, x[-1:], tail])
        positions = torch.cat([places, prompt.bank_positions[indices], after])
        hidden = self.family.states(rows, positions)
        return self.vlm.lm_head(hidden[-len(drafts) :]).float()

    def forward(
        self, prompt: Prompt, text: Sequence[int], drafts: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One round: routed rows [k], scores [R], logits of the drafts [g, V].

        Args:
            text: tokens committed after the prompt; the last one is the root, the prompt's last
                token if there are none.
            drafts: at least one token; the last is only predicted.
        """
        indices, scores = self.route(prompt, text)
        return indices, scores, self.draft_logits(prompt, text, drafts, indices, scores)

    def _embed(self, tokens: Sequence[int] | np.ndarray) -> Float[Tensor, "T W"]:
        words = self.vlm.get_input_embeddings()(self._tensor(np.asarray(tokens, np.int64)))
        return nn.functional.pad(words, (0, self.family.row_width - words.shape[1]))

    def _tensor(self, values: np.ndarray) -> Int[Tensor, "..."]:
        return torch.as_tensor(values, dtype=torch.long, device=self.vlm.device)


@torch.no_grad()
def _show(folder: str, image: str, question: str) -> None:
    transformers.logging.disable_progress_bar()
    tiger, processor = TorchTiger.from_folder(folder), Processor.from_folder(folder)
    inputs = tiger.inputs(build_prompt(processor, question, 1), [load_image(image)])
    prompt = tiger.read(**inputs)
    indices, scores, logits = tiger(prompt, [], [0])
    print(f"{len(prompt.bank)} visual tokens, routed: {indices.tolist()}")
    print("scores: " + ", ".join(f"{score:.3f}" for score in scores[indices].tolist()))
    print(f"likeliest next token: {processor.decode([int(logits[0].argmax())])!r}")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 2 for bad input, with one line on stderr."""
    parser = argparse.ArgumentParser(description="Print the routed visual tokens of a drafter.")
    parser.add_argument("--drafter", required=True, help="exported folder with a router")
    parser.add_argument("--image", required=True, help="picture file")
    parser.add_argument("--prompt", required=True, help="question about it")
    args = parser.parse_args(argv)
    try:
        _show(args.drafter, args.image, args.prompt)
    except UserError as error:
        print(f"torch_tiger: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
