"""Steps of word vectors, against word2vec as it is defined: one pair at a time."""

import itertools

import numpy as np
import pytest
import torch

from regard.errors import RegardError
from regard.families.word_vectors.groups import Halves, Layers, learn
from regard.families.word_vectors.steps import Cut, Heap, VectorSteps
from regard.models.word_vectors.model import Word2VecConfig, WordVectors, huffman
from regard.text.specials import BOS, EOS, SPECIALS, UNK

WORDS = len(SPECIALS)  # the first word's id
ALL = [(m, loss) for m in ("skip-gram", "cbow") for loss in ("negative", "hierarchical")]


class Text:
    """Token ids in memory."""

    def __init__(self, ids) -> None:
        self.ids = np.asarray(ids)

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start, stop):
        assert 0 <= start < min(stop, len(self))
        return self.ids[start:stop]


def text_of(sequences) -> Text:
    return Text([i for words in sequences for i in (BOS, *words, EOS)])


def random_text(vocabulary, tokens, seed=0) -> Text:
    """Zipf's law, sequences of 1 to 40 words, some of them unknown."""
    draws = np.random.default_rng(seed)
    shares = 1 / np.arange(3, vocabulary - WORDS + 3)
    words = draws.choice(np.arange(WORDS, vocabulary), tokens, p=shares / shares.sum())
    words[draws.random(tokens) < 0.05] = UNK
    ends = np.cumsum(draws.integers(1, 41, tokens))
    return text_of(np.split(words, ends[ends < tokens]))


def steps_of(config, text, **settings) -> VectorSteps:
    counts = np.bincount(text.ids, minlength=config.vocabulary)
    return VectorSteps(config, text, counts, **settings)


def started(config, dtype=torch.float32) -> WordVectors:
    """Vectors as if they had learnt a little."""
    torch.manual_seed(3)
    vectors = WordVectors(config)
    torch.nn.init.normal_(vectors.input, std=0.5)
    torch.nn.init.normal_(vectors.output, std=0.5)
    return vectors.to(dtype)


class Twin:
    """word2vec by the book, on what a step drew: loops over groups, places and words."""

    def __init__(self, config, counts, vectors):
        self.config = config
        self.input = vectors.input.detach().numpy().copy()
        self.output = vectors.output.detach().numpy().copy()
        counts = np.where(np.arange(len(counts)) < WORDS, 0, counts)
        self.tree = huffman(counts) if config.loss == "hierarchical" else None

    def step(self, drawn, rate):
        loss = predictions = 0
        groups, blocks, places = drawn.left.shape
        for group, turn in itertools.product(range(groups), range(drawn.noise.shape[1])):
            self.change = np.zeros_like(self.input), np.zeros_like(self.output)
            for block, place in itertools.product(range(blocks), range(places)):
                at = self.config.window + (group * blocks + block) * places + place
                left, right = (int(side[group, block, place]) for side in drawn[1:3])
                before, behind = range(at - left, at), range(at + 1, at + right + 1)
                for read, target in self.asked(drawn.words, at, (before, behind), turn):
                    loss += self.predict(read, target, drawn.noise[group, turn, block])
                    predictions += 1
            self.input += rate * self.change[0]
            self.output += rate * self.change[1]
        return loss, predictions

    def asked(self, words, at, window, turn):
        """What is read, and the word that is to be predicted from it."""
        if self.config.method == "skip-gram":
            return [([words[at]], words[other]) for other in window[turn]]
        near = [words[other] for half in window for other in half]
        return [(near, words[at])] if near else []

    def predict(self, read, target, noise):
        hidden = np.mean([self.input[word] for word in read], axis=0)
        loss, pull = 0, 0
        for row, sign, weight in self.targets(target, noise):
            agree = 1 / (1 + np.exp(-sign * (hidden @ self.output[row])))
            loss -= weight * np.log(agree)
            pull += weight * (1 - agree) * sign * self.output[row]
            self.change[1][row] += weight * (1 - agree) * sign * hidden
        for word in read:
            self.change[0][word] += pull
        return loss

    def targets(self, target, noise):
        if self.tree:
            way = zip(self.tree.nodes[target], self.tree.turns[target], strict=True)
            return [(node, turn, 1) for node, turn in way if turn]
        share = self.config.negatives / len(noise)
        return [(target, 1, 1), *((word, -1, share) for word in noise if word != target)]


