"""The verifier as teacher: it answers prompts once, and its answers are kept.

N: questions of an example, n: response tokens.

Responses come from the batched decoder. One more pass over prompts with their responses, packed as
in training, gives each token's law and the attention onto the visual tokens. Everything goes into a
TeacherCache, so a second run reads instead of asking.
"""

import dataclasses
import zlib
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jaxtyping import Int

from tiger_jax.data.batches import PromptInputs, batch_prompts, round_tiles, round_width
from tiger_jax.data.draft_examples import DraftExample
from tiger_jax.data.packing import pack_texts
from tiger_jax.data.teacher_cache import TeacherCache, TeacherRecord
from tiger_jax.decoding.drafters.protocol import PromptArrays, prompt_arrays
from tiger_jax.decoding.engine import Engine, Options
from tiger_jax.training.block_layout import Prefixes, TextRows
from tiger_jax.training.teacher_pass import Said, TeacherSettings, teacher_pass


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A frozen verifier that fills a cache."""

    engine: Engine
    settings: TeacherSettings
    decode_batch: int = 64
    pass_batch: int = 16

    def fill(
        self, cache: TeacherCache, examples: Callable[[int], DraftExample], keys: Sequence[str],
        progress: Callable[[int], None] = lambda done: None, shard: int = 256,
    ) -> None:  # fmt: skip
        """Answer every example whose key has no record, a shard at a time."""
        missing = cache.missing(keys)
        for start in range(0, len(missing), shard):
            group = [examples(place) for place in missing[start : start + shard]]
            records = self.answer(group)
            cache.add_shard([(e.key, r) for e, r in zip(group, records, strict=True)])
            progress(len(group))

    def answer(self, examples: Sequence[DraftExample]) -> list[TeacherRecord]:
        """Records of some examples, in their order; given responses are read, not made."""
        given = all(len(example.responses) == len(example.questions) for example in examples)
        responses = [e.responses for e in examples] if given else self.respond(examples)
        records = []
        for start in range(0, len(examples), self.pass_batch):
            part = slice(start, start + self.pass_batch)
            records += self._read(examples[part], responses[part])
        return records

    def respond(self, examples: Sequence[DraftExample]) -> list[list[list[int]]]:
        """Tokens of the verifier's response to each question, the end token included."""
        asked = [(i, n) for i, e in enumerate(examples) for n in range(len(e.questions))]
        # Questions of one place are of one kind: their answers end at about the same time.
        asked.sort(key=lambda place: (place[1], place[0]))
        responses = [[None] * len(example.questions) for example in examples]
        for start in range(0, len(asked), self.decode_batch):
            group = asked[start : start + self.decode_batch]
            prompts = [examples[i].prompt(n) for i, n in group]
            options = [self._options(examples[i].key, n) for i, n in group]
            output = self.engine.run(self._arrays(prompts), options)
            for (i, n), answer in zip(group, output.outputs, strict=True):
                responses[i][n] = answer.tokens
        return responses

    def _options(self, key: str, question: int) -> Options:
        """The draws of a response depend on its prompt, not on its place in the run."""
        seed = zlib.crc32(f"{self.settings.seed} {key} {question}".encode())
        return Options(
            max_new_tokens=self.settings.max_new_tokens, temperature=self.settings.temperature,
            seed=seed,
        )  # fmt: skip

    def _arrays(self, prompts: Sequence[PromptInputs]) -> PromptArrays:
        rows = list(prompts) + [prompts[-1]] * (self.decode_batch - len(prompts))
        longest = round_width(max(len(row.tokens) for row in rows))
        batch = batch_prompts(rows, self.engine.model.config, longest, _tiles(rows))
        return prompt_arrays(batch, self.engine.model.dtype)

    def _read(self, examples: Sequence[DraftExample], responses) -> list[TeacherRecord]:
        """One packed pass over some examples: laws and attention of every response token."""
        texts = [
            list(zip(example.questions, said, strict=True))
            for example, said in zip(examples, responses, strict=True)
        ]
        filled = self.pass_batch - len(examples)
        packed = pack_texts(texts + [texts[-1]] * filled)
        prefixes = [e.prefix for e in examples] + [examples[-1].prefix] * filled
        longest = round_width(max(len(prefix.tokens) for prefix in prefixes))
        batch = batch_prompts(prefixes, self.engine.model.config, longest, _tiles(prefixes))
        starts = np.array([prefix.next_position for prefix in prefixes])
        rows = TextRows(packed.tokens, packed.segments, starts[:, None] + packed.offsets)
        said = jax.device_get(
            self.engine.over_batch(self._pass, (Prefixes(**batch._asdict()), rows))
        )
        records = []
        for b, (example, answers) in enumerate(zip(examples, responses, strict=True)):
            places = [packed.responses(b, n) for n in range(len(answers))]
            part = Said(*(field[b] for field in said))
            records.append(_record(example, answers, np.concatenate(places), part))
        return records

    def _pass(self, texts: tuple[Prefixes, TextRows]) -> Said:
        return teacher_pass(self.engine.model, self.settings, self.engine.params, *texts)


def _record(example: DraftExample, answers, places: Int[np.ndarray, " n"], said: Said):
    is_visual = example.prefix.image_ids >= 0
    bank_row = np.cumsum(is_visual) - 1
    weights = said.route_weights[places].astype(np.float32)
    ids = np.where(weights > 0, bank_row[np.minimum(said.route_ids[places], len(bank_row) - 1)], -1)
    return TeacherRecord(
        lengths=np.array([len(tokens) for tokens in answers], np.int32),
        tokens=np.concatenate([np.asarray(tokens, np.int32) for tokens in answers]),
        # what is said of a token stands at the token before it
        logprobs=said.next_logprobs[places - 1].astype(np.float32),
        law_ids=said.law_ids[places - 1], law_logprobs=said.law_logprobs[places - 1],
        route_ids=ids.astype(np.int32), route_weights=weights,
    )  # fmt: skip


def _tiles(prompts: Sequence[PromptInputs]) -> int:
    return round_tiles(sum(len(prompt.tiles) for prompt in prompts), len(prompts))
