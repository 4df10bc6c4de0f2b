"""Tokenizer and image processor of a checkpoint folder: the face that both families share.

transformers' tokenizers and processors are imported here and in the families' own files only.
Letters: S tokens, f frames, V rows of the embedding table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Int, Int32, UInt8
from PIL import Image

from tiger_jax.data.videos import PUBLISHED_SAMPLING, Video, VideoSampling
from tiger_jax.data.visual import Visual
from tiger_jax.errors import UserError
from tiger_jax.models.config import LlavaNextConfig, ModelConfig, Qwen3VLConfig
from tiger_jax.models.config_reader import read_config, read_json
from tiger_jax.models.frames import Tiles

VIDEO_PROMPTS = ("v5", "4.57")
"""How a video stands in a prompt: as transformers 5 or 4.57 writes it."""
MOST_TILES = 768
"""Of a batch: more than a vision tower should take at once."""


@dataclass(frozen=True)
class Processor:
    """Turns text into ids, and pictures into tiles and tokens, as the checkpoint was published."""

    config: ModelConfig
    tokenizer: Any
    chat_template: str | None

    @staticmethod
    def from_folder(
        folder: str | Path, config: ModelConfig | None = None, video_prompt: str = "v5"
    ) -> "Processor":
        """The processor of a Hugging Face folder's family: tokenizer, settings, chat template.

        Args:
            video_prompt: one of VIDEO_PROMPTS; only "v5" for a model whose prompts are the same in
                both.

        Raises:
            UserError: a file is missing or unreadable, or does not fit the model, or an unknown
                `video_prompt`.
        """
        if video_prompt not in VIDEO_PROMPTS:
            expected = " or ".join(VIDEO_PROMPTS)
            raise UserError(f"video_prompt: expected {expected}, got {video_prompt!r}")
        folder = Path(folder)
        config = config or read_config(folder)
        family = _family_of(config)
        tokenizer = _load_tokenizer(folder)
        template = _template_of_json(folder) or tokenizer.chat_template
        return family.read(folder, config, tokenizer, template, video_prompt)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with what the tokenizer itself puts in front."""
        return self.tokenizer.encode(text)

    def encode_prompt(self, text: str, n_videos: int) -> list[int]:
        """`encode` of a rendered prompt: its `placeholder` ids say what each picture is."""
        return self.encode(text)

    def encode_piece(self, text: str) -> list[int]:
        """Token ids of text that continues a prompt: no `<s>`."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def encode_answer(self, answer: str) -> list[int]:
        """Token ids of an answer behind the prompt, with the token that ends it."""
        raise NotImplementedError

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Text of `ids` without special tokens.

        The space before a first word stays where the tokenizer keeps it.
        """
        ids = [int(i) for i in ids if int(i) < self.vocab_limit]
        return self.tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def prompt(self, question: str, n_images: int = 0, n_videos: int = 0) -> str:
        """The prompt in the folder's chat template, or in the family's own where it has none.

        A question that holds "<image>" or "<video>" itself says where they go: no placeholder of
        that kind is added. Without, images come first, then videos, then the text. Where no video
        is given, "<video>" is text.

        Raises:
            UserError: a template that fails.
        """
        raise NotImplementedError

    def placeholder(self, kind: Literal["image", "video"]) -> int:
        """Id that stands for one picture or video among those of `encode_prompt`."""
        raise NotImplementedError

    def with_budget(self, visual_budget: int) -> "Processor":
        """The processor with another budget of visual tokens.

        Raises:
            UserError: not above 0, or a model that has no budget.
        """
        raise UserError(
            "visual budget: expected a LLaVA model, got one whose pictures keep their size "
            "(fps and max_frames make a video shorter)"
        )

    def visuals(self, pictures: Sequence[Image.Image | np.ndarray | Video]) -> list[Visual]:
        """`visual` of everything that one prompt shows, in the order of its placeholders. A family
        with a budget shares it between them.

        Raises:
            UserError: as `visual`, or more than the budget can hold.
        """
        return [self.visual(picture) for picture in pictures]

    def visual(self, picture: Image.Image | np.ndarray | Video) -> Visual:
        """Tokens and tiles of an RGB picture (uint8 [H, W, 3]) or of a video.

        Raises:
            UserError: another dtype or shape, or a size the model cannot take.
        """
        raise NotImplementedError

    def fit(self, picture: UInt8[np.ndarray, "H W 3"], n: int) -> UInt8[np.ndarray, "h w 3"]:
        """One picture of a video of n in the size that `visual` gives it; see `load_video`.

        Raises:
            UserError: as `visual`.
        """
        raise NotImplementedError

    @property
    def visual_budget(self) -> int | None:
        """Most visual tokens of a prompt; None for a family that knows no budget."""
        return None

    @property
    def most_tiles(self) -> int:
        """Most tiles of a prompt."""
        return MOST_TILES

    @property
    def video_sampling(self) -> VideoSampling:
        """How videos are sampled, in numbers, where neither request nor run says."""
        return PUBLISHED_SAMPLING

    def base_tile(self, picture: Image.Image | np.ndarray) -> Tiles:
        """The one tile of a picture that is small enough to be one."""
        raise NotImplementedError

    def empty_tiles(self) -> Tiles:
        """No tiles, in the form that the tower takes."""
        raise NotImplementedError

    def positions(
        self, tokens: Int[np.ndarray, " S"], grids: Int[np.ndarray, "f 2"]
    ) -> Int32[np.ndarray, " S"] | Int32[np.ndarray, "S 3"]:
        """Rotary positions of an unpadded, expanded prompt.

        Args:
            grids: those of all its pictures and videos (Visual.grids), in order.
        """
        raise NotImplementedError

    @cached_property
    def vocab_limit(self) -> int:
        """Ids from here on are filler rows of the embedding table: they have no text."""
        return len(self.tokenizer)

    @cached_property
    def drawable(self) -> Bool[np.ndarray, " V"]:
        """False for the ids that decoding must never draw.

        They are filler rows, what marks pictures, and padding that is not an end token too.
        """
        allowed = np.arange(self.config.text.vocab_size) < self.vocab_limit
        for token in (*self.picture_marks, self.config.pad_token_id):
            if token not in self.config.eos_token_ids and 0 <= token < len(allowed):
                allowed[token] = False
        return allowed

    @property
    def picture_marks(self) -> tuple[int, ...]:
        """Ids that only a prompt may hold: they stand for pictures or around them."""
        raise NotImplementedError

    def render(self, content: str | list[dict]) -> str:
        """One user turn in the folder's chat template. Raises UserError if the template fails."""
        try:
            return self.tokenizer.apply_chat_template(
                [{"role": "user", "content": content}],
                chat_template=self.chat_template,
                add_generation_prompt=True,
                tokenize=False,
            )
        except Exception as error:  # jinja's own kinds, or whatever the template's code does
            raise UserError(f"chat template: cannot be rendered ({one_line(error)})") from error


