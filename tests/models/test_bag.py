"""A bag of words is what it says: order-free, a linear classifier or a perceptron, provably so."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from regard.decoding.decode_batch import DecodeBatch
from regard.decoding.search.beam import search
from regard.decoding.settings import TARGET, Beam, Sampling
from regard.errors import RegardError
from regard.models.bag.model import NEVER, SPECIALS, Bag, BagConfig, bag_weights
from regard.models.protocol import Memory, SequenceModel
from regard.text import specials

BOS, EOS, UNK = specials.BOS, specials.EOS, specials.UNK
WORDS, LABELS = 12, 4
SHAPES = [{"layers": 0}, {"layers": 1, "width": 7}, {"layers": 3, "width": 5}]


def bag(**settings) -> Bag:
    """Any weights but those it starts with, in double precision."""
    model = Bag(BagConfig(SPECIALS + LABELS, SPECIALS + WORDS, **settings)).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_()
    return model


def texts(rows: int = 6, longest: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources with padding, ends and unknown words in them."""
    source = torch.randint(2, SPECIALS + WORDS, (rows, longest))
    lengths = torch.randint(1, longest + 1, (rows,))
    return source.masked_fill(torch.arange(longest) >= lengths[:, None], specials.PAD), lengths


def test_it_is_a_sequence_model_and_knows_the_special_tokens():
    assert isinstance(bag(), SequenceModel)
    assert len(specials.SPECIALS) == SPECIALS


@given(st.lists(st.integers(0, SPECIALS + WORDS - 1), min_size=1, max_size=9), st.integers(0, 9))
def test_the_bag_holds_relative_frequencies_of_words(ids, length):
    length = min(length, len(ids))
    source = torch.tensor([ids])
    weights = bag_weights(source, [length])
    found = torch.zeros(SPECIALS + WORDS).index_add(0, source[0], weights[0])
    words = [token for token in ids[:length] if token >= SPECIALS]
    wanted = [words.count(token) / max(1, len(words)) for token in range(SPECIALS + WORDS)]
    torch.testing.assert_close(found, torch.tensor(wanted))


@pytest.mark.parametrize("settings", SHAPES)
def test_neither_order_nor_padding_nor_special_tokens_change_it(settings):
    model = bag(**settings)
    source, lengths = texts()
    wanted = model.encode(source, lengths).values
    for row, length in enumerate(lengths.tolist()):
        words = source[row, :length][torch.randperm(length)]
        extra = torch.tensor([EOS, specials.PAD, specials.MASK, BOS, UNK])
        alone = torch.cat([extra[:2], words, extra])[None]
        torch.testing.assert_close(model.encode(alone).values[0], wanted[row])
    # Words behind the length are padding too, whatever they are.
    hidden = torch.where(torch.arange(source.shape[1]) < lengths[:, None], source, 11)
    torch.testing.assert_close(model.encode(hidden, lengths).values, wanted)


def test_a_text_without_words_has_the_prior():
    model = bag()
    found = model.encode(torch.tensor([[EOS, UNK, specials.PAD]])).values[0, 0]
    torch.testing.assert_close(found[SPECIALS:], model.bias[SPECIALS:].data)
    nothing = model.encode(torch.zeros(1, 0, dtype=torch.long), [0]).values[0, 0]
    torch.testing.assert_close(nothing, found)


def test_without_hidden_layers_it_is_multinomial_logistic_regression():
    model = bag()
    source, lengths = texts()
    targets = torch.randint(SPECIALS, SPECIALS + LABELS, (len(source),))
    words = [row[:n][row[:n] >= SPECIALS] for row, n in zip(source, lengths, strict=True)]
    starts = torch.tensor([0, *(len(row) for row in words)]).cumsum(0)[:-1]
    weight = model.words.weight[:, SPECIALS:].detach().clone().requires_grad_()
    bias = model.bias[SPECIALS:].detach().clone().requires_grad_()
    logits = F.embedding_bag(torch.cat(words), weight, starts, mode="mean") + bias
    loss = F.cross_entropy(logits, targets - SPECIALS, reduction="sum")
    loss.backward()
    begin = torch.full((len(source), 1), BOS)
    found = model(begin, model.encode(source, lengths))[:, 0]
    torch.testing.assert_close(found[:, SPECIALS:], logits)
    ours = F.cross_entropy(found, targets, reduction="sum")
    ours.backward()
    torch.testing.assert_close(ours, loss, rtol=1e-14, atol=0)
    torch.testing.assert_close(model.words.weight.grad[:, SPECIALS:], weight.grad)
    torch.testing.assert_close(model.bias.grad[SPECIALS:], bias.grad)
    assert not model.words.weight.grad[:, :SPECIALS].any()
    assert not model.words.weight.grad[:SPECIALS].any()


