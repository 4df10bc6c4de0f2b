"""Which records of a source a pool takes: every record read once, only what is needed kept.

A record's rank is a hash of the seed and its uid: sorting by it is a seeded shuffle that no order
of files, no number of workers and no neighbour can change. A pool takes the first ranks whose
pictures can be used, so a smaller pool of the same seed is a part of a larger one.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tiger_jax.data.pool_rules import RULES, PoolRules, picture_name
from tiger_jax.data.public.record import Fault, PublicRecord

RANK_BYTES = 16
SAME_PICTURE = "same_picture"
MISSING = "missing image"
Item = PublicRecord | Fault


def rank(seed: int, uid: str) -> bytes:
    """The place of a record in the seed's order; equal only for equal uids."""
    return hashlib.sha256(f"{seed}/{uid}".encode()).digest()[:RANK_BYTES]


@dataclass
class Selection:
    """What one pass over a source found. 16 bytes are kept of each candidate, not the record."""

    ranks: list[bytes] = field(default_factory=list)
    """Of the candidates, in the seed's order."""
    read: int = 0
    """Records, without faults."""
    dropped: Counter[str] = field(default_factory=Counter)
    """By rule."""
    leaks: Counter[str] = field(default_factory=Counter)
    """Of the rule evaluation_picture, by evaluation data set."""
    missing: int = 0
    """Candidates without their picture; the reader's own faults are in none of these counts."""

    def steps(self) -> list[dict]:
        """[{rule, before, after}] in the order in which records are left out."""
        steps, before = [], self.read
        counts = self.dropped | {MISSING: self.missing}
        for name in (*(rule for rule in RULES if rule != SAME_PICTURE), MISSING, SAME_PICTURE):
            steps.append({"rule": name, "before": before, "after": before - counts.get(name, 0)})
            before = steps[-1]["after"]
        return steps


def select(
    items: Iterable[Item], rules: PoolRules, seed: int,
    report: Callable[[Fault], None], watch: Callable[[int], None] = lambda read: None,
) -> Selection:  # fmt: skip
    """Read a source once and rank what its rules keep.

    Args:
        report: called with each fault: those of the reader, and missing pictures of candidates.
        watch: called with the number of records read so far.
    """
    found = Selection()
    best: dict[str, bytes] = {}
    for item in items:
        if isinstance(item, Fault):
            report(item)
            continue
        found.read += 1
        watch(found.read)
        if reason := rules.reason_to_drop(item):
            found.dropped[reason] += 1
            if leak := rules.leaks_from(item) if reason == "evaluation_picture" else None:
                found.leaks[leak] += 1
        elif fault := missing_picture(item):
            report(fault)
            found.missing += 1
        elif rules.source.one_per_picture:
            _keep_first(best, item, rank(seed, item.uid), found)
        else:
            found.ranks.append(rank(seed, item.uid))
    found.ranks += best.values()
    found.ranks.sort()
    return found


def missing_picture(record: PublicRecord) -> Fault | None:
    """The fault of a record that names a file which is not there; nothing is opened."""
    for picture in record.images:
        if not picture.is_there:
            return Fault(record.uid, MISSING, f"{picture.path}: expected a picture, none there")
    return None


def _keep_first(best: dict[str, bytes], record: PublicRecord, own: bytes, found: Selection) -> None:
    """Of the questions about a picture the one of the lowest rank."""
    name = picture_name(record) or record.images[0].sha256() if record.images else record.uid
    if name in best:
        found.dropped[SAME_PICTURE] += 1
    best[name] = min(best.get(name, own), own)
