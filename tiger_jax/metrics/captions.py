"""COCO caption scores through pycocoevalcap: CIDEr, BLEU-1..4, ROUGE-L, and METEOR where java is.

CIDEr weighs words by their frequency over the scored set, so numbers compare only over the same
list of pictures. SPICE is not offered: its Stanford models are a download of their own.
"""

import shutil
import subprocess
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tiger_jax.errors import UserError

Captions = dict[Hashable, list[str]]


def caption_scores(
    predictions: Mapping[Hashable, str], references: Mapping[Hashable, Sequence[str]],
    tokenize: bool = True, *, meteor: bool | None = None,
) -> dict[str, Any]:  # fmt: skip
    """CIDEr (not CIDEr-D), BLEU-1 .. BLEU-4, ROUGE-L, METEOR over all pictures.

    Args:
        predictions: one caption a picture.
        references: the people's captions of the same pictures.
        tokenize: PTB tokens in lower case without punctuation, by java. False: the captions are
            tokenised already, words divided by one space; raw captions would score a third lower.
        meteor: whether to run METEOR. None: where java is.

    Returns:
        name -> score; METEOR is None beside METEOR_reason where it did not run.

    Raises:
        UserError: pictures differ, one lacks references, or there are none; java is needed and
            missing or fails; pycocoevalcap is not installed.
    """
    _check_pictures(predictions, references)
    found = {key: [predictions[key]] for key in references}
    wanted = {key: list(references[key]) for key in references}
    java = shutil.which("java") is not None
    if tokenize:
        found, wanted = _tokenized(found, wanted)
    scores = _ngram_scores(found, wanted)
    if meteor is False or (meteor is None and not java):
        reason = "not asked for" if meteor is False else "no java on this machine"
        return scores | {"METEOR": None, "METEOR_reason": reason}
    return scores | {"METEOR": _meteor(found, wanted)}


def _check_pictures(predictions: Mapping, references: Mapping) -> None:
    if not references or predictions.keys() != references.keys():
        differing = sorted(map(str, predictions.keys() ^ references.keys()))[:3]
        raise UserError(
            "captions: expected one prediction for each picture with references, at least one, "
            f"got {len(predictions)} and {len(references)}; in one only: {', '.join(differing)}"
        )
    for key, texts in references.items():
        if not texts:
            raise UserError(f"captions of {key}: expected references, got none")


def _ngram_scores(found: Captions, wanted: Captions) -> dict[str, float]:
    with _installed():
        from pycocoevalcap.bleu.bleu import Bleu
        from pycocoevalcap.cider.cider import Cider
        from pycocoevalcap.rouge.rouge import Rouge
    bleu, _ = Bleu(4).compute_score(wanted, found, verbose=0)
    cider, _ = Cider().compute_score(wanted, found)
    rouge, _ = Rouge().compute_score(wanted, found)
    scores = {f"BLEU-{n}": float(value) for n, value in enumerate(bleu, start=1)}
    return {"CIDEr": float(cider), **scores, "ROUGE-L": float(rouge)}


@contextmanager
def _installed() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise UserError(
            "captions: expected the package pycocoevalcap, "
            f'got: {error}; pip install "tiger_jax[caption]"'
        ) from error


def _need_java(what: str) -> None:
    if shutil.which("java") is None:
        raise UserError(f"{what}: expected java on the PATH, found none; install a JRE")


def _tokenized(*groups: Captions) -> list[Captions]:
    """The groups with their captions as PTB tokens, all from one start of java."""
    flat = [text for captions in groups for texts in captions.values() for text in texts]
    tokens = iter(_ptb_tokens(flat))
    return [
        {key: [next(tokens) for _ in texts] for key, texts in captions.items()}
        for captions in groups
    ]


def _ptb_tokens(texts: Sequence[str]) -> list[str]:
    """Each text's Stanford tokens, joined by single spaces, of pycocoevalcap's own jar.

    Its Python class does the same but writes into its installed folder and on the terminal.
    """
    _need_java("PTB tokens")
    with _installed():
        from pycocoevalcap.tokenizer import ptbtokenizer
    command = [
        "java", "-cp", ptbtokenizer.STANFORD_CORENLP_3_4_1_JAR,
        "edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase",
        "-encoding", "utf-8",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=Path(ptbtokenizer.__file__).parent, capture_output=True, check=False,
        input="".join(f"{_one_line(text)}\n" for text in texts).encode(),
    )  # fmt: skip
    lines = done.stdout.decode(errors="replace").split("\n")[:-1]
    if done.returncode != 0 or len(lines) != len(texts):
        raise UserError(
            f"PTB tokens: expected {len(texts)} lines from java, got {len(lines)} and exit code "
            f"{done.returncode}: {_last_line(done.stderr)}"
        )
    dropped = frozenset(ptbtokenizer.PUNCTUATIONS)
    return [" ".join(word for word in line.split() if word not in dropped) for line in lines]


def _one_line(text: str) -> str:
    """A line break inside a caption, also a Unicode one, would shift all captions after it."""
    return " ".join(text.split())


def _last_line(stream: bytes) -> str:
    lines = stream.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no message"


def _meteor(found: Captions, wanted: Captions) -> float:
    """METEOR 1.5; its java process ends here, whatever happens."""
    _need_java("METEOR")
    with _installed():
        from pycocoevalcap.meteor.meteor import Meteor
    scorer = Meteor()
    try:
        score, _ = scorer.compute_score(_one_lines(wanted), _one_lines(found))
    except (ValueError, OSError) as error:
        raise UserError(f"METEOR: expected a score from java, got: {error}") from error
    finally:
        # A failed score leaves the lock held, for which the scorer's own end would wait for ever.
        if scorer.lock.locked():
            scorer.lock.release()
        scorer.meteor_p.kill()
        # wait and all three pipes: the scorer closes only its input.
        scorer.meteor_p.communicate()
    return float(score)


def _one_lines(captions: Captions) -> Captions:
    return {key: [_one_line(text) for text in texts] for key, texts in captions.items()}