def loss_of(model: Bag, source, lengths, targets) -> torch.Tensor:
    begin = torch.full((len(source), 1), BOS)
    logits = model(begin, model.encode(source, lengths))[:, 0]
    return F.cross_entropy(logits, targets, reduction="sum")


@pytest.mark.parametrize("settings", SHAPES)
def test_gradients_are_the_limits_of_differences(settings):
    """(f(a + h) − f(a − h)) / 2h for every weight, by hand (M25)."""
    model = bag(**settings)
    source, lengths = texts(rows=4)
    targets = torch.tensor([5, 6, UNK, 8])
    loss_of(model, source, lengths, targets).backward()
    h = 1e-6
    for weight in model.parameters():
        flat, grad = weight.data.view(-1), weight.grad.view(-1)
        for place in range(flat.numel()):
            kept, ends = flat[place].item(), []
            for step in (h, -h):
                flat[place] = kept + step
                ends.append(float(loss_of(model, source, lengths, targets).detach()))
            flat[place] = kept
            assert (ends[0] - ends[1]) / (2 * h) == pytest.approx(float(grad[place]), abs=1e-6)


@pytest.mark.parametrize("settings", SHAPES)
def test_torch_finds_the_gradients_right_too(settings):
    model = bag(**settings)
    source, lengths = texts(rows=3)
    targets = torch.tensor([5, 7, 8])
    names = [name for name, _ in model.named_parameters()]

    def loss(*weights):
        state = dict(zip(names, weights, strict=True))
        memory = torch.func.functional_call(
            _Encoder(model), {f"model.{n}": w for n, w in state.items()}, (source, lengths)
        )
        return F.cross_entropy(memory[:, 0], targets)

    assert torch.autograd.gradcheck(loss, [w.detach().requires_grad_() for w in model.parameters()])


class _Encoder(torch.nn.Module):
    """`encode` as a call, which `functional_call` needs."""

    def __init__(self, model: Bag) -> None:
        super().__init__()
        self.model = model

    def forward(self, source, lengths):
        return self.model.encode(source, lengths).values


def test_an_unknown_label_costs_the_same_finite_loss_and_teaches_nothing():
    model = bag(layers=1)
    source, lengths = texts()
    targets = torch.full((len(source),), UNK)
    loss = loss_of(model, source, lengths, targets)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(-NEVER * len(source))
    for weight in model.parameters():
        torch.testing.assert_close(weight.grad, torch.zeros_like(weight), atol=1e-12, rtol=0)
    logits = model(torch.full((len(source), 2), BOS), model.encode(source, lengths)).float()
    smooth = F.cross_entropy(logits.flatten(0, 1), targets.repeat(2), label_smoothing=0.1)
    assert smooth.isfinite()


def test_behind_the_label_stands_the_end_for_certain():
    model = bag().float()
    source, lengths = texts()
    logits = model(torch.full((len(source), 3), BOS), model.encode(source, lengths))
    ends = torch.full((len(source),), EOS)
    for place in (1, 2):
        assert F.cross_entropy(logits[:, place], ends, reduction="sum").item() == 0.0
    first = logits[:, 0].softmax(-1)
    torch.testing.assert_close(first[:, SPECIALS:].sum(-1), torch.ones(len(source)))
    assert (first[:, SPECIALS:].amax(-1) > first[:, :SPECIALS].amax(-1)).all()


def test_searches_write_one_label_and_end():
    model = bag(layers=1).float()
    source, lengths = texts()
    memory = model.encode(source, lengths)
    best = memory.values[:, 0].detach().log_softmax(-1)
    prompts, limits = [[BOS]] * len(source), [5] * len(source)
    greedy = search(model, prompts, limits, Beam(1), memory=memory)
    wide = search(model, prompts, limits, Beam(LABELS, n_best=LABELS), memory=memory)
    asked = [Sampling(limit=5, temperature=0.0)] * len(source)
    writing = DecodeBatch.begin(model, prompts, asked, context=99, signs=TARGET, memory=memory)
    drawn: list[list[int]] = [[] for _ in prompts]
    while writing.open:
        for token in writing.step():
            drawn[token.row].append(token.id)
    for row in range(len(source)):
        (only,) = greedy[row].hypotheses
        assert only.ids == [int(best[row].argmax())]
        assert only.ended
        assert drawn[row] == [*only.ids, EOS]
        assert only.logprob == pytest.approx(float(best[row].max()), abs=1e-5)
        order = best[row, SPECIALS:].argsort(descending=True) + SPECIALS
        assert [one.ids for one in wide[row].hypotheses] == order[:, None].tolist()


