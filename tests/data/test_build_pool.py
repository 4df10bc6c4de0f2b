"""Pools of tiny data sets counted by hand: composition, filter, faults, leaks, equal bytes."""

import hashlib
import json
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from configs.data import grpo_pool, kd_pool
from tests.data.pool_data import KEPT, UNFILTERED, contents, picture, small_config, write_data
from tests.samples import SAMPLES, needs_samples
from tiger_jax.data import build_pool
from tiger_jax.data.build_pool import build
from tiger_jax.data.pool import PoolSource
from tiger_jax.data.pool_files import open_records, read_manifest
from tiger_jax.data.pool_plan import settings_of
from tiger_jax.data.pool_rules import PoolPrompt, PoolRules, SourceRules, picture_ids
from tiger_jax.data.pool_selection import rank, select
from tiger_jax.data.public.record import Fault, Picture, PublicRecord
from tiger_jax.errors import UserError


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_data(tmp_path_factory.mktemp("public"))


@pytest.fixture(scope="module")
def grpo(data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("pools") / "grpo"
    build(small_config("grpo", data, out))
    return out


def records_of(folder: Path) -> list[dict]:
    return [json.loads(row) for row in open_records(sorted(folder.glob("pool-*.array_record")))]


def ids(records: list[dict], source: str) -> set[str]:
    return {row["uid"].split("/")[2] for row in records if row["source"] == source}


def left_out(manifest: dict, source: str) -> dict[str, int]:
    steps = manifest["sources"][source]["rules"]
    for step, after in pairwise(steps):
        assert after["before"] == step["after"]
    return {s["rule"]: s["before"] - s["after"] for s in steps if s["before"] != s["after"]}


def test_the_papers_composition():
    kd, grpo = kd_pool.get_config(), grpo_pool.get_config()
    assert {name: source.count for name, source in kd.sources.items()} == {
        "llava": 40_000, "textvqa": 34_000, "scienceqa": 6_000, "docvqa": 5_000,
        "tallyqa": 5_000, "chartqa": 2_500,
    }  # fmt: skip
    assert {name: source.count for name, source in grpo.sources.items()} == {
        "textvqa": 20_000, "docvqa": 10_000, "chartqa": 2_500, "tallyqa": 5_000,
        "scienceqa": 5_000, "llava": 37_500,
    }  # fmt: skip
    assert sum(source.count for source in kd.sources.values()) == 92_500
    assert sum(source.count for source in grpo.sources.values()) == 80_000
    assert (kd.filter.enabled, grpo.filter.enabled) == (False, True)
    assert grpo.sources.docvqa.splits == ("val", "test")


def test_counts_of_a_filtered_pool(grpo):
    manifest, records = read_manifest(grpo), records_of(grpo)
    assert Counter(row["source"] for row in records) == {
        "llava": 8, "textvqa": 3, "scienceqa": 2, "docvqa": 2, "tallyqa": 2, "chartqa": 2,
    }  # fmt: skip
    assert len({row["uid"] for row in records}) == manifest["records"] == manifest["count"] == 19
    assert left_out(manifest, "llava") == {
        "outside_subset": 1, "text_only": 1, "box": 1, "evaluation_picture": 1, "too_short": 1,
        "too_long": 1, "yes_no": 1,
    }  # fmt: skip
    assert left_out(manifest, "tallyqa") == {"outside_subset": 1, "same_picture": 1}
    assert left_out(manifest, "scienceqa") == {"text_only": 1}
    # Two of ChartQA's four are short yes/no questions; LLaVA gives two more than its own six.
    chartqa, llava = manifest["sources"]["chartqa"], manifest["sources"]["llava"]
    assert (chartqa["shortfall"], chartqa["written"]) == (2, 2)
    assert (llava["scaled_count"], llava["top_up"], llava["written"]) == (6, 2, 8)
    assert manifest["leaks"]["excluded"]["llava"] == {"tallyqa/test": 1}
    assert manifest["leaks"]["evaluation"]["textvqa/val"]["picture_ids"] == 1


def test_what_a_record_holds(grpo):
    by_uid = {row["uid"]: row for row in records_of(grpo)}
    asked = by_uid["scienceqa/train/0/0"]
    picture_bytes = {hashlib.sha256(p).hexdigest() for p in pictures_of(grpo)}
    assert asked["images"][0] in picture_bytes
    assert asked | {"images": []} == {
        "uid": "scienceqa/train/0/0", "source": "scienceqa", "split": "train", "images": [],
        "prompt": "Which of these is the largest one?\nA. an ant\nB. a cow", "ground_truth": "B",
        "tags": ["reasoning"], "n_words": 7,
    }  # fmt: skip
    hidden = [row["ground_truth"] for uid, row in by_uid.items() if uid.startswith("docvqa/test")]
    assert set(hidden) <= {None}  # the test half has no answers
    docvqa = read_manifest(grpo)["sources"]["docvqa"]
    assert docvqa["without_answer"] == len(hidden)
    assert {row["n_words"] for row in by_uid.values() if row["source"] == "tallyqa"} == {7}


def pictures_of(folder: Path) -> list[bytes]:
    return list(open_records(sorted(folder.glob("pictures-*.array_record"))))


def test_pictures_are_there_once(grpo):
    names = [hashlib.sha256(data).hexdigest() for data in pictures_of(grpo)]
    used = {name for row in records_of(grpo) for name in row["images"]}
    assert len(names) == len(set(names)) == read_manifest(grpo)["pictures"]
    assert set(names) == used


def test_an_unfiltered_pool_leaves_the_answers_to_the_verifier(data, tmp_path):
    config = small_config("kd", data, tmp_path / "kd", workers=0)
    config.sources.llava.count = 100
    manifest, records = build(config), records_of(tmp_path / "kd")
    assert ids(records, "llava") == UNFILTERED
    assert ids(records, "chartqa") == {"human-0", "human-1", "augmented-0", "augmented-1"}
    assert {row["target"] for row in records} == {None}
    llava = manifest["sources"]["llava"]
    assert llava["bad_pictures"] == 2
    assert llava["faults"] == {"damaged image": 1, "image shape": 1}
    lines = [json.loads(line) for line in (tmp_path / "kd/faults.jsonl").read_text().splitlines()]
    assert {(line["uid"].split("/")[2], line["kind"]) for line in lines} == {
        ("broken", "damaged image"), ("thin", "image shape"),
    }  # fmt: skip
    config.update({"answers": True, "out": str(tmp_path / "answers")})
    build(config)
    targets = {row["uid"]: row["target"] for row in records_of(tmp_path / "answers")}
    assert targets["llava/train/short/0"] == "A sofa."
    assert targets["tallyqa/train/2/0"] == "2"


def test_bad_pictures_are_replaced(data, tmp_path):
    """Ten of twelve candidates can be used: a pool that wants ten has them, whatever their rank."""
    config = small_config("grpo", data, tmp_path / "ten", top_up="")
    config.sources.llava.count = 10
    assert build(config)["sources"]["llava"]["bad_pictures"] == 2
    assert ids(records_of(tmp_path / "ten"), "llava") == KEPT


def test_the_same_inputs_give_the_same_bytes(data, tmp_path):
    """Wherever they lie, with any number of threads, faults and all."""
    built = []
    for root, workers in ((data, 1), (shutil.copytree(data, tmp_path / "moved"), 3)):
        config = small_config("kd", root, tmp_path / f"pool{workers}", workers=workers)
        config.sources.llava.count = 100
        build(config)
        built.append(contents(tmp_path / f"pool{workers}"))
    assert built[0] == built[1]
    assert b"thin" in built[0]["faults.jsonl"]


def test_a_smaller_pool_is_a_part_and_another_seed_another_choice(data, grpo, tmp_path):
    whole = {row["uid"] for row in records_of(grpo)}
    half = build(small_config("grpo", data, tmp_path / "half", scale=0.5))
    assert {row["uid"] for row in records_of(tmp_path / "half")} < whole
    # 3 + (2 of textvqa) + 1 + 1 + 1 + 2
    assert half["records"] == 10
    build(small_config("grpo", data, tmp_path / "other", seed=1))
    assert {row["uid"] for row in records_of(tmp_path / "other")} != whole


def test_missing_pictures_stop_the_build_unless_they_may_be_missing(data, tmp_path, monkeypatch):
    root = shutil.copytree(data, tmp_path / "data")
    (root / "textvqa/train_images/t1.jpg").unlink()
    config = small_config("grpo", root, tmp_path / "out")
    with pytest.raises(UserError, match=r"textvqa: 1 records lack .*textvqa/train/1/0: .*t1\.jpg"):
        build(config)
    assert "textvqa/train/1/0" in (tmp_path / "out/faults.jsonl").read_text()
    config.allow_missing = True
    again, write = [], build_pool.write_source
    monkeypatch.setattr(
        build_pool, "write_source", lambda s, *rest: again.append(s.name) or write(s, *rest)
    )
    manifest = build(config)
    assert again == ["textvqa", "llava"]  # the four before had no missing ones
    assert left_out(manifest, "textvqa") == {"missing image": 1}
    assert manifest["sources"]["textvqa"]["shortfall"] == 1


def test_text_that_no_tokenizer_reads_is_a_fault(data, tmp_path):
    """JSON may hold half of a surrogate pair."""
    root = shutil.copytree(data, tmp_path / "data")
    file = root / "textvqa/TextVQA_0.5.1_train.json"
    file.write_text(file.read_text().replace("on sign 1?", "on sign \\ud800?"))
    manifest = build(small_config("grpo", root, tmp_path / "out"))
    assert manifest["sources"]["textvqa"]["faults"].keys() == {"wrong type"}
    assert ids(records_of(tmp_path / "out"), "textvqa") == {"0", "2"}


def test_every_choice_stands_in_the_manifest(grpo):
    config = small_config("grpo", Path("elsewhere"), Path("other"))
    assert read_manifest(grpo)["settings"] == settings_of(config)
    fields = {"root", "out", "workers", "compare_with"}
    assert set(config.keys()) - fields == set(read_manifest(grpo)["settings"])
    assert str(grpo) not in (grpo / "manifest.json").read_text()


def test_a_pool_is_not_built_over_another(data, grpo, tmp_path, capsys):
    before = contents(grpo)
    assert build(small_config("grpo", data, grpo)) == read_manifest(grpo)
    assert "holds this pool already, 19 records" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"holds a pool with other settings; delete it"):
        build(small_config("grpo", data, grpo, seed=3))
    assert contents(grpo) == before


