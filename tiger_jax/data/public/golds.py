"""Golds that are one letter, or one text that may be hidden."""

from tiger_jax.data.public.record import BadRecord
from tiger_jax.data.public.rows import Row


def gold_letter(row: Row, name: str, n_choices: int) -> str | None:
    """The letter of the right choice; None where the field is absent or empty (hidden).

    Raises:
        BadRecord: not one of the first `n_choices` letters.
    """
    letter = row.text(name, "").strip()
    if not letter:
        return None
    letters = [chr(ord("A") + i) for i in range(n_choices)]
    if letter not in letters:
        message = f"{row.place}: {name}: expected one of {', '.join(letters)}, got {letter!r}"
        raise BadRecord("wrong value", message)
    return letter


def known_golds(gold: str | None) -> tuple[str, ...]:
    """The answers of a record with at most one gold."""
    return () if gold is None else (gold,)