@given(st.data())
def test_step_by_step_with_ragged_rows_undone_and_reordered_it_is_the_same(drawn):
    torch.manual_seed(drawn.draw(st.integers(0, 99)))
    model = bag()
    source, lengths = texts(rows=3)
    memory = model.encode(source, lengths)
    whole = model(torch.zeros(3, 6, dtype=torch.long), memory)
    real = drawn.draw(st.lists(st.integers(1, 3), min_size=3, max_size=3))
    back = [drawn.draw(st.integers(0, most)) for most in real]
    state = model.start(3, 9)
    found = model(torch.zeros(3, 3, dtype=torch.long), memory, state, lengths=real, last=True)
    for row, count in enumerate(real):
        assert torch.equal(found[row, 0], whole[row, count - 1])
    state.rollback(back)
    rows = drawn.draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
    state.reorder(rows)
    assert state.rows == len(rows)
    found = model(torch.zeros(len(rows), 2, dtype=torch.long), state=state)
    for row, old in enumerate(rows):
        place = real[old] - back[old]
        assert torch.equal(found[row], whole[old, place : place + 2])


@pytest.mark.parametrize("settings", SHAPES[:2])
def test_it_learns_which_words_make_a_label(settings):
    torch.manual_seed(1)
    model = Bag(BagConfig(SPECIALS + LABELS, SPECIALS + WORDS, **settings))
    source = torch.randint(SPECIALS + LABELS, SPECIALS + WORDS, (64, 8))  # words that say nothing
    targets = torch.randint(SPECIALS, SPECIALS + LABELS, (64,))
    source[torch.arange(64), torch.randint(0, 8, (64,))] = targets  # but for one of them
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0 if not model.layers else 1.0)
    full = torch.full((64,), 8)
    for _ in range(150):
        optimizer.zero_grad()
        (loss_of(model, source, full, targets) / 64).backward()
        optimizer.step()
    answers = model(torch.full((64, 1), BOS), model.encode(source)).argmax(-1)[:, 0]
    assert torch.equal(answers, targets)


def test_dropout_is_for_training_only():
    model = bag(layers=2, width=50, dropout=0.5)
    source, lengths = texts()
    still = model.encode(source, lengths).values
    assert torch.equal(model.encode(source, lengths).values, still)
    model.train()
    assert not torch.equal(model.encode(source, lengths).values, still)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"vocabulary": 5}, "vocabulary must be a whole number from 6"),
        ({"source_vocabulary": -1}, "source_vocabulary must be"),
        ({"layers": True}, "layers must be a whole number from 0 to 1,024, not True"),
        ({"width": 0.5}, "width must be"),
        ({"layers": 1, "dropout": 1.0}, r"dropout must be in \[0, 1\), not 1.0"),
        ({"dropout": 0.1}, "dropout 0.1 needs a hidden layer"),
        ({"layers": -1, "width": 0, "dropout": "a"}, "3 problems"),
    ],
)
def test_settings_that_cannot_be_are_named_together(settings, said):
    with pytest.raises(RegardError, match=said):
        BagConfig(**settings)


def test_wrong_inputs_are_refused_in_one_sentence():
    model, other = bag(), bag(layers=1)
    source, lengths = texts()
    memory, begin = model.encode(source, lengths), torch.full((6, 1), BOS)
    state = model.start(6, 5)
    model(begin, memory, state)
    wrong = {
        "source id 17 is out of range; this model knows 0 to 16": lambda: model.encode(
            source + 17 - source
        ),
        "whole numbers": lambda: model.encode(source.double()),
        "lengths must be between": lambda: model.encode(source, lengths + 9),
        "one number for each of 6 rows": lambda: model.encode(source, lengths[:2]),
        "give `memory": lambda: model(begin),
        "read it with this model": lambda: model(begin, Memory(memory.values[..., 1:])),
        "another source": lambda: model(begin, other.encode(source), state),
        "6 rows, the tokens have 2": lambda: model(begin[:2], memory, state),
        "no attention to return": lambda: model.start(2, 5, return_attention=True),
        "cannot forget": lambda: state.rollback([2] * 6),
        "rows 0 to 5": lambda: state.reorder([6]),
    }
    for said, call in wrong.items():
        with pytest.raises(RegardError, match=said):
            call()