def test_evaluation_pictures_by_content(data, tmp_path):
    root = shutil.copytree(data, tmp_path / "data")
    picture(root / "textvqa/train_images/v0.jpg", 60)  # as that of t0
    config = small_config("kd", root, tmp_path / "out")
    config.evaluation.content = True
    config.evaluation.sets = ("textvqa/val",)
    manifest = build(config)
    assert manifest["leaks"]["excluded"]["textvqa"] == {"textvqa/val": 1}
    assert ids(records_of(tmp_path / "out"), "textvqa") == {"1", "2"}


def test_what_two_pools_share_is_counted(data, grpo, tmp_path):
    config = small_config("kd", data, tmp_path / "out", compare_with=str(grpo))
    manifest = build(config)
    shared = manifest["leaks"]["shared_with_other_pool"]
    assert shared["textvqa"] == {"records": 3, "pictures": 3}
    # All four of ChartQA's are here, two of them there.
    assert shared["chartqa"] == {"records": 2, "pictures": 2}
    assert read_manifest(grpo)["leaks"]["shared_with_other_pool"] is None
    assert list(manifest["inputs"]["compare_with"]) == ["manifest.json"]


def test_genome_pictures_that_are_cocos(data, tmp_path):
    """With Visual Genome's own table a test picture excludes the same one under COCO's number."""
    root = shutil.copytree(data, tmp_path / "data")
    rows = json.loads((root / "tallyqa/test.json").read_text())
    (root / "tallyqa/test.json").write_text(json.dumps([rows[0] | {"image": "VG_100K/77.jpg"}]))
    table = tmp_path / "image_data.json"
    table.write_text(json.dumps([{"image_id": 77, "coco_id": 1}, {"image_id": 8, "coco_id": None}]))
    config = small_config("kd", root, tmp_path / "out")
    config.sources.llava.count = 100
    config.evaluation.vg_image_data = str(table)
    build(config)
    assert ids(records_of(tmp_path / "out"), "llava") == UNFILTERED - {"bus"} | {"leak"}


