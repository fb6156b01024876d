"""The settings, the two layers and the tree of word vectors."""

import heapq
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import RegardError
from regard.models.word_vectors.model import Word2VecConfig, WordVectors, huffman


def test_all_mistakes_are_named_together():
    with pytest.raises(RegardError) as caught:
        Word2VecConfig(
            0, width=True, method="skipgram", loss="softmax", window=0, negatives=-1,
            subsample=float("nan"), power=-0.5,
        )  # fmt: skip
    told = str(caught.value)
    assert "8 problems" in told
    assert "method cannot be 'skipgram'; did you mean 'skip-gram'?" in told
    for name in ("vocabulary", "width", "loss", "window", "negatives", "subsample", "power"):
        assert f"- {name} " in told


def test_vectors_start_as_in_word2vec():
    torch.manual_seed(0)
    vectors = WordVectors(Word2VecConfig(1000, width=50))
    assert vectors.input.shape == vectors.output.shape == (1000, 50)
    assert not vectors.output.any()
    assert 0.0099 < vectors.input.abs().max() <= 0.01
    assert abs(vectors.input.mean()) < 1e-4
    assert vectors.config.kind == "vectors"


def test_either_layer_can_be_taken():
    vectors = WordVectors(Word2VecConfig(10, width=3))
    assert torch.equal(vectors.vectors(), vectors.input)  # nothing is learnt yet
    assert torch.equal(vectors.vectors("output"), vectors.output)
    assert not vectors.vectors().requires_grad
    with pytest.raises(RegardError, match="did you mean 'output'"):
        vectors.vectors("outputs")


@given(st.integers(1, 40), st.integers(1, 12), st.floats(0.1, 10), st.integers(0, 100))
def test_layers_are_balanced_and_predict_the_same(words, width, scale, seed):
    """Also where there are fewer words than numbers in a vector."""
    vectors = WordVectors(Word2VecConfig(words, width=width))
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        vectors.input.normal_(generator=draws)
        vectors.output.normal_(generator=draws).mul_(scale).add_(scale)
    first, second = vectors.vectors(), vectors.vectors("output")
    wanted = (vectors.input @ vectors.output.mT).detach()
    assert torch.allclose(first @ second.mT, wanted, atol=1e-3 * float(wanted.abs().max()))
    if words > 2 * width:  # else directions are missing
        moments = first.mT @ first, second.mT @ second
        assert torch.allclose(*moments, rtol=1e-3, atol=1e-3 * float(moments[0].abs().max()))


@pytest.mark.parametrize("number", [1e25, float("inf"), float("nan")])
def test_vectors_that_blew_up_can_be_looked_at(number):
    vectors = WordVectors(Word2VecConfig(50, width=4))
    torch.nn.init.normal_(vectors.output)
    vectors.input.data[7] = number
    assert vectors.vectors().shape == (50, 4)
    assert not vectors.vectors()[7].isfinite().any() or number == 1e25


def test_balanced_layers_stay_as_they_are():
    vectors = WordVectors(Word2VecConfig(50, width=4))
    torch.nn.init.normal_(vectors.input)
    vectors.output.data = vectors.input.data.flip(0)
    assert torch.allclose(vectors.vectors(), vectors.input, atol=1e-5)


def test_nodes_of_a_tree_are_not_words():
    vectors = WordVectors(Word2VecConfig(10, width=3, loss="hierarchical"))
    assert vectors.output.shape == (9, 3)
    with pytest.raises(RegardError, match="no vectors of words"):
        vectors.vectors("output")


COUNTS = st.lists(st.integers(0, 50), min_size=2, max_size=40).filter(
    lambda counts: sum(count > 0 for count in counts) > 1
)


@given(COUNTS)
def test_ways_through_the_tree_are_as_short_as_can_be(counts):
    tree = huffman(counts)
    lengths = (tree.turns != 0).sum(1)
    heap = [count for count in counts if count]
    heapq.heapify(heap)
    least = 0  # each join lengthens the ways of all below it by one
    while len(heap) > 1:
        joined = heapq.heappop(heap) + heapq.heappop(heap)
        heapq.heappush(heap, joined)
        least += joined
    assert int((np.array(counts) * lengths).sum()) == least


@given(COUNTS)
def test_ways_lead_to_one_word_each(counts):
    tree = huffman(counts)
    there = np.flatnonzero(counts)
    ways = [
        {int(node): int(turn) for node, turn in zip(*pair, strict=True) if turn}
        for pair in zip(tree.nodes[there], tree.turns[there], strict=True)
    ]
    for one, other in itertools.combinations(ways, 2):  # they part at exactly one node
        assert sum(one[node] != other[node] for node in one.keys() & other.keys()) == 1
    assert {node for way in ways for node in way} == set(range(len(there) - 1))
    assert all(0 in way for way in ways)  # the root
    assert not tree.turns[np.array(counts) == 0].any()


def test_a_tree_needs_two_words():
    with pytest.raises(RegardError, match="at least 2 words"):
        huffman([0, 7, 0])
