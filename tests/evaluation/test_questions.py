"""What a benchmark asks: sources, the choice of questions, and reading ahead."""

import contextlib
import json
import threading

import numpy as np
import pytest
from PIL import Image

from tiger_jax import command_line
from tiger_jax.data.public.record import Fault, Picture
from tiger_jax.data.videos import Video
from tiger_jax.errors import UserError
from tiger_jax.evaluation import benchmark_config, sample
from tiger_jax.evaluation.benchmark_config import ENTRY
from tiger_jax.evaluation.benchmark_config import benchmark_config as make_config
from tiger_jax.evaluation.questions import ExampleSource, Question, SceneSource
from tiger_jax.evaluation.sources import sources

TABLES = (
    "main_results", "visual_interface", "ablation", "routing_sparsity", "capability",
    "prefix_distribution", "temperature", "context_heavy", "batch_size", "k_sensitivity",
    "adapter_pruning", "objectives", "routing_ablation", "benchmark",
)  # fmt: skip


class _List:
    """A source of given items."""

    name, split = "given", "all"

    def __init__(self, *items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


def _question(uid: str, group: str = "", **more) -> Question:
    return Question(uid, group or uid, f"What is {uid}?", 8, **more)


def _entry(**fields) -> dict:
    return ENTRY | {"label": "given", "limit": 0} | fields


def _opened(config, entry):
    return next(open_source() for open_source in sources(config, entry))


@pytest.mark.parametrize("pair", ["tiny_llava", "tiny_qwen3_vl", "llava_next", "qwen3_vl"])
@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_a_config_for_every_pair(name, pair):
    config = command_line.parse(["--config", f"configs/eval/{name}.py:{pair}"])
    benchmark_config.check(config)
    assert (config.task, config.table, config.pair) == ("benchmark", name, pair)
    real = "next" in pair or pair == "qwen3_vl"
    scenes = [entry for entry in config.datasets if entry["dataset"] == "scenes"]
    assert bool(scenes) is not real
    assert config.samples is not real
    assert bool(config.verifier) is real
    limits = {e["limit"] for e in config.datasets if e["dataset"] not in ("scenes", "examples")}
    assert limits <= ({900, 1000} if real else {4})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperatures": ()}, "temperatures: expected at least one, got none"),
        ({"batch_sizes": (0,)}, "batch_sizes: expected at least 1, got 0"),
        ({"temperatures": (-1.0,)}, "temperature: expected a value"),
        ({"kinds": ("smell",)}, "kinds: expected some of read"),
        ({"dtype": "int8"}, "dtype: expected float32, bfloat16"),
        ({"costs": "all"}, "costs: expected each, first or none, got 'all'"),
        ({"only": ("gqa",)}, "only: expected some of scenes, got 'gqa'"),
        ({"fps": 1e9}, "fps: expected a number in"),
    ],
)
def test_a_wrong_config_is_one_line(change, message):
    config = make_config("benchmark", [{"name": "plain"}], [{"dataset": "scenes"}], **change)
    with pytest.raises(UserError, match=message):
        benchmark_config.check(config)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dataset": "gqa"}, "datasets: expected one of scenes, examples, llava"),
        ({"dataset": "scenes", "mode": "both"}, "expected mode score or speed, got 'both'"),
        ({"dataset": "scenes", "limit": -1}, "expected a limit of at least 0, got -1"),
        ({"dataset": "scenes", "size": 3}, "expected only the fields dataset, .*, got size"),
    ],
)
def test_a_wrong_entry_is_one_line(entry, message):
    with pytest.raises(UserError, match=message):
        benchmark_config.check_entry(ENTRY | entry)


def test_the_choice_depends_on_names_and_seed_alone():
    groups = {f"q{i}": [f"q{i}"] for i in range(50)}
    chosen = sample.choose(groups, 10, seed=0)
    backwards = dict(reversed(list(groups.items())))
    assert sample.choose(backwards, 10, seed=0) == chosen
    assert len(set(chosen)) == 10
    assert sample.choose(groups, 10, seed=1) != chosen
    # Others that are added push some out, and change the order of none.
    more = sample.choose(groups | {f"r{i}": [f"r{i}"] for i in range(50)}, 10, seed=0)
    kept = [uid for uid in more if uid in groups]
    assert kept == chosen[: len(kept)]
    assert sorted(sample.choose(groups, 0, seed=0)) == sorted(groups)


def test_groups_are_taken_whole():
    groups = {name: [f"{name}{i}" for i in range(4)] for name in "abc"}
    chosen = sample.choose(groups, 10, seed=0)
    assert len(chosen) == 8
    assert all(chosen.count(f"{name}0") == chosen.count(f"{name}3") for name in "abc")
    assert len(sample.choose(groups, 2, seed=0, whole=True)) == 8  # two questions, four rotations


