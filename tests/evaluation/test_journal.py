"""The journal of an evaluation: what survives a kill, and what is refused."""

import errno
import json
import os
import re

import pytest

from tiger_jax.errors import UserError
from tiger_jax.evaluation.journal import Journal, cell_fingerprint

ROW = {"uid": "a", "text": "two", "tokens": [5, 6, 2], "accepted": [1]}


def test_a_fingerprint_changes_with_every_value_and_not_with_the_order():
    about = {"seed": 0, "g": 5, "ids": "ab"}
    assert cell_fingerprint(about) == cell_fingerprint({"ids": "ab", "g": 5, "seed": 0})
    others = [about | {name: "other"} for name in about]
    assert len({cell_fingerprint(each) for each in [about, *others]}) == 4


def test_a_second_run_reads_what_the_first_one_wrote(tmp_path):
    path = tmp_path / "journal.jsonl"
    with Journal.open(path) as journal:
        journal.append("c1", {"rows": [ROW], "seconds": {"decode": 1.5}, "peak_bytes": 7})
        journal.append("c1", {"failed": {"b": "damaged image"}})
        journal.append("c1", {"rows": [ROW | {"uid": "d"}], "seconds": {"decode": 0.5}})
        journal.append("c2", {"costs": {"c": 0.25}, "about": {"g": 5}})
        first = [journal.cell(name) for name in ("c1", "c2", "c3")]
    with Journal.open(path) as journal:
        assert [journal.cell(name) for name in ("c1", "c2", "c3")] == first
        cell = journal.cell("c1")
    assert cell.rows["a"] == ROW
    assert (cell.seconds, cell.peak_bytes, cell.batches) == ({"decode": 2.0}, 7, 2)
    assert cell.has(["a", "b", "d"])
    assert not cell.has(["a", "c"])
    assert (first[1].costs, first[1].about) == ({"c": 0.25}, {"g": 5})


@pytest.mark.parametrize("tail", [b'{"cell": "c1", "rows": [{"ui', b'{"cell"}\n', b"\x00\x00\x00"])
def test_a_torn_last_line_is_cut_off_and_the_next_one_is_whole(tmp_path, tail):
    path = tmp_path / "journal.jsonl"
    with Journal.open(path) as journal:
        journal.append("c1", {"rows": [ROW]})
    path.write_bytes(path.read_bytes() + tail)
    with Journal.open(path) as journal:
        assert list(journal.cell("c1").rows) == ["a"]
        journal.append("c1", {"rows": [ROW | {"uid": "b"}]})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["rows"][0]["uid"] for line in lines] == ["a", "b"]


def test_a_last_line_without_its_end_is_torn_though_it_can_be_read(tmp_path):
    """Its end was not written: neither was it said to be on disk."""
    path = tmp_path / "journal.jsonl"
    path.write_text(json.dumps({"cell": "c1", "rows": [ROW]}))
    with Journal.open(path) as journal:
        assert journal.cell("c1").rows == {}


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text('not a line\n{"cell": "c1"}\n')
    with pytest.raises(UserError, match=rf"{re.escape(str(path))}: line 1: expected a line"):
        Journal.open(path)


def test_two_runs_do_not_share_a_journal(tmp_path):
    path = tmp_path / "journal.jsonl"
    refused = pytest.raises(UserError, match="expected no other run to write it")
    with Journal.open(path), refused:
        Journal.open(path)
    with Journal.open(path) as journal:
        assert journal.cell("c1").rows == {}


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    path = tmp_path / "journal.jsonl"
    with Journal.open(path) as journal:
        journal.append("c1", {"rows": [ROW]})
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", _full)
            with pytest.raises(UserError, match=r"journal\.jsonl: cannot be written \(No space"):
                journal.append("c1", {"rows": [ROW | {"uid": "b"}]})
        assert list(journal.cell("c1").rows) == ["a"]


def _full(descriptor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_folder_in_its_place_is_one_line(tmp_path):
    with pytest.raises(UserError, match="cannot be written"):
        Journal.open(tmp_path)
