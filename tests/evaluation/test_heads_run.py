"""Draft heads in the comparison of drafters: exact A against the loop's, trees, missing runs."""

import dataclasses
import json

import pytest

from tests.assets import TINY_LLAVA
from tiger_jax import embedded
from tiger_jax.decoding.costs import Costs
from tiger_jax.embedded import HEADS, VLM
from tiger_jax.errors import UserError
from tiger_jax.evaluation import decoded_run, exact_run, variants
from tiger_jax.evaluation.exact_config import drafters_config
from tiger_jax.pipeline import Pipeline

HERE = [kind for kind in HEADS if embedded.drafter(kind=kind).is_dir()]
RUN = [kind for kind in ("tiger_head", "medusa") if kind in HERE]
"""One of each kind of drafter, chains drawn one by one and all at once."""
G, TREE, NODES, DEPTH = 5, "8,2,3", 8, 3
CHAINS = {"tiger_head": G, "medusa": 3}
"""A Medusa head with three blocks drafts no more, whatever it is asked."""


def costs_of(engine, *_) -> Costs:
    return Costs(plain_step=1.0, draft=0.1, round=1.2, draft_length=engine.drafter.spec.depth)


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> dict:
    """Four pictures, greedy, chains and a tree, and a run that was never made."""
    config = drafters_config(
        (*({"name": kind, "drafter": f"embedded:{kind}"} for kind in RUN),
         {"name": "gone", "drafter": "run:heads/gone"}),
        scenes=4, kinds=("describe",), temperatures=(0.0,), draft_lengths=(G,), batch_size=4,
        max_new_tokens=24,
        cache_dir=str(tmp_path_factory.mktemp("teacher")), teacher_batch=16, skip_missing=True,
        runs=str(tmp_path_factory.mktemp("runs")), decode=True, decode_scenes=4,
        decode_trees=(TREE,), decode_batches=(4,),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoded_run.costs, "measure", costs_of)
        found, text = exact_run.evaluate(config)
    return found | {"text": text}


def row_of(rows, **wanted):
    (row,) = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return row


@pytest.mark.parametrize("kind", RUN)
def test_exact_is_what_a_heads_chain_counts_when_greedy(report, kind):
    exact = row_of(report["rows"], variant=kind, g=G, kind="all")
    loop = row_of(report["decoded"], variant=kind, tree="chain")
    assert (loop["g"], loop["nodes"]) == (CHAINS[kind], CHAINS[kind] + 1)
    assert loop["identical_to_plain"] is True
    assert (exact["rounds"], exact["tokens"]) == (loop["rounds"], loop["tokens"])
    assert exact["A"] == loop["exact_A"] == pytest.approx(loop["A"], abs=1e-9)
    assert (loop["exact_difference"], loop["agrees"]) == (0, True)
    assert 0.5 < loop["A"] <= CHAINS[kind]
    assert exact["p_ge_2"] == pytest.approx(loop["p_ge_2"])


@pytest.mark.parametrize("kind", RUN)
def test_a_tree_is_decoded_and_has_no_exact_value(report, kind):
    tree = row_of(report["decoded"], variant=kind, tree=TREE)
    chain = row_of(report["decoded"], variant=kind, tree="chain")
    assert (tree["g"], tree["nodes"]) == (DEPTH, NODES)
    assert (tree["exact_A"], tree["exact_difference"], tree["agrees"]) == (None, None, None)
    assert tree["identical_to_plain"] is True
    assert (tree["tokens"], tree["prompts"]) == (chain["tokens"], chain["prompts"])
    assert 0.5 < tree["A"] <= DEPTH
    assert (tree["p_ge_4"], tree["p_ge_8"]) == (None, None)
    assert tree["predicted_speedup"] == pytest.approx(tree["tau"] / (DEPTH * 0.1 + 0.9))


@pytest.mark.parametrize("kind", RUN)
def test_rows_say_which_head(report, kind):
    assert len(report["decoded"]) == 2 * len(RUN)
    for row in (row for row in report["decoded"] if row["variant"] == kind):
        assert row["drafter_kind"] == kind
        assert (
            row["parameters"]
            == variants.find(({"name": "a", "drafter": f"embedded:{kind}"},), (), "runs")[0][
                0
            ].parameters
        )
        assert row["parameters"] > 10_000
        assert row["pooled"] is None
        assert (row["selector"], row["k"]) == (
            ("tiger", 8) if kind == "tiger_head" else ("none", None)
        )
    exact = row_of(report["rows"], variant=kind, kind="all")
    assert exact["parameters"] == row["parameters"]
    json.dumps(report)


def test_a_missing_run_is_left_out(report):
    assert report["left_out"] == ["gone"]
    assert "gone" not in {row["variant"] for row in report["rows"]}
    assert "Left out, no folder: gone." in report["text"]


def test_the_table_names_trees(report):
    lines = report["text"].splitlines()
    tables = [[cell.strip() for cell in line.split("|")] for line in lines if line.startswith("|")]
    first = next(number for number, row in enumerate(tables) if "tree" in row)
    tree, nodes = (tables[first].index(name) for name in ("tree", "nodes"))
    rows = [(row[tree], row[nodes]) for row in tables[first + 2 :]]
    assert rows == [
        row for kind in RUN for row in (("chain", str(CHAINS[kind] + 1)), (TREE, str(NODES)))
    ]  # fmt: skip


def test_trees_are_for_heads():
    """A small model drafts chains alone, whatever trees a config names."""
    config = drafters_config(
        ({"name": "a", "drafter": "b"},), draft_lengths=(3, G), decode_draft_lengths=(G,),
        decode_trees=(TREE,),
    )  # fmt: skip
    pair = Pipeline.load(TINY_LLAVA / "verifier", embedded.drafter(kind="tiger_head"))
    asked = decoded_run.drafts(config, pair)
    assert [(d.length, d.tree) for d in asked] == [(G, ""), (0, TREE)]
    spec = asked[1].of(pair).engine.drafter.spec
    assert (spec.nodes, spec.depth, spec.is_chain) == (NODES, DEPTH, False)
    small = dataclasses.replace(pair, kind=VLM)
    assert [(d.length, d.tree) for d in decoded_run.drafts(config, small)] == [(G, "")]


@pytest.mark.parametrize(
    ("tree", "message"),
    [("60,5", "draft tree: expected NODES,DEPTH,WIDTH, .* got '60,5'"),
     ("9,0,3", "tree: expected 2 to 4 nodes, got 9")],
)  # fmt: skip
def test_wrong_trees(tree, message):
    config = drafters_config(({"name": "a", "drafter": "b"},), decode_trees=(tree,))
    with pytest.raises(UserError, match=message):
        exact_run.check(config)


@pytest.mark.parametrize("kind", HERE)
def test_embedded_heads_are_variants(kind):
    """As their folders say, and with other k where they route."""
    wanted = {"name": "a", "drafter": f"embedded:{kind}"}
    found = variants.find((wanted,), (), "runs")[0][0]
    assert (found.kind, found.routes) == (kind, kind == "tiger_head")
    if found.routes:
        fewer = variants.find((wanted | {"routed_tokens": 2},), (), "runs")[0][0]
        assert (fewer.routed, found.trained.routed_tokens) == (2, 8)
    else:
        with pytest.raises(UserError, match=f"variant a: routed_tokens: .* got {kind}"):
            variants.find((wanted | {"routed_tokens": 2},), (), "runs")