def test_a_sample_counts_faults_and_keeps_its_list(tmp_path):
    there = tmp_path / "there.png"
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(there)
    source = _List(
        Fault("x", "wrong type", "x: not a text"),
        _question("a", images=(str(there),)),
        _question("b", images=(Picture(path=str(tmp_path / "gone.png")),)),
        _question("c", images=(Picture(data=b"png"),)),
    )
    found = sample.take(source, _entry(), 0, tmp_path)
    assert found.uids == ("a", "c")
    assert found.faults == {"wrong type": 1, "missing image": 1}
    assert found.quoted[1].endswith("gone.png: expected a file, found none")
    assert all(question.images == () for question in found.questions)
    assert [q.uid for q in sample.asked(found)] == ["a", "c"]
    assert [q.images for q in sample.asked(found)][1] == (Picture(data=b"png"),)
    path = tmp_path / "ids" / "given-score.json"
    assert sorted(json.loads(path.read_text())["ids"]) == ["a", "c"]
    # More data later: the list stays. Another limit: another list.
    grown = _List(*source.items, _question("d"))
    assert sample.take(grown, _entry(), 0, tmp_path).uids == ("a", "c")
    assert len(sample.take(grown, _entry(limit=2), 0, tmp_path).uids) == 2
    assert sample.take(grown, _entry(), 0, tmp_path).uids == ("a", "c", "d")


def test_a_digest_tells_other_prompts_apart(tmp_path):
    first, same, other = (
        sample.take(_List(question), _entry(), 0, tmp_path).digest
        for question in (_question("a"), _question("a"), Question("a", "a", "Other?", 8))
    )
    assert first == same != other


def test_a_digest_tells_other_pictures_apart_and_not_another_folder(tmp_path):
    """The same name and question about another picture is another answer."""

    def digest(**shown):
        return sample.take(_List(_question("a", **shown)), _entry(), 0, tmp_path).digest

    paths = [tmp_path / folder / "p.png" for folder in ("here", "there", "other")]
    for path, content in zip(paths, (b"picture", b"picture", b"longer picture"), strict=True):
        path.parent.mkdir()
        path.write_bytes(content)
    here, there, other = (digest(images=(str(path),)) for path in paths)
    assert here == there != other
    assert digest(videos=(str(paths[0]),)) == here
    assert digest(images=(Picture(path=str(paths[1])),)) == here
    held = {digest(images=(Picture(data=data),)) for data in (b"one", b"two")}
    drawn = {digest(images=(np.full((2, 2, 3), value, np.uint8),)) for value in (0, 1)}
    filmed = {
        digest(videos=(Video(np.full((1, 2, 2, 3), value, np.uint8), (0.0,)),)) for value in (0, 1)
    }
    assert [len(each) for each in (held, drawn, filmed)] == [2, 2, 2]
    easy, hard = (
        sample.take(SceneSource(1, 0, 0, ("read",), hard=hard), _entry(), 0, tmp_path).digest
        for hard in (False, True)
    )
    assert easy != hard


def test_a_group_with_a_missing_picture_is_not_whole(tmp_path):
    source = _List(
        _question("a-0", "a"), _question("a-1", "a", images=(str(tmp_path / "gone.png"),)),
        _question("b-0", "b"), Fault("c-0", "wrong type", "no question"),
    )  # fmt: skip
    source.name = "nlvr2"
    found = sample.take(source, _entry(), 0, tmp_path)
    assert (found.uids, found.group_sizes) == (("a-0", "b-0"), {"a": 2, "b": 1})


def test_the_rest_of_a_source_is_not_read_for_nothing(tmp_path):
    source, read = _List(), []

    def items():
        for uid in "abcdef":
            read.append(uid)
            yield _question(uid)

    source.items = list(items())
    found = sample.take(source, _entry(limit=1), 2, tmp_path)
    read.clear()
    source.items = items()
    assert [question.uid for question in sample.asked(found)] == list(found.uids)
    assert read[-1] == found.uids[0] != "f"


def test_two_entries_under_one_name_are_refused():
    entry = {"dataset": "scenes", "label": "s"}
    config = make_config("benchmark", [{"name": "plain"}], [entry, entry | {"mode": "speed"}])
    benchmark_config.check(config)
    config = make_config("benchmark", [{"name": "plain"}], [entry, entry | {"limit": 3}])
    with pytest.raises(UserError, match="expected different labels, got s in mode score twice"):
        benchmark_config.check(config)
    config.datasets = ({"dataset": "scenes"},)  # as a command line gives them
    benchmark_config.check(config)
    config.datasets = ({"limit": 3},)
    with pytest.raises(UserError, match=r"datasets: expected one of scenes, examples, .*, got ''"):
        benchmark_config.check(config)


