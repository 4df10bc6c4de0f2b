"""Traces of one run of the decode command: recorded with the answers, written when it ends."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tiger_jax.data.records import RecordError, Request
from tiger_jax.decoding.engine import BatchOutput, Output
from tiger_jax.decoding.trace import Recorder, Round
from tiger_jax.embedded import ASSETS
from tiger_jax.errors import UserError
from tiger_jax.pipeline import Pipeline, Prepared
from tiger_jax.traces.page import write_page
from tiger_jax.traces.round_pictures import write_pictures
from tiger_jax.traces.story import Story, number_text, option_settings, tell


@dataclasses.dataclass(frozen=True)
class Traced:
    """One answer with its rounds; its pictures are read again when it is told."""

    prepared: Prepared
    """Without tiles."""
    output: Output
    rounds: Sequence[Round]


class Tracer:
    """Records the rounds of a run's answers, and writes them as a page or as pictures."""

    def __init__(self) -> None:
        self.traced: list[Traced] = []
        self.failed: list[tuple[Request | RecordError, str]] = []
        """Records of a file that could not be asked, and why."""

    def recorded(self, pipeline: Pipeline) -> Callable[..., BatchOutput]:
        """`pipeline.run`, remembering its rounds."""
        return partial(self._run, pipeline)

    def _run(
        self, pipeline: Pipeline, prepared: Sequence[Prepared], batch_size: int,
        update: Callable[[int, list[int]], None] | None = None,
    ) -> BatchOutput:  # fmt: skip
        recorder = Recorder(len(prepared))
        output = pipeline.run(prepared, batch_size, update, recorder)
        # Not a slice of its own tiles, which would keep all of them in memory.
        nothing = pipeline.processor.empty_tiles()
        for item, out, rounds in zip(prepared, output.outputs, recorder.rounds, strict=True):
            slim = dataclasses.replace(item, inputs=item.inputs._replace(tiles=nothing))
            self.traced.append(Traced(slim, out, rounds))
        return output

    def write(
        self, pipeline: Pipeline, report: Mapping[str, Any], *, verifier: str, drafter: str,
        records: Sequence[Request | RecordError] | None = None, page: str | None = None,
        folder: str | None = None,
    ) -> None:  # fmt: skip
        """Write the page, and the pictures.

        Args:
            report: of the run (session.Session).
            records: of a file of requests, whose order the sections have.

        Raises:
            UserError: the page or a picture cannot be written.
        """
        stories = list(self._stories(pipeline, records))
        settings = settings_row(report, verifier, drafter, self.traced)
        try:
            if page is not None:
                write_page(Path(page), stories, settings)
            if folder is not None:
                write_pictures(Path(folder), stories, settings)
        except OSError as error:
            what = error.filename or page or folder
            raise UserError(f"{what}: cannot be written ({error.strerror})") from None

    def _stories(
        self, pipeline: Pipeline, records: Sequence[Request | RecordError] | None
    ) -> Iterator[Story]:
        """In the order of the file; records without an answer say why, and those that an
        interruption left are not there."""
        by_request = {id(traced.prepared.request): traced for traced in self.traced}
        failed = {id(record): error for record, error in self.failed}  # ids need not be there
        asked = [traced.prepared.request for traced in self.traced] if records is None else records
        for record in asked:
            if id(record) in by_request:
                yield _told(pipeline, by_request[id(record)])
            elif id(record) in failed:
                prompt = getattr(record, "prompt", "")
                yield Story(id=record.id or "?", prompt=prompt, error=failed[id(record)])


def settings_row(
    report: Mapping[str, Any], verifier: str, drafter: str, traced: Sequence[Traced]
) -> dict[str, Any]:
    """What was run: names and values above the page. Settings in which requests differ say so."""
    drawn = [option_settings(one.prepared) for one in traced]
    names = dict.fromkeys(name for settings in drawn for name in settings)
    tree = report["draft_nodes"] > report["draft_length"] + 1
    seen = {"full": "all"}.get(report["selector"], report["routed_tokens"])
    row = {
        "drafter": f"{_short(drafter)} ({report['drafter_kind']})", "verifier": _short(verifier),
        "selector": report["selector"] or "none", "k": "none" if seen is None else seen,
        "g": report["draft_length"],
    }  # fmt: skip
    if tree:
        row["tree nodes"] = report["draft_nodes"] - 1
    for name in names:
        values = {settings.get(name) for settings in drawn}
        same = len(values) == 1
        row[name] = number_text(values.pop()) if same else "differ, see each request"
    return row | {"dtype": report["dtype"], "device": report["device"]}


def _told(pipeline: Pipeline, traced: Traced) -> Story:
    try:
        return tell(pipeline, traced.prepared, traced.output, traced.rounds)
    except UserError as error:  # its picture went away meanwhile; its neighbours did not
        request = traced.prepared.request
        return Story(id=request.id, prompt=request.prompt, error=str(error))


def _short(folder: str) -> str:
    """An embedded folder by its name in the package, any other as it was given."""
    path = Path(folder)
    return str(path.relative_to(ASSETS)) if path.is_relative_to(ASSETS) else folder