COMMAND = ["--config", "configs/data/grpo_pool.py"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "out: expected the folder for the pool, got none"),
        (("out=x",), "root: expected the folder of the data sets (for coco_captions), got none"),
        (("out=x", "root=none"), "none/coco: expected the files of coco_captions, found "
         "nothing there; it is evaluation data whose pictures are excluded: set "
         "--config.evaluation.paths.coco_captions=PATH, or take 'coco_captions/val' out of"),
        (("out=x", "root=none", "evaluation.sets=()"),
         "none/chartqa: expected the files of chartqa, found nothing there"),
        (("out=x", "evaluation.sets=('cats/val',)"), "evaluation.sets: expected NAME/SPLIT"),
        (("out=x", "top_up=cats"), "top_up: expected one of chartqa, docvqa"),
        (("out=x", "scale=0."), "scale: expected a finite number above 0, got 0"),
        (("out=x", "scale=inf"), "scale: expected a finite number above 0, got inf"),
        (("out=x", "top_up=docvqa", "sources.docvqa.count=0"), "top_up: expected one of"),
        (("out=x", "evaluation.sets=()", "filter.tags=(('a', '(', ()),)"),
         "tag a: expected a regular expression, got '(' (missing ), unterminated"),
        (("out=x", "pool=sft"), "pool: expected one of kd, grpo, got 'sft'"),
        (("cats=1",), "unknown field"),
        (("out=/proc/none", "evaluation.sets=()", "root=DATA"), "/proc/none: cannot be written"),
    ],
)  # fmt: skip
def test_wrong_settings_in_one_line(words, told, data, capsys, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    words = [f"--config.{word.replace('DATA', str(data))}" for word in words]
    assert build_pool.main([*COMMAND, *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert told in error
    assert error.count("\n") == 1


def test_the_command(data, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    assert build_pool.main(["--help", *COMMAND]) == 0
    assert "--config.filter.yes_no_below=10" in capsys.readouterr().out
    words = [f"--config.root={data}", f"--config.out={tmp_path / 'out'}", "--config.scale=0.001",
             "--config.evaluation.sets=('tallyqa/test',)", "--config.workers=1"]  # fmt: skip
    assert build_pool.main([*COMMAND, *words]) == 0
    assert "textvqa: 3 of 3" in capsys.readouterr().out  # it wants 20

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(build_pool, "read_evaluation", interrupt)
    assert build_pool.main([*COMMAND, *words]) == 130
    assert capsys.readouterr().err.startswith("interrupted; the same command goes on")


def made_up(uid: str, name: str = "", **fields) -> PublicRecord:
    images = (Picture(path=f"/data/{name}", data=b"x"),) if name else ()
    return PublicRecord("llava", "train", uid, **({"question": "Why?", "images": images} | fields))


@pytest.mark.parametrize(
    ("source", "name", "meta", "expected"),
    [
        ("llava", "000000033471.jpg", {"image_folder": "coco/train2017"}, "coco:33471"),
        ("llava", "000000033471.jpg", {"image_folder": ""}, "coco:33471"),
        ("llava", "12.jpg", {"image_folder": "vg/VG_100K_2"}, "vg:12"),
        ("llava", "0a1b.jpg", {"image_folder": "textvqa/train_images"}, "openimages:0a1b"),
        ("textvqa", "0a1b.jpg", {"image_id": "0a1b"}, "openimages:0a1b"),
        ("tallyqa", "x.jpg", {"image": "val2014/COCO_val2014_000000000009.jpg"}, "coco:9"),
        ("tallyqa", "x.jpg", {"image": "VG_100K/9.jpg"}, "vg:9"),
        ("coco_captions", "000000000139.jpg", {"image_id": 139}, "coco:139"),
        ("scienceqa", "image.png", {}, "scienceqa:train/17"),
        ("chartqa", "two.png", {}, "chartqa:two.png"),
    ],
)
def test_one_picture_has_one_id_in_all_data_sets(source, name, meta, expected):
    record = made_up(f"{source}/train/17/0", name, meta=meta)
    record = PublicRecord(source, "train", record.uid, "Why?", record.images, meta=meta)
    assert picture_ids(record) == {expected}


def test_selection_ranks_by_seed_and_uid_alone():
    records = [made_up(f"llava/train/{n}/0", f"{n}.jpg") for n in range(20)]
    faults = [Fault("llava/train/x/0", "wrong type", "no")]
    told: list[Fault] = []
    found = select([*records, *faults], PoolRules(), 5, told.append)
    back = select(records[::-1], PoolRules(), 5, told.append)
    assert found.ranks == back.ranks == sorted(rank(5, record.uid) for record in records)
    assert (found.read, told) == (20, faults)
    assert found.ranks != select(records, PoolRules(), 6, told.append).ranks


def test_one_question_of_a_picture_is_that_of_the_lowest_rank():
    rules = PoolRules(SourceRules(one_per_picture=True))
    records = [made_up(f"llava/train/{n}/0", f"{n % 2}.jpg") for n in range(6)]
    found = select(records, rules, 0, lambda fault: None)
    lowest = [min(rank(0, r.uid) for r in records[first::2]) for first in (0, 1)]
    assert found.ranks == sorted(lowest)
    assert found.dropped == {"same_picture": 4}


def test_prompts_of_a_pool():
    choices = made_up("a", question="Which one?", choices=("x", "y"))
    assert PoolPrompt().text(choices) == "Which one?\nA. x\nB. y"
    assert PoolPrompt(choices=False).text(choices) == "Which one?"
    counted = PublicRecord("tallyqa", "train", "b", "How many cats are there?")
    assert PoolPrompt("score").text(counted) != PoolPrompt("speed").text(counted)
    assert "How many cats are there?" in PoolPrompt("score").text(counted)
    with pytest.raises(UserError, match=r"prompt.form: expected one of question, score, speed"):
        PoolPrompt("long")


def test_pictures_of_a_pool_are_the_bytes_of_the_files(data, grpo):
    shown = next(example for example in PoolSource.open(grpo) if "bus" in example.id)
    file = data / "llava/coco/train2017/000000000001.jpg"
    assert shown.images[0].read() == file.read_bytes()


@needs_samples
def test_a_pool_of_the_real_samples(tmp_path):
    """14 COCO train photos in LLaVA's layout, 3 questions about 2 charts, the one ScienceQA problem
    with a picture; TallyQA's 57 questions are about the photos that captions are evaluated on."""
    config = small_config("kd", SAMPLES, tmp_path / "pool", top_up="")
    for name, path, splits in (
        ("llava", "llava/derived_llava_layout_from_coco.json", ("train",)),
        ("chartqa", "chartqa/hf_layout", ("train",)),
        ("scienceqa", "scienceqa/hf_layout", ("test",)),
        ("tallyqa", "tallyqa/MADEUP_from_coco_instances.json", ("train",)),
    ):
        config.sources[name].update({"path": str(SAMPLES / path), "splits": splits, "count": 100})
    config.sources.textvqa.count = config.sources.docvqa.count = 0
    config.sources.tallyqa.image_prefixes = ()
    config.evaluation.sets = ("coco_captions/val",)
    config.evaluation.paths.coco_captions = str(SAMPLES / "coco")
    config.allow_missing = True  # those of TallyQA, were they not left out before
    manifest = build(config)
    written = {name: source["written"] for name, source in manifest["sources"].items()}
    assert written == {"llava": 14, "chartqa": 3, "scienceqa": 1, "tallyqa": 0}
    assert manifest["pictures"] == 17
    assert manifest["leaks"]["excluded"]["tallyqa"] == {"coco_captions/val": 57}
    assert left_out(manifest, "scienceqa") == {"text_only": 24}
    assert left_out(manifest, "llava") == {"text_only": 1}
    assert sum(source["shortfall"] for source in manifest["sources"].values()) == 382
