"""Words are aligned as their tokens look, and the error rate is what Och and Ney defined."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import regard
from regard.data.builtin import tasks
from regard.data.readers.pairs import Pair
from regard.decoding.settings import TARGET
from regard.decoding.text_model import TextModel
from regard.errors import RegardError
from regard.inspection.alignment import Heads, PairAttention, cut, watched, watched_pair
from regard.metrics.alignment_errors import Gold, Tally, compare, gold_of, read_gold
from regard.models.protocol import Memory
from regard.text.learning import learn
from regard.text.specials import EOS
from regard.text.tokenizer import Tokenizer

WORDS = ["the", "cat's", "straße", "né", "猫", "🙂x", ",", "3-4", "said", "end"]
TEXTS = ["the cat sat on the straße .\n", " ".join(WORDS)]
TOKENIZERS = {
    "byte": learn("byte", TEXTS, 0),
    "char": learn("char", TEXTS, 0),
    "word": learn("word", TEXTS, 0),
    "bpe": learn("bpe", TEXTS * 3, 290),
}


# --- a model whose attention is known ------------------------------------------------------------


class FixedState:
    def __init__(self, rows: int) -> None:
        self.rows, self.attention = rows, None

    def free(self) -> None:
        self.attention = None


class Fixed(nn.Module):
    """Answers the protocol: layer 0 looks at the source's end; head 0 of layer 1 looks at the same
    place as it writes, head 1 at the mirrored one; a quarter of all attention goes to the end."""

    def __init__(self, vocabulary: int, attention: bool = True) -> None:
        super().__init__()
        self.config = replace(regard.preset("transformer-tiny"), vocabulary=vocabulary, context=40)
        self.device, self.attention = torch.device("cpu"), attention
        self.eval()

    def encode(self, source, lengths=None):
        return Memory(source[..., None].double())

    def start(self, batch_size, capacity, *, return_attention=False):
        if return_attention and not self.attention:
            raise RegardError("it has no attention, so there is no attention to return")
        return FixedState(batch_size)

    def forward(self, tokens, memory, state, lengths=None, last=False):
        rows, new = tokens.shape
        ends = (memory.values[..., 0] == EOS).long().argmax(-1)  # (rows,)
        state.attention = torch.zeros(rows, 2, 2, new, memory.values.shape[1])
        for row, end in enumerate(ends.tolist()):
            state.attention[row, 0, :, :, end] = 0.75
            for place in range(new):
                state.attention[row, 1, 0, place, min(place, end)] = 0.75
                state.attention[row, 1, 1, place, max(end - 1 - place, 0)] = 0.75
            state.attention[row, ..., end] += 0.25
        return torch.zeros(rows, 1 if last else new, 9)


def fixed(tokenizer: Tokenizer, **named) -> TextModel:
    return TextModel(Fixed(len(tokenizer), **named), TARGET, tokenizer, tokenizer)


@pytest.mark.parametrize("rows", [1, 3, 32])
def test_pairs_of_any_lengths_are_watched_in_order_as_each_alone(rows):
    speaker = fixed(TOKENIZERS["char"])
    pairs = [Pair("the", "eht"), Pair("cats sat", "c"), Pair("a", "athe cat"), Pair("on", "no")] * 9
    found = list(watched(speaker, pairs, "characters", rows=rows))
    assert [(one.source.text, one.target.text) for one in found] == pairs
    for pair, one in zip(pairs, found, strict=True):
        assert one.attention.shape == (2, 2, len(pair.target) + 1, len(pair.source) + 1)
        assert torch.equal(one.attention, watched_pair(speaker, pair, "characters").attention)


def test_heads_are_chosen_as_asked_and_by_default_are_those_of_translations():
    look = watched_pair(fixed(TOKENIZERS["char"]), Pair("the", "eht"), "characters")
    assert look.by(Heads(1, 1)).links == [(2, 0), (1, 1), (0, 2)]
    assert look.by(Heads(1, 0)).links == [(0, 0), (1, 1), (2, 2)]
    assert look.by(Heads(0)).links == []  # it looked at nothing but the end
    assert look.by(Heads(1)).matrix[0].tolist() == [0.375, 0, 0.375]
    assert torch.equal(look.by(Heads()).tokens, look.by(Heads(1)).tokens)  # the upper half
    assert [str(one) for one in look.each][2:4] == ["layer 0, all heads", "layer 1, head 0"]
    for heads, said in (
        (Heads(2), "no layer 2; this model's attention has layers 0 to 1"),
        (Heads(0, -1), "no head -1"),
        (Heads(head=1), "say which layer"),
    ):
        with pytest.raises(RegardError, match=said):
            look.by(heads)
    only = PairAttention(look.source, look.target, look.attention[1:])
    assert only.by(Heads(head=1)).links == look.by(Heads(1, 1)).links


def test_what_cannot_be_read_is_said_and_what_cannot_watch_is_refused():
    speaker = fixed(TOKENIZERS["char"])
    pairs = [Pair("", "a"), Pair("a", ""), Pair("a", "a" * 40), Pair("a" * 40, "a"), Pair("a", "a")]
    *said, found = watched(speaker, pairs)
    for one, words in zip(said, ("source is empty", "target is empty", "41", "41"), strict=True):
        assert words in one
    assert found.by(Heads(1)).links == [(0, 0)]
    with pytest.raises(RegardError, match="nothing can be aligned: it has no attention"):
        list(watched(fixed(TOKENIZERS["char"], attention=False), pairs))


# --- from tokens to words ------------------------------------------------------------------------


def places(tokenizer: Tokenizer, text: str) -> list[int | None]:
    """The word that each token lies in, told by the bytes that it stands for."""
    whole, found, at = text.encode(), [], 0
    for token in tokenizer.encode(text).tolist():
        content = tokenizer.decode_bytes([token])
        at = whole.index(content, at) + len(content)
        first = at - len(content.lstrip())
        before = whole[: first + 1].decode("utf-8", "ignore") + "x"  # of a part of a character
        found.append(len(before.split()) - 1 if content.strip() else None)
    return found


words = st.lists(st.sampled_from(WORDS), min_size=1)
blanks = st.sampled_from([" ", "  ", " \n"])


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=40)
@given(source=words, target=words, blank=blanks, seed=st.integers(0, 99))
def test_words_get_the_mean_of_their_rows_and_the_sum_of_their_columns(
    kind, source, target, blank, seed
):
    tokenizer = TOKENIZERS[kind]
    texts = blank.join(source), blank.join(target)
    cuts = [cut(tokenizer, text, [*tokenizer.encode(text), EOS], "words") for text in texts]
    assert [one.units for one in cuts] == [source, target]
    shape = len(cuts[1].ids), len(cuts[0].ids)
    seen = torch.rand(shape, generator=torch.Generator().manual_seed(seed)).softmax(-1)
    found = PairAttention(*cuts, seen[None, None]).by(Heads())
    read, written = (places(tokenizer, text) for text in texts)
    for i, row in enumerate(found.matrix.tolist()):
        mine = [at for at, word in enumerate(written) if word == i]
        for j, weight in enumerate(row):
            theirs = [at for at, word in enumerate(read) if word == j]
            wanted = sum(float(seen[a, b]) for a in mine for b in theirs) / len(mine)
            assert weight == pytest.approx(wanted, abs=1e-5)
    assert found.links == [(max(range(len(source)), key=row.__getitem__), i)
                           for i, row in enumerate(found.matrix.tolist())]  # fmt: skip


def test_a_piece_of_several_characters_is_divided_among_them():
    text, tokenizer = "the cat", TOKENIZERS["bpe"]
    one = cut(tokenizer, text, [*tokenizer.encode(text), EOS], "characters")
    assert one.pieces[0] == "the"
    assert one.units == list(text)
    assert one.shares[0].tolist() == pytest.approx([1 / 3] * 3 + [0] * 4)
    assert one.shares.sum(-1).tolist() == pytest.approx([1.0] * (len(one.ids) - 1) + [0.0])


# --- what is right -------------------------------------------------------------------------------


def test_the_error_rate_of_hand_worked_links():
    gold = Gold(frozenset({(0, 0), (1, 1)}), frozenset({(0, 0), (1, 1), (1, 2)}))
    tally = compare([(0, 0), (1, 2), (2, 3)], gold)  # one sure, one possible, one wrong
    assert tally == Tally(1, 3, 2, 3, 1, 2)
    assert tally.error == pytest.approx(1 - (1 + 2) / (3 + 2))
    assert (tally.precision, tally.recall) == pytest.approx((2 / 3, 1 / 2))
    assert compare(gold.sure, gold).error == compare(gold.possible, gold).error == 0
    assert compare([(5, 5)], gold).error == 1
    assert (tally + compare(gold.sure, gold)).error == pytest.approx(1 - (3 + 4) / (5 + 4))
    assert math.isnan(Tally().error)


links = st.frozensets(st.tuples(st.integers(0, 3), st.integers(0, 3)))


@given(st.lists(st.tuples(links, links, links), min_size=1, max_size=4))
def test_the_error_rate_of_a_corpus_is_that_of_all_its_links_as_one_set(pairs):
    total = sum((compare(a, Gold(s, s | p)) for a, s, p in pairs), Tally())
    every = [{(n, *link) for n, sets in enumerate(pairs) for link in sets[k]} for k in range(3)]
    found, sure, possible = every[0], every[1], every[1] | every[2]
    if found or sure:
        hits = sum(link in sure for link in found) + sum(link in possible for link in found)
        assert total.error == pytest.approx(1 - hits / (len(found) + len(sure)))
        assert 0 <= total.error <= 1


@pytest.mark.parametrize(("name", "head", "error"), [("copy", 0, 0.0), ("reverse", 1, 0.0)])
def test_attention_that_does_the_task_makes_no_error(name, head, error):
    speaker = fixed(learn("char", ["abcdefghijklmnopqrstuvwxyz"], 0))
    total = {0: Tally(), 1: Tally()}
    examples = list(tasks.pairs(name, 40, 0, "test"))
    pairs = [Pair(e.source, e.target) for e in examples]
    for example, look in zip(examples, watched(speaker, pairs, "characters"), strict=True):
        for one in total:
            total[one] += compare(look.by(Heads(1, one)).links, gold_of(example))
    assert total[head].error == error
    middles = sum(len(e.source) % 2 for e in examples)  # are the same from both ends
    letters = sum(len(e.source) for e in examples)
    assert total[1 - head].error == pytest.approx(1 - middles / letters)


def test_what_comes_from_several_may_look_at_any_and_what_comes_from_none_is_not_judged():
    (example,) = tasks.pairs("dates", 1, 3, "test")
    gold = gold_of(example)
    assert gold.unjudged == {4, 7}  # the hyphens of YYYY-MM-DD
    assert {target for _, target in gold.sure} >= {0, 1, 2, 3}
    lasts = [(stop - 1, j) for j, (start, stop) in enumerate(example.alignment) if start < stop]
    for more in ([], [(0, 4), (0, 7)]):
        tally = compare([*lasts, *more], gold)
        assert (tally.links, tally.error) == (8, 0)


def test_gold_files_are_read_from_0_or_1(tmp_path):
    path = tmp_path / "gold"
    path.write_text("0-0 1?2\t1-1\n\n", encoding="utf-8")
    sizes = [(2, 3), (4, 4)]
    wanted = Gold(frozenset({(0, 0), (1, 1)}), frozenset({(0, 0), (1, 1), (1, 2)}))
    empty = Gold(frozenset(), frozenset())
    assert read_gold(path, sizes) == [wanted, empty]
    path.write_text("1-1 2?3 2-2\r\n\r\n", encoding="utf-8")
    assert read_gold(path, sizes, one_based=True) == [wanted, empty]


def test_a_possible_link_may_be_written_with_a_p(tmp_path):
    path = tmp_path / "gold"
    path.write_text("0-0 1p1 1?2 1-2\n", encoding="utf-8")
    (gold,) = read_gold(path, [(2, 3)])
    assert gold == Gold(frozenset({(0, 0), (1, 2)}), frozenset({(0, 0), (1, 1), (1, 2)}))
    tally = compare([(0, 0), (1, 1), (0, 2)], gold)  # one sure, one possible, one wrong
    assert tally.error == pytest.approx(1 - (1 + 2) / (3 + 2))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0-0", "has 1 lines, but there are 2 pairs"),
        ("0-0\n0-4", "line 2: 0-4 is outside of the target, which has 0 to 3"),
        ("2-0\n", "has 1 lines"),
        ("2-0\n\n", "line 1: 2-0 is outside of the source, which has 0 to 1"),
        ("0-0\na-b", "line 2: 'a-b' is no link"),
        ("0-0 0-1x\n1", "2 problems"),
    ],
)
def test_a_wrong_gold_file_is_told_with_its_lines(tmp_path, text, said):
    (tmp_path / "gold").write_text(text, encoding="utf-8")
    with pytest.raises(RegardError, match=said) as told:
        read_gold(tmp_path / "gold", [(2, 3), (4, 4)])
    assert "gold" in str(told.value)
    with pytest.raises(RegardError, match="is not there"):
        read_gold(tmp_path / "nothing", [])
