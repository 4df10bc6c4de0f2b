"""Answer questions about pictures and videos by speculative decoding.

    python -m tiger_jax.decode
    python -m tiger_jax.decode --image photo.jpg --prompt "What is this?" \\
        --verifier DIR --drafter DIR
    python -m tiger_jax.decode --requests questions.jsonl --report answers.json --batch-size 4
    python -m tiger_jax.decode --pair tiny_qwen3_vl --video clip.mp4 --prompt "What happens?"
    python -m tiger_jax.decode --verifier DIR --video clip.mp4 --fps 1 --visual-budget 1440
    python -m tiger_jax.decode --trace rounds.html

Without arguments: the embedded pair looks at an embedded picture, streams its answer, and is
compared with plain decoding of the same verifier.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from tiger_jax import embedded
from tiger_jax.errors import UserError, exit_code
from tiger_jax.models import published

if TYPE_CHECKING:
    from tiger_jax import session

DRAFT_LENGTH = "5"
AUTO, CHAIN = "auto", "chain"
SELECTORS = ("tiger", "random", "image_only", "sparsevlm", "vispruner", "full")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; `--help` shows examples."""
    parser = argparse.ArgumentParser(
        prog="python -m tiger_jax.decode", description=__doc__.split("\n\n")[0],
        epilog="examples:\n" + __doc__.split("\n\n")[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    what = parser.add_argument_group("what to answer")
    what.add_argument("--image", action="append", default=[], metavar="PATH",
                      help="a picture; repeat it for several")  # fmt: skip
    what.add_argument("--video", action="append", default=[], metavar="PATH",
                      help="a video file, an animation, or a folder of pictures")  # fmt: skip
    what.add_argument("--fps", type=float,
                      help="pictures sampled from a second of video; for a folder of them, the "
                           "rate they were taken at (default: as the verifier's folder says, "
                           "usually 2)")  # fmt: skip
    what.add_argument("--max-frames", type=int,
                      help="most pictures of a video (default likewise, usually 768)")  # fmt: skip
    what.add_argument("--video-prompt", choices=("v5", "4.57"), default="v5",
                      help="a video's marks as transformers 5 writes them, or 4.57")  # fmt: skip
    what.add_argument("--visual-budget", type=int, metavar="N",
                      help="LLaVA alone: most visual tokens of a prompt. Many pictures lose their "
                           "detail views first; then all pictures and frames are pooled to fewer "
                           "tokens each (default 2880 for 4096 positions)")  # fmt: skip
    what.add_argument("--prompt", help="the question; '<image>' and '<video>' in it place them")
    what.add_argument("--requests", metavar="FILE.jsonl",
                      help='one {"id", "images", "videos", "prompt", ...} a line, decoded in '
                           "batches; paths are relative to the file")  # fmt: skip
    what.add_argument("--batch-size", type=int, default=4, help="for --requests (default 4)")
    models = parser.add_argument_group("models (default: the embedded pair)")
    models.add_argument(
        "--pair", metavar="NAME",
        help=f"which embedded pair: {' or '.join(embedded.PAIRS)} (the first one is the default); "
        f"with --dry-run whose sizes: {' or '.join(published.PAIRS)} (likewise)",
    )  # fmt: skip
    models.add_argument("--verifier", metavar="DIR", help="Hugging Face or Orbax folder")
    models.add_argument("--drafter", metavar="DIR", help="'none' decodes plainly")
    models.add_argument(
        "--drafter-kind", choices=embedded.KINDS,
        help="which drafter of the embedded pair: a head on the verifier's own states (tiger_head "
        "sees 8 routed visual tokens; the default where a pair has it), or 'vlm', a small model "
        "of its own",
    )  # fmt: skip
    models.add_argument("--dtype", choices=("float32", "bfloat16"),
                        help="default: float32 on CPU, bfloat16 on accelerators")  # fmt: skip
    _decoding_arguments(parser)
    _output_arguments(parser)
    _dry_run_arguments(parser)
    return parser.parse_args(argv)


def _output_arguments(parser: argparse.ArgumentParser) -> None:
    """What is written, and where."""
    out = parser.add_argument_group("output")
    out.add_argument(
        "--compare",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="also decode plainly: measured speedup, identical tokens yes or no",
    )
    out.add_argument("--report", metavar="FILE.json", help="write everything that was counted")
    out.add_argument("--trace", metavar="FILE.html",
                     help="write a page that shows every round: routed patches, draft, what was "
                     "accepted; a section for each of --requests")  # fmt: skip
    out.add_argument("--trace-png", metavar="DIR",
                     help="write the same rounds as PNG files into this folder")  # fmt: skip
    out.add_argument("--quiet", action="store_true", help="answers only")


def _dry_run_arguments(parser: argparse.ArgumentParser) -> None:
    """What a real pair would take."""
    dry = parser.add_argument_group(
        "dry run", "compile a real pair's programs from abstract weights, for --batch-size "
        "requests and --draft-length on --mesh"
    )  # fmt: skip
    dry.add_argument("--dry-run", action="store_true",
                     help="memory, traffic and predicted times a device; exit code 1 if it does "
                     "not fit")  # fmt: skip
    dry.add_argument("--card", default="a40", help="a40 or h200 (default a40)")


def _decoding_arguments(parser: argparse.ArgumentParser) -> None:
    """How answers are drawn and drafted."""
    how = parser.add_argument_group("how")
    how.add_argument("--max-new-tokens", type=int, default=128)
    how.add_argument(
        "--draft-length",
        default=DRAFT_LENGTH,
        metavar="N|auto",
        help=f"most tokens drafted a round (default {DRAFT_LENGTH}); 'auto' picks it from c, v and "
        "acceptance measured on the first of --requests; 0: no drafting",
    )
    how.add_argument(
        "--draft-tree", default=CHAIN, metavar="NODES,DEPTH,WIDTH",
        help="heads alone: draft a tree instead of a chain, e.g. 60,5,10 or 30,3,8",
    )  # fmt: skip
    how.add_argument(
        "--draft-confidence",
        type=float,
        default=0.0,
        metavar="P",
        help="a row stops drafting where the drafter's likeliest token is below P",
    )
    how.add_argument(
        "--selector",
        choices=SELECTORS,
        help="which visual tokens the drafter sees: 'tiger' picks them anew, by the text so far; "
        "'image_only', 'sparsevlm' and 'vispruner' score them once; 'random'; 'full' shows all "
        "(default: as the drafter's folder says; tiger and image_only need its router). 'full' "
        "takes the embedded model that was trained to see everything; heads know tiger and random",
    )
    how.add_argument("--routed-tokens", type=int, metavar="K",
                     help="visual tokens a round, for every selector but full")  # fmt: skip
    how.add_argument("--mesh", metavar="data=D,tensor=T",
                     help="devices: requests are split over data, heads over tensor; -1 takes all "
                     "that are left (default: one device)")  # fmt: skip
    how.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    how.add_argument("--top-p", type=float, default=1.0)
    how.add_argument("--top-k", type=int, default=0)
    how.add_argument("--seed", type=int, default=0)
    how.add_argument("--stop", action="append", default=[], metavar="TEXT",
                     help="end before this text; repeatable")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: 0 fine, 1 if every request failed, 2 bad input, 130 interrupted."""
    args = parse_arguments(argv)
    return exit_code(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    began = time.perf_counter()
    _check(args)
    from tiger_jax import runtime

    runtime.configure()
    if args.dry_run:
        return _dry_run(args)
    from tiger_jax import decode_summary, session, streaming

    tracer = None
    if args.trace or args.trace_png:
        from tiger_jax.traces.tracer import Tracer

        tracer = Tracer()
    pair = args.pair or embedded.PAIRS[0]
    shown = args.image or args.video
    demo = not (shown or args.requests or args.verifier) and args.prompt is None
    verifier = args.verifier or embedded.verifier(pair)
    drafter = args.drafter
    if drafter is None and not args.verifier:
        drafter = embedded.drafter(args.selector, args.drafter_kind, pair)
    run = session.Session(
        verifier=verifier, drafter=None if args.drafter == "none" else drafter,
        settings=_settings(args, demo), tracer=tracer,
    )  # fmt: skip
    records = None
    if args.requests:
        records = session.read_records(args.requests)
        show = None if args.quiet else session.print_answer
        report = run.answer(records, show=show)
    else:
        asked = embedded.demo(pair) if demo else embedded.Demo(
            args.image, args.video, args.prompt or _usual_question(args)
        )  # fmt: skip
        if not args.quiet:
            names = ", ".join([*asked.images, *asked.videos])
            print(f"{names or 'no picture'}\n> {asked.prompt}", flush=True)
        stream = streaming.Stream(began, tuple(args.stop), quiet=args.quiet)
        report = run.answer_one(asked.images, asked.videos, asked.prompt, stream)
    if args.report:
        Path(args.report).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if tracer is not None:
        tracer.write(
            run.pipeline, report, verifier=str(verifier), drafter=str(drafter), records=records,
            page=args.trace, folder=args.trace_png,
        )  # fmt: skip
    if not args.quiet:
        print(decode_summary.summary(report))
    if report.get("interrupted"):
        raise KeyboardInterrupt
    failed = [r for r in report["requests"] if r["error"]]
    return 1 if failed and len(failed) == len(report["requests"]) else 0


def _settings(args: argparse.Namespace, demo: bool) -> "session.Settings":
    """What the run's session is told; the demo compares unless it is told not to."""
    from tiger_jax import session
    from tiger_jax.head_loading import parse_tree
    from tiger_jax.sharding.mesh import make_mesh, parse_sizes

    return session.Settings(
        draft_length=None if args.draft_length == AUTO else int(args.draft_length),
        confidence=args.draft_confidence,
        selector=args.selector, routed_tokens=args.routed_tokens,
        tree=parse_tree(args.draft_tree),
        mesh=make_mesh(parse_sizes(args.mesh)) if args.mesh else None,
        dtype=args.dtype,
        batch_size=args.batch_size if args.requests else 1,
        compare=demo if args.compare is None else args.compare,
        video=session.VideoSampling(args.fps, args.max_frames),
        video_prompt=args.video_prompt, visual_budget=args.visual_budget,
        options=session.Options(
            max_new_tokens=args.max_new_tokens, temperature=args.temperature,
            top_k=args.top_k, top_p=args.top_p, seed=args.seed, stop=tuple(args.stop),
        ),
    )  # fmt: skip


def _usual_question(args: argparse.Namespace) -> str:
    return "Describe the video." if args.video else "Describe the picture."


def _dry_run(args: argparse.Namespace) -> int:
    from tiger_jax.dry_run.decoding import report_decoding
    from tiger_jax.sharding.mesh import parse_sizes

    if args.draft_length == AUTO:
        raise UserError("--dry-run: expected --draft-length N, got auto")
    text, fits = report_decoding(
        args.pair or next(iter(published.PAIRS)),
        mesh=parse_sizes(args.mesh) if args.mesh else None, card=args.card,
        batch=args.batch_size, draft_length=int(args.draft_length),
        max_new_tokens=args.max_new_tokens,
    )  # fmt: skip
    print(text)
    return 0 if fits else 1


def _check(args: argparse.Namespace) -> None:
    """What can be refused before anything is loaded."""
    if args.requests and (args.image or args.video or args.prompt is not None):
        raise UserError("--requests: expected it alone, got --image, --video or --prompt beside it")
    _check_pictures(args)
    if args.draft_length != AUTO and not args.draft_length.isdecimal():
        raise UserError(f"--draft-length: expected a number or auto, got {args.draft_length!r}")
    if args.batch_size < 1:
        raise UserError(f"--batch-size: expected at least 1, got {args.batch_size}")
    if not 0 <= args.draft_confidence < 1:
        raise UserError(f"--draft-confidence: expected 0 <= P < 1, got {args.draft_confidence}")
    if args.routed_tokens is not None and args.routed_tokens < 1:
        raise UserError(f"--routed-tokens: expected at least 1, got {args.routed_tokens}")
    if args.drafter_kind and (args.drafter or args.verifier):
        given = "--drafter" if args.drafter else "--verifier"
        raise UserError(f"--drafter-kind: expected the embedded pair, got {given} beside it")
    if args.draft_tree != CHAIN and args.draft_length != DRAFT_LENGTH:
        raise UserError(f"--draft-tree: expected no --draft-length, got {args.draft_length}")
    _check_routing(args)
    if "" in args.stop:
        raise UserError("--stop: expected a text, got an empty one")
    _check_outputs(args)
    if args.requests and not Path(args.requests).is_file():
        raise UserError(
            f"{args.requests}: expected a JSON Lines file of requests, found none there"
        )


def _check_outputs(args: argparse.Namespace) -> None:
    """Where the run will write: nothing is decoded in vain."""
    for name, path in (("--report", args.report), ("--trace", args.trace)):
        if path is None:
            continue
        target, folder = Path(path), Path(path).resolve().parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise UserError(f"{name}: expected a writable folder, got {folder}")
        if not path or target.is_dir() or (target.exists() and not os.access(target, os.W_OK)):
            raise UserError(f"{name}: expected a writable file, got {path!r}")
    if args.trace and args.report and Path(args.trace).resolve() == Path(args.report).resolve():
        raise UserError(f"--trace: expected another file than --report, got {args.trace!r}")
    folder = args.trace_png
    if folder is not None and not (os.path.isdir(folder) and os.access(folder, os.W_OK)):
        raise UserError(f"--trace-png: expected a writable folder that exists, got {folder!r}")
    asked = "--trace" if args.trace else "--trace-png" if folder else None
    if asked and args.dry_run:
        raise UserError(f"{asked}: expected a run that decodes, got --dry-run")
    if asked and args.requests and args.draft_length == AUTO:
        raise UserError(f"{asked}: expected --draft-length N beside --requests, got auto")


def _check_pictures(args: argparse.Namespace) -> None:
    """Which pair, and what it is shown."""
    if args.pair and args.verifier:
        raise UserError("--pair: expected it alone, got --verifier beside it")
    known = published.PAIRS if args.dry_run else embedded.PAIRS
    if args.pair and args.pair not in known:
        raise UserError(f"--pair: expected one of {', '.join(known)}, got {args.pair!r}")
    if args.dry_run and (args.image or args.video):
        raise UserError("--dry-run: expected no pictures, got --image or --video beside it")
    for path in (*args.image, *args.video):
        if not os.path.exists(path):
            raise UserError(f"{path or repr(path)}: expected a picture or video, found none there")
    if args.visual_budget is not None and args.visual_budget < 1:
        raise UserError(f"--visual-budget: expected at least 1, got {args.visual_budget}")
    _check_sampling({"--fps": args.fps, "--max-frames": args.max_frames},
                    has_videos=bool(args.video or args.requests))  # fmt: skip


def _check_sampling(given: dict[str, float | None], has_videos: bool) -> None:
    """How videos are sampled, if that is asked for."""
    asked = {name: value for name, value in given.items() if value is not None}
    if asked and not has_videos:
        raise UserError(f"{next(iter(asked))}: expected --video or --requests beside it")
    if not asked:
        return
    from tiger_jax.data.videos import SAMPLING_CHECKS  # numpy and Pillow, which --help can spare

    for name, value in asked.items():
        try:
            SAMPLING_CHECKS[name.removeprefix("--").replace("-", "_")](name, value)
        except ValueError as error:
            raise UserError(str(error)) from None


def _check_routing(args: argparse.Namespace) -> None:
    """Nothing routes without a drafter, and there are no rounds to show."""
    given = {
        "--selector": args.selector, "--routed-tokens": args.routed_tokens,
        "--draft-tree": None if args.draft_tree == CHAIN else args.draft_tree,
        "--trace": args.trace, "--trace-png": args.trace_png,
    }  # fmt: skip
    asked = next((name for name, value in given.items() if value is not None), None)
    if args.drafter == "none":
        got = "--drafter none"
    elif args.verifier and not args.drafter:
        got = "--verifier alone"
    elif args.draft_length != AUTO and int(args.draft_length) == 0:
        got = "--draft-length 0"
    else:
        return
    if asked:
        raise UserError(f"{asked}: expected a drafter to use it, got {got}")


if __name__ == "__main__":
    sys.exit(main())