@pytest.mark.parametrize(("method", "loss"), ALL)
@pytest.mark.parametrize("window", [1, 3])
def test_a_step_is_that_of_word2vec(method, loss, window):
    config = Word2VecConfig(
        40, width=7, method=method, loss=loss, window=window, negatives=4, subsample=0.05
    )
    text = random_text(40, 600)
    steps = steps_of(config, text, piece=500, cut=Cut(8, 6, 5), seed=5, rate=0.03, last_rate=0.01)
    assert len(steps) == 5 * -(-len(text) // 500)
    vectors = started(config, torch.float64)
    twin = Twin(config, np.bincount(text.ids, minlength=40), vectors)
    for step in (0, 3, len(steps) - 1):
        drawn = steps.draw(step)
        assert drawn.left.shape[0] > 1  # groups
        wanted = twin.step(drawn, 0.03 - 0.02 * step / len(steps))
        found = steps.advance(vectors, step)
        assert found.loss == pytest.approx(wanted[0], rel=1e-6)
        assert found.predictions == wanted[1]
        np.testing.assert_allclose(vectors.input.detach(), twin.input, rtol=0, atol=1e-6)
        np.testing.assert_allclose(vectors.output.detach(), twin.output, rtol=0, atol=1e-6)


def test_changes_are_the_gradient():
    config = Word2VecConfig(30, width=5, subsample=0, negatives=3)
    steps = steps_of(config, random_text(30, 300), cut=Cut(16, 4, 99))
    group, _ = steps.prepared(0).groups
    before, after = (started(config, torch.float64) for _ in range(2))
    with torch.no_grad():
        layers = Layers(after.input.data, after.output.data)
        losses = torch.stack(learn(layers, group, steps.loss, 0.1, Halves(5)))
    hidden = before.input[group.centres]
    (rows,), weights, right = steps.loss.targets(group)
    scores = (hidden @ before.output[rows].mT).flatten()
    near, away = torch.log(torch.sigmoid(scores)), torch.log(torch.sigmoid(-scores))
    loss = -(near * right).sum() - (away * (weights - right)).sum()
    loss.backward()
    torch.testing.assert_close(losses.sum(), loss.detach())
    torch.testing.assert_close(after.input, before.input - 0.1 * before.input.grad)
    torch.testing.assert_close(after.output, before.output - 0.1 * before.output.grad)


def test_windows_stay_in_their_sequence_and_skip_what_is_no_word():
    text = text_of([[5, 6, UNK, 7], [8], [], [9, 5], [UNK, 6]])
    config = Word2VecConfig(12, window=4, subsample=0)
    drawn = steps_of(config, text, cut=Cut(4, 1, 99)).draw(0)
    np.testing.assert_array_equal(drawn.words, [0] * 4 + [5, 6, 7, 8, 9, 5, 6, 0] + [0] * 4)
    left, right = drawn.left.ravel(), drawn.right.ravel()
    reach = np.maximum(left, right)[:6]
    assert (left <= [0, 1, 2, 0, 0, 1, 0, 0]).all()
    assert (right <= [2, 1, 0, 0, 1, 0, 0, 0]).all()
    assert (reach >= [1, 1, 1, 0, 1, 1]).all()


def test_draws_have_the_shares_of_word2vec():
    text = random_text(30, 40_000)
    config = Word2VecConfig(30, window=3, subsample=0.01)
    counts = np.bincount(text.ids, minlength=30).astype(float)
    counts[:WORDS] = 0
    steps = steps_of(config, text, cut=Cut(32, 32, 4), epochs=10)
    drawn = [steps.draw(step) for step in range(len(steps))]
    share = 0.01 * counts.sum() / np.maximum(counts, 1)
    kept = np.minimum(np.sqrt(share) + share, 1) * counts * 10
    words = np.bincount(np.concatenate([each.words for each in drawn]), minlength=30)
    np.testing.assert_allclose(words[WORDS:], kept[WORDS:], atol=5 * np.sqrt(kept.max()))
    assert words[WORDS] < 0.5 * counts[WORDS] * 10  # thinned
    noise = np.concatenate([each.noise.ravel() for each in drawn])
    wanted = counts**0.75 * (counts > 0) / (counts**0.75 * (counts > 0)).sum() * len(noise)
    found = np.bincount(noise, minlength=30)
    assert not found[:WORDS].any()
    assert ((found - wanted) ** 2 / np.maximum(wanted, 1)).sum() < 60  # chi-square of 24
    reach = np.concatenate([np.minimum(each.left, each.right).ravel() for each in drawn])
    inside = np.concatenate([np.maximum(each.left, each.right).ravel() for each in drawn])
    far = np.bincount(reach[reach == inside], minlength=4)[1:]
    assert far[2] > 0.2 * far.sum()  # the largest window is not rare


@pytest.mark.parametrize("method", ["skip-gram", "cbow"])
def test_drawn_words_weigh_what_their_own_draws_would(method):
    """Over many steps a word is drawn against a prediction `negatives` · its share times, unless it
    is what is predicted."""
    config = Word2VecConfig(9, window=2, negatives=5, subsample=0, method=method)
    text = text_of([[5, 6, 5, 7, 8, 5, 6]] * 30)
    steps = steps_of(config, text, cut=Cut(8, 12, 4), epochs=300)
    counts = np.array([90, 60, 30, 30])
    shares = counts**0.75 / (counts**0.75).sum()
    found, wanted = np.zeros(4), np.zeros(4)
    for step in range(len(steps)):
        for group in steps.prepared(step).groups:
            kinds, weights, right = steps.loss.targets(group)
            places = group.centres.numel()
            shapes = [(len(rows), places // len(rows), rows.shape[1]) for rows in kinds]
            rows = [
                rows[:, None].expand(s).flatten() for rows, s in zip(kinds, shapes, strict=True)
            ]
            wrong = (weights - right).numpy()
            found += np.bincount(torch.cat(rows).numpy(), wrong, 9)[WORDS:]
            words, weights = group.predicted()
            words = words[:, None].expand_as(weights).numpy().ravel()
            right = np.bincount(words, weights.numpy().ravel(), 9)[WORDS:]
            wanted += 5 * shares * (right.sum() - right)
    np.testing.assert_allclose(found, wanted, rtol=0.02)


@pytest.mark.parametrize(("method", "loss"), ALL)
def test_words_in_the_same_company_become_nearest(method, loss):
    """Words 2k and 2k + 1 always stand between the same two others."""
    draws = np.random.default_rng(0)
    chosen = draws.integers(0, 12, 3000)
    left, right = WORDS + 12 + 2 * (chosen // 2), WORDS + 13 + 2 * (chosen // 2)
    text = text_of(np.stack((left, WORDS + chosen, right), axis=1))
    config = Word2VecConfig(WORDS + 24, width=16, method=method, loss=loss, window=2, subsample=0)
    steps = steps_of(config, text, epochs=4, rate=0.1, piece=2048, cut=Cut(8, 8, 2))
    torch.manual_seed(0)
    vectors = WordVectors(config)
    losses = [steps.advance(vectors, step) for step in range(len(steps))]
    assert losses[-1].loss / losses[-1].predictions < losses[0].loss / losses[0].predictions
    found = torch.nn.functional.normalize(vectors.vectors()[WORDS : WORDS + 12])
    nearest = (found @ found.T - 9 * torch.eye(12)).argmax(1)
    assert nearest.tolist() == [i ^ 1 for i in range(12)]


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(("method", "loss"), ALL)
def test_any_number_of_threads_gives_the_same_bits(method, loss, threads):
    text = random_text(2000, 4000)
    config = Word2VecConfig(2000, method=method, loss=loss, subsample=0)
    found = []
    for count in (1, 2, 3):
        threads(count)
        steps = steps_of(config, text, piece=1200)
        vectors = started(config)
        losses = [steps.advance(vectors, step) for step in range(2)]
        found.append((vectors.input, vectors.output, losses))
        assert torch.get_num_threads() == count
    for one in found[1:]:
        assert torch.equal(one[0], found[0][0])
        assert torch.equal(one[1], found[0][1])
        assert one[2] == found[0][2]


@pytest.mark.parametrize("method", ["skip-gram", "cbow"])
@pytest.mark.parametrize(
    ("words", "window", "negatives"), [(16, 5, 5), (64, 5, 5), (64, 15, 5), (64, 5, 20)]
)
def test_few_words_in_a_fixed_order_do_not_blow_up(method, words, window, negatives):
    """What follows is certain, so scores grow, and each word is in a group many times."""
    text = Text(WORDS + np.arange(40_000) % words)
    shape = {"window": window, "negatives": negatives}
    config = Word2VecConfig(WORDS + words, width=50, method=method, subsample=0, **shape)
    _learns_quietly(steps_of(config, text, epochs=5), config)


@pytest.mark.parametrize("method", ["skip-gram", "cbow"])
@pytest.mark.parametrize(("window", "negatives"), [(15, 5), (5, 20)])
def test_wide_windows_and_many_drawn_words_do_not_blow_up(method, window, negatives):
    text = random_text(5000, 60_000)
    shape = {"window": window, "negatives": negatives}
    config = Word2VecConfig(5000, width=50, method=method, subsample=0, **shape)
    _learns_quietly(steps_of(config, text, epochs=3), config)


def _learns_quietly(steps, config):
    torch.manual_seed(0)
    vectors = WordVectors(config)
    losses = [steps.advance(vectors, step) for step in range(len(steps))]
    first, last = (each.loss / each.predictions for each in (losses[0], losses[-1]))
    assert last < first
    assert vectors.input.abs().max() < 30


def test_any_step_can_be_taken_again():
    text = random_text(50, 3000)
    config = Word2VecConfig(50, width=8)
    whole, resumed = started(config), started(config)
    steps = steps_of(config, text, piece=512, seed=9, epochs=2)
    for step in range(len(steps)):
        steps.advance(whole, step)
    for step in range(len(steps)):
        steps_of(config, text, piece=512, seed=9, epochs=2).advance(resumed, step)
    assert torch.equal(whole.input, resumed.input)
    pieces = len(steps) // 2
    assert not np.array_equal(steps.draw(0).noise, steps.draw(pieces).noise)
    other = steps_of(config, text, piece=512, seed=10, epochs=2)
    assert not np.array_equal(steps.draw(0).noise, other.draw(0).noise)


@pytest.mark.parametrize("method", ["skip-gram", "cbow"])
def test_each_epoch_reads_every_piece_once(method):
    """Skip-gram as the text has them, continuous bags of words in another order each time."""
    text = Text(np.arange(WORDS, 1000))
    config = Word2VecConfig(1000, subsample=0, window=1, method=method)
    steps = steps_of(config, text, piece=64, epochs=2, cut=Cut(8, 1, 4))
    orders = [np.concatenate([each.words for each in map(steps.draw, half)])
              for half in (range(16), range(16, 32))]  # fmt: skip
    for order in orders:
        np.testing.assert_array_equal(np.sort(order[order > 0]), np.arange(WORDS, 1000))
    first, second = (order[order > 0] for order in orders)
    if method == "skip-gram":
        np.testing.assert_array_equal(first, np.arange(WORDS, 1000))
    assert np.array_equal(first, second) == (method == "skip-gram")


def test_numbers_choose_words_by_their_shares():
    counts = np.array([0, 0, 7, 1, 0, 2, 9000, 3, 0])
    heap = Heap(counts, 0.75)
    draws = np.random.default_rng(0)
    edges = np.cumsum(counts**0.75) / (counts**0.75).sum()
    beside = [np.nextafter(edges, 0), edges, np.nextafter(edges, 1)]
    numbers = np.concatenate([draws.random(5000), np.arange(512) / 512, *beside])
    numbers = numbers[numbers < 1][None]
    np.testing.assert_array_equal(heap.of(numbers), np.searchsorted(edges, numbers, "right"))


def test_a_piece_without_words_teaches_nothing():
    config = Word2VecConfig(8, width=4)
    text = Text([BOS, UNK, EOS, BOS, 5, 6, EOS, *[UNK] * 3])
    steps = steps_of(config, text, piece=3, epochs=1)
    for method in ("skip-gram", "cbow"):
        config = Word2VecConfig(8, width=4, method=method, subsample=0)
        steps = steps_of(config, text, piece=3, epochs=1)
        vectors = started(config)
        learned = [steps.advance(vectors, step) for step in range(len(steps))]
        assert sorted(each.predictions for each in learned) == [0, 0, 0, 2]
        assert torch.isfinite(vectors.input).all()


def test_mistakes_are_told():
    config = Word2VecConfig(8)
    text = text_of([[5, 6, 7]])
    with pytest.raises(RegardError, match="8 counts are needed"):
        VectorSteps(config, text, np.ones(7))
    with pytest.raises(RegardError, match="at least 2 different words"):
        VectorSteps(config, text, np.array([9, 9, 9, 9, 9, 9, 0, 0]))
    with pytest.raises(RegardError, match="3 problems"):
        VectorSteps(config, Text([]), np.ones(8), epochs=0, rate=-1.0)
    with pytest.raises(RegardError, match="5 steps, numbered from 0; 5 is none"):
        VectorSteps(config, text, np.ones(8)).advance(WordVectors(config), 5)


def test_walking_is_taking_step_after_step():
    rng = np.random.default_rng(0)
    ids = np.concatenate([[BOS, *rng.integers(5, 12, 9), EOS] for _ in range(60)])
    config = Word2VecConfig(12, width=8, subsample=0.0)
    found = []
    for walking in (False, True):
        torch.manual_seed(0)
        vectors = WordVectors(config)
        steps = VectorSteps(config, Text(ids), np.bincount(ids, minlength=12), epochs=2, piece=128)
        if walking:
            learned = [*steps.walk(vectors, 0, 3), *steps.walk(vectors, 3, len(steps))]
        else:
            learned = [steps.advance(vectors, step) for step in range(len(steps))]
        found.append((learned, vectors.input.detach().clone(), vectors.output.detach().clone()))
    (one, *weights), (other, *others) = found
    assert one == other
    assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))


@pytest.mark.parametrize("method", ["skip-gram", "cbow"])
def test_what_was_read_is_counted_by_the_pieces_that_were(method):
    """One of them is short; where the order changes, it may come at any time."""
    text = random_text(50, 1000)
    steps = steps_of(Word2VecConfig(50, method=method), text, epochs=3, piece=300)
    lengths = [len(steps.read(step)) for step in range(len(steps))]
    found = [steps.before(step) for step in range(len(steps) + 1)]
    assert found == [0, *itertools.accumulate(lengths)]
    assert min(lengths) < 300
