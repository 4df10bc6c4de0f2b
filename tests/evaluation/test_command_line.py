"""The command line: overrides, help, and one clear line for everything that is wrong."""

import re

import pytest

from tiger_jax import command_line, evaluate
from tiger_jax.errors import UserError

SCENES = "configs/eval/scenes.py"
PEER = "configs/eval/peer_transformers.py"


def test_overrides_keep_their_types():
    config = command_line.parse(
        ["--config", SCENES, "--config.scenes=7", "--config.temperatures=(0.0, 1.0)",
         "--config.verifier=folder"]
    )  # fmt: skip
    assert (config.scenes, config.temperatures, config.verifier) == (7, (0.0, 1.0), "folder")
    assert config.batch_size == 16
    nested = command_line.parse([f"--config={PEER}", "--config.random.verifier.vocab_size=400"])
    assert nested.random.verifier.vocab_size == 400


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([], "--config: expected a Python file such as"),
        (["--config"], "--config: expected a Python file such as"),
        (["--config", "configs/none.py"], "configs/none.py: expected a config file"),
        (["--config", SCENES, "--config.stepz=3"], f"{SCENES}: unknown field 'stepz'"),
        (["--config", SCENES, "--config.scenes=many"], "invalid literal for int"),
        (["--config", SCENES, "more"], "unexpected argument 'more'"),
        (["--config", SCENES, "--bogus=1"], "Unknown command line flag 'bogus'"),
        (["--config", SCENES, "--config.kinds=('smell',)"], "kinds: expected some of read, count"),
        (["--config", SCENES, "--config.kinds=()"], "kinds: expected some of .*, got none"),
        (["--config", SCENES, "--config.scenes=0"], "scenes: expected at least 1, got 0"),
        (["--config", SCENES, "--config.temperatures=(-1.0,)"], "temperature: expected a value"),
        (["--config", SCENES, "--config.temperatures=()"], "temperatures: expected at least one"),
        (["--config", SCENES, "--config.draft_confidence=1.0"], "draft_confidence: expected"),
        (["--config", SCENES, "--config.dtype=int8"], "dtype: expected float32, bfloat16"),
        (["--config", SCENES, "--config.difficulties=('odd',)"], "difficulties: expected some of"),
        (["--config", SCENES, "--config.verifier=none/at/all"], "expected a checkpoint folder"),
        (["--config", SCENES, "--config.report=none/r.json"], "report: expected a file in"),
        (["--config", SCENES, "--config.task=dance"], "task: expected one of scenes"),
        (["--config", PEER, "--config.pairs=('pears',)"], "pairs: expected some of embedded"),
        (["--config", PEER, "--config.random.scenes=0"], "scenes: expected at least 1"),
        (["--config", "configs/sft.py"], "task: expected one of scenes"),
    ],
)
def test_bad_input_is_one_line_and_code_2(line, message, capsys):
    assert evaluate.main(line) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert re.search(message, err)


def test_a_broken_config_file_is_one_line(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("def get_config():\n    return {'a': 1\n")
    with pytest.raises(UserError, match=r"broken\.py: "):
        command_line.parse(["--config", str(path)])


def test_an_unknown_pair_is_one_short_line():
    with pytest.raises(UserError) as caught:
        command_line.parse(["--config", "configs/kd.py:qwen4"])
    assert str(caught.value) == (
        "configs/kd.py:qwen4: pair: expected one of tiny_llava, tiny_qwen3_vl, llava_next, "
        "qwen3_vl, got 'qwen4'"
    )


def test_help_lists_fields_of_groups_by_their_whole_names():
    text = command_line.help_text(["--config", "configs/grpo.py", "--help"], "Train.")
    assert "\n  --config.align.objective='expected_acceptance'\n" in text
    assert "\n  --config.mesh.tensor=1\n" in text
    assert "--config.align={" not in text


def test_help_lists_the_fields(capsys):
    assert evaluate.main(["--help"]) == 0
    assert "--config configs/eval/scenes.py" in capsys.readouterr().out
    assert evaluate.main(["--config", SCENES, "--help"]) == 0
    assert "--config.draft_length=5" in capsys.readouterr().out


def test_interruption_is_code_130(monkeypatch, capsys):
    def interrupted(name):
        def run(config):
            raise KeyboardInterrupt

        return run

    monkeypatch.setattr(evaluate, "_task", interrupted)
    assert evaluate.main(["--config", SCENES]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    "line",
    [
        ["--config", "configs/kd.py", "--config.pair=llava_next", "--config.steps=3"],
        ["-config=configs/kd.py", "--config.steps=3", "--config.pair", "llava_next"],
        ["--config.pair=llava_next", "--config=configs/kd.py", "--config.steps=3"],
        ["--config", "configs/kd.py:llava_next", "--config.steps=3"],
    ],
)
def test_a_pair_is_named_behind_the_file_or_as_a_field(line):
    config = command_line.parse([*line, "--config.dry_run_card=h200"])
    assert (config.run_dir, config.steps) == ("runs/llava_next/kd", 3)
    assert config.dry_run_card == "h200"


@pytest.mark.parametrize(
    "name",
    ["ablation", "batch", "drafters", "heads", "k_sweep", "objectives", "selectors", "temperature"],
)
def test_a_pair_has_its_own_runs_questions_and_clips(name):
    default, qwen = (
        command_line.parse(["--config", f"configs/exact/{name}.py", *pair])
        for pair in ([], ["--config.pair=tiny_qwen3_vl"])
    )
    assert (default.runs, default.cache_dir, default.clips) == ("runs", "runs/teacher", 0)
    assert default.kinds == ("read", "count", "attribute", "describe")
    own = "runs/tiny_qwen3_vl"
    assert (qwen.pair, qwen.runs, qwen.cache_dir) == ("tiny_qwen3_vl", own, f"{own}/teacher")
    assert qwen.clips == qwen.scenes > 0
    assert qwen.kinds[4:] == ("event", "order", "state", "story")


def test_a_config_that_knows_no_pairs():
    with pytest.raises(UserError, match=r"curves\.py:tiny_llava: expected the file alone"):
        command_line.parse(["--config", "configs/eval/curves.py:tiny_llava"])


def test_a_pair_is_named_once():
    line = ["--config", "configs/kd.py:llava_next", "--config.pair=tiny_llava"]
    with pytest.raises(
        UserError, match=r"expected a file without a pair, got configs/kd\.py:llava"
    ):
        command_line.parse(line)
