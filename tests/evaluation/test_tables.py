"""Markdown and report files."""

import json

import pytest

from tiger_jax.errors import UserError
from tiger_jax.evaluation import tables


def test_markdown_aligns_columns():
    assert tables.markdown(("name", "A"), [("easy", "3.25"), ("x", "-")]) == (
        "| name |    A |\n"
        "| ---- | ---: |\n"
        "| easy | 3.25 |\n"
        "| x    |    - |"
    )  # fmt: skip


def test_a_row_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="expected 2 cells, got 1"):
        tables.markdown(("a", "b"), [("1",)])


def test_cells():
    assert tables.number(None, ".2f") == "-"
    assert tables.number(0.0, ".1f") == "0.0"
    assert tables.with_error(0.5, 0.25, ".2f") == "0.50 ± 0.25"
    assert tables.with_error(0.5, None, ".2f") == "0.50"
    assert [tables.yes_no(x) for x in (True, False, None)] == ["yes", "NO", "-"]


def test_report_is_written_only_where_asked(tmp_path):
    tables.write_report("", {"a": 1})
    tables.write_report(str(tmp_path / "r.json"), {"a": 1})
    assert json.loads((tmp_path / "r.json").read_text()) == {"a": 1}
    assert len(list(tmp_path.iterdir())) == 1


def test_a_report_that_cannot_be_written_is_refused_before_the_run(tmp_path):
    tables.check_report("")
    tables.check_report(str(tmp_path / "r.json"))
    for path in (tmp_path, tmp_path / "none" / "r.json"):
        with pytest.raises(UserError, match="report: expected a file in a writable folder"):
            tables.check_report(str(path))