def test_scenes_are_held_out_and_know_their_answers():
    source = SceneSource(2, seed=0, first=5, kinds=("read", "describe"))
    first, *rest = source
    assert [q.uid for q in (first, *rest)] == [
        "scenes/held_out/1000005/read", "scenes/held_out/1000006/read",
        "scenes/held_out/1000005/describe", "scenes/held_out/1000006/describe",
    ]  # fmt: skip
    asked = first.gold.asked
    assert first.text == asked.qa.question
    assert asked.is_correct(asked.qa.answer)
    assert np.array_equal(first.images[0], asked.scene.image)


def test_examples_of_a_user(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text(
        '{"prompt": "How many?", "answer": "two", "images": ["p.png"]}\n'
        '{"prompt": "Nothing right is known"}\n'
        '{"id": "n", "prompt": "Colour?", "answer": ["red", "dark red"]}\n'
    )
    first, fault, last = ExampleSource(path, 16)
    assert (first.uid, first.gold) == ("examples/line-1", ("two",))
    assert first.images == (str(tmp_path / "p.png"),)
    assert (fault.kind, fault.message) == ("bad line", "mine.jsonl:2: missing field 'answer'")
    assert (last.uid, last.gold, last.max_new_tokens) == ("examples/n", ("red", "dark red"), 16)


@pytest.fixture
def chartqa(tmp_path):
    folder = tmp_path / "chartqa" / "test"
    folder.mkdir(parents=True)
    for part, query in (("human", "How many bars?"), ("augmented", "What is the sum?")):
        rows = [{"imgname": f"{i}.png", "query": query, "label": str(i)} for i in range(3)]
        (folder / f"test_{part}.json").write_text(json.dumps(rows))
    (folder / "png").mkdir()
    for i in range(3):
        Image.fromarray(np.full((6, 8, 3), i, np.uint8)).save(folder / "png" / f"{i}.png")
    return tmp_path


def test_a_public_set_has_other_prompts_in_each_mode(chartqa):
    variants = [{"name": "plain"}]
    config = make_config("benchmark", variants, [{"dataset": "scenes"}], root=str(chartqa))
    short, long = (
        list(_opened(config, _entry(dataset="chartqa", mode=mode))) for mode in ("score", "speed")
    )
    assert len(short) == len(long) == 6
    assert short[0].text == "How many bars?\nAnswer the question with a single word."
    assert "detailed explanation" in long[0].text
    assert (short[0].max_new_tokens, long[0].max_new_tokens) == (16, 1024)
    assert short[0].gold.ground_truth == "0"
    config.max_new_tokens = 40  # of long answers only: a short one is as its data set says
    short, long = (
        next(iter(_opened(config, _entry(dataset="chartqa", mode=mode))))
        for mode in ("score", "speed")
    )
    assert (short.max_new_tokens, long.max_new_tokens) == (16, 40)
    some = _opened(config, _entry(dataset="chartqa", where={"part": "augmented"}))
    assert {q.text.splitlines()[0] for q in some} == {"What is the sum?"}


def test_made_up_files_are_never_scored(tmp_path):
    (tmp_path / "MADEUP_test.tsv").write_text("index\n")
    config = make_config("benchmark", [{"name": "plain"}], [{"dataset": "scenes"}],
                         root=str(tmp_path))  # fmt: skip
    config.paths.mmbench = "MADEUP_test.tsv"
    with pytest.raises(UserError, match=r"MADEUP_test\.tsv: made up, never scored"):
        _opened(config, _entry(dataset="mmbench", mode="score"))


def test_windows_hold_all_in_order():
    assert list(sample.windows(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(sample.windows([], 2)) == []


def test_the_next_one_is_made_while_one_is_used():
    made, begun = [], threading.Event()

    def source():
        for number in range(3):
            made.append((number, threading.current_thread() is threading.main_thread()))
            if number == 1:
                begun.set()
            yield number

    items = sample.ahead(source())
    assert next(items) == 0
    assert begun.wait(5)  # 1 is made, nobody has asked for it
    assert list(items) == [1, 2]
    assert made == [(0, False), (1, False), (2, False)]


def test_a_fault_of_the_reading_thread_is_raised_where_its_item_is_asked_for():
    def source():
        yield 0
        raise UserError("broken shard")

    items = sample.ahead(source())
    assert next(items) == 0
    with pytest.raises(UserError, match="broken shard"):
        next(items)


def test_no_thread_is_left_behind_by_a_reader_that_is_let_go():
    def readers():
        return [t for t in threading.enumerate() if t.name.startswith("reader")]

    with contextlib.closing(sample.ahead(iter(range(9)))) as items:
        assert next(items) == 0
        assert readers()
    assert not readers()