def _family_of(config: object) -> type[Processor]:
    """The processor class for a configuration's. Raises TypeError for one that has none."""
    # Here, not above: the families' files need this one.
    from tiger_jax.data.llava_next_processor import LlavaNextProcessor
    from tiger_jax.data.qwen3_vl_processor import Qwen3VLProcessor

    families = {LlavaNextConfig: LlavaNextProcessor, Qwen3VLConfig: Qwen3VLProcessor}
    if type(config) not in families:
        known = " or ".join(kind.__name__ for kind in families)
        raise TypeError(f"config: expected {known}, got {type(config).__name__}")
    return families[type(config)]


def rgb_pixels(picture: Image.Image | np.ndarray) -> np.ndarray:
    """The picture as uint8 [H, W, 3]. Raises UserError for anything else."""
    pixels = np.asarray(picture)
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
        raise UserError(f"image: expected uint8 [H, W, 3], got {pixels.dtype} {pixels.shape}")
    return pixels


def find_settings(folder: Path, part: str, name: str) -> tuple[Path, dict] | None:
    """Settings of an image or video processor with the file they stand in: that of their own, or
    entry `part` of processor_config.json, where transformers 5 saves them."""
    if (folder / name).is_file():
        return folder / name, read_json(folder / name)
    path = folder / "processor_config.json"
    if path.is_file() and isinstance(nested := read_json(path).get(part), dict):
        return path, nested
    return None


def image_settings(folder: Path) -> tuple[Path, dict]:
    """Settings of the image processor, or UserError where the folder has none."""
    name = "preprocessor_config.json"
    found = find_settings(folder, "image_processor", name)
    return found or (folder / name, read_json(folder / name))


def one_line(error: Exception) -> str:
    """An exception's text, short enough for an error line."""
    return " ".join(str(error).split())[:200]


def _load_tokenizer(folder: Path):
    if not any(
        (folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")
    ):
        raise UserError(f"{folder}: expected tokenizer.json or tokenizer.model, found neither")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the library raises many kinds for a damaged file
        raise UserError(f"{folder}: unreadable tokenizer ({one_line(error)})") from error


def _template_of_json(folder: Path) -> str | None:
    """Older folders keep the chat template of the processor in chat_template.json."""
    path = folder / "chat_template.json"
    return read_json(path).get("chat_template") if path.is_file() else None
