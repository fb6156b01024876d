"""Figures over a held-out set, against loops over single tokens and sacrebleu itself."""

import itertools
import math

import numpy as np
import pytest
import sacrebleu
import torch
from tiny_jobs import KINDS, Made, batch_of, form_of, model_of

from regard.data.feeds.masking import IGNORE
from regard.data.readers.pairs import EncodedPairs, Pair
from regard.decoding.settings import Beam
from regard.metrics.scores import Scores, by_length, compare
from regard.text.learning import learn
from regard.text.specials import EOS
from regard.training.objectives import objective_for
from regard.training.validation import at_rest, measure, rules, translations


def by_hand(module, kind: str, batch) -> tuple[float, int, int]:
    """Every target asked for by itself: the summed loss, how many, and how many guessed right."""
    total, asked, right = 0.0, 0, 0
    for row in range(batch.rows):
        length = int(batch.lengths[row])
        memory = None
        if kind == "pairs":
            source = batch.source[row : row + 1, : int(batch.source_lengths[row])]
            memory = module.encode(source)
        for place in range(length):
            target = int(batch.targets[row, place])
            if target == IGNORE:
                continue
            seen = length if kind == "masked" else place + 1
            answer = module(batch.tokens[row : row + 1, :seen], memory)[0, place].double()
            total -= float(answer.log_softmax(-1)[target])
            asked += 1
            right += int(answer.argmax()) == target
    return total, asked, right


@pytest.mark.parametrize("kind", KINDS)
def test_measuring_is_asking_for_each_token_by_itself(kind):
    module = model_of(kind, dropout=0.5)  # which must be at rest
    module.train()
    batch = batch_of(kind, rows=5)
    objective = objective_for(module.config, form_of(kind))
    found = measure(module, objective, [batch], text_bytes=77)
    with at_rest(module):
        total, asked, right = by_hand(module, kind, batch)
    assert found.tokens == asked == batch.valid
    assert found.loss == pytest.approx(total / asked, rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(total / asked), rel=1e-4)
    if kind == "masked":
        assert found.accuracy == right / asked
        assert found.bits_per_byte is None
    else:
        assert found.accuracy is None
        assert found.bits_per_byte == pytest.approx(total / math.log(2) / 77, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_figures_do_not_depend_on_how_many_rows_are_computed_at_once(kind):
    module, feed = model_of(kind), Made(kind, held=9)
    objective = objective_for(module.config, form_of(kind))
    found = [measure(module, objective, feed.held_out(rows)) for rows in (1, 2, 4, 9, 100)]
    for one in found:
        assert one.tokens == found[0].tokens
        assert one.accuracy == found[0].accuracy
        assert one.loss == pytest.approx(found[0].loss, rel=1e-6)


def test_an_empty_set_has_no_figures_and_breaks_nothing():
    module = model_of("masked")
    found = measure(module, objective_for(module.config, "text"), [], text_bytes=0)
    assert found.tokens == 0
    assert math.isnan(found.loss)
    assert math.isnan(found.perplexity)
    assert found.accuracy is None
    pairs = model_of("pairs")
    assert translations(pairs, EncodedPairs([], [], []), learn("char", ["ab"])) == []
    assert compare(found, [], [], tokenised=False) is found


def test_a_hopeless_loss_is_infinite_perplexity_not_an_overflow():
    module = model_of("causal")
    with torch.no_grad():
        module.embed.tokens.weight.mul_(1e6)  # tied: the logits too
    found = measure(module, objective_for(module.config, "text"), [batch_of("causal")])
    assert found.loss > 1000
    assert found.perplexity == math.inf


def test_each_part_is_in_its_own_mode_again_even_after_an_error():
    module = model_of("causal", dropout=0.5)
    module.train()
    module.decoder.blocks[0].eval()  # somebody froze a part
    modes = {name: part.training for name, part in module.named_modules()}

    def broken() -> None:
        with at_rest(module):
            assert not any(part.training for part in module.modules())
            assert torch.is_inference_mode_enabled()
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    assert {name: part.training for name, part in module.named_modules()} == modes
    assert not torch.is_inference_mode_enabled()


WRITTEN = ["the cat sat on the mat .", "a dog , barks", "it's over !", "so long"]
GOLD = ["the cat sat on a mat .", "a dog , barks", "its over!", "so long , and thanks"]


@pytest.mark.parametrize("tokenised", [False, True])
def test_comparing_is_sacrebleu(tokenised):
    found = compare(Scores(1.0, math.e, 5), WRITTEN, GOLD, tokenised)
    how = "none" if tokenised else "13a"
    assert found.bleu == sacrebleu.corpus_bleu(WRITTEN, [GOLD], tokenize=how, force=True).score
    assert found.chrf == sacrebleu.corpus_chrf(WRITTEN, [GOLD]).score
    assert found.exact == 1 / 4
    assert (found.loss, found.tokens) == (1.0, 5)
    assert f"tok:{how}" in found.signature
    assert "chrF2" in found.signature or "nc:6" in found.signature


def test_the_two_ways_to_count_differ_where_signs_stick_to_words():
    scores = Scores(1.0, math.e, 5)
    one, other = (compare(scores, WRITTEN, GOLD, tokenised).bleu for tokenised in (False, True))
    assert abs(one - other) > 0.1


def test_what_was_right_to_the_letter_scores_all():
    found = compare(Scores(0.0, 1.0, 5), GOLD, GOLD, tokenised=False)
    assert (found.bleu, found.chrf, found.exact) == pytest.approx((100, 100, 1))


@pytest.mark.parametrize("tokenised", [False, True])
def test_there_is_no_bleu_where_no_target_has_four_tokens(tokenised):
    short = ["ab", "it is so", "no , no"]
    found = compare(Scores(0.0, 1.0, 5), short, short, tokenised, resamples=10)
    assert (found.bleu, found.bleu_margin, found.exact) == (None, None, 1)
    assert found.chrf == pytest.approx(100)
    assert "BLEU" not in found.signature
    found = compare(Scores(0.0, 1.0, 5), [*short, "a b c d"], [*short, "a b c d"], tokenised)
    assert found.bleu == pytest.approx(100)


def test_signs_that_stick_to_words_are_tokens_of_their_own_unless_the_text_is_tokenised():
    text = ["so, it is"]
    bleus = [compare(Scores(0.0, 1.0, 5), text, text, tokenised).bleu for tokenised in (0, 1)]
    assert bleus == [pytest.approx(100), None]


def test_figures_are_those_that_there_are():
    found = Scores(1.0, math.e, 5, accuracy=0.0).figures()
    assert found == {"loss": 1.0, "perplexity": math.e, "tokens": 5, "accuracy": 0.0}


def pairs_of(tokenizer, texts: list[str]) -> EncodedPairs:
    sources = [np.array([*tokenizer.encode(text).tolist(), EOS]) for text in texts]
    return EncodedPairs(sources, sources, [Pair(text, text) for text in texts])


@pytest.mark.parametrize("beams", [1, 3])
def test_translations_come_in_the_order_of_the_pairs_however_they_are_grouped(beams):
    texts = ["abc", "a", "cabbage bag", "bb", "gag", "cab bed"]
    tokenizer = learn("char", texts)
    module = model_of("pairs", seed=3, vocabulary=len(tokenizer), initialisation="fan-in")
    module.train()
    pairs = pairs_of(tokenizer, texts)
    found = [
        translations(module, pairs, tokenizer, beam=Beam(beams=beams), rows=n) for n in (1, 2, 100)
    ]
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) > 2
    alone = translations(module, pairs_of(tokenizer, texts[2:3]), tokenizer, beam=Beam(beams=beams))
    assert found[0][2] == alone[0]
    assert module.training


def test_translating_in_bfloat16_works_with_float32_weights():
    tokenizer = learn("char", ["abcdef"])
    module = model_of("pairs", vocabulary=len(tokenizer))
    found = translations(module, pairs_of(tokenizer, ["ab", "fade"]), tokenizer, precision="bf16")
    assert len(found) == 2


def test_the_rules_say_what_was_counted():
    for kind, word in zip(KINDS[:2], ("do not overlap", "hidden once"), strict=True):
        objective = objective_for(model_of(kind).config, form_of(kind))
        assert word in rules(objective, 64)


def test_buckets_of_lengths_hold_every_pair_once_and_have_their_own_figures():
    lengths = [3, 9, 3, 5, 7, 7, 7, 20, 1, 2, 5, 8]
    gold = [f"a b c d {i}" for i in range(12)]
    written = [text if length < 7 else "x" for text, length in zip(gold, lengths, strict=True)]
    found = by_length(lengths, written, gold, tokenised=True)
    assert sum(one.pairs for one in found) == 12
    for before, one in itertools.pairwise(found):
        assert before.last < one.first
    for one in found:
        here = [i for i, n in enumerate(lengths) if one.first <= n <= one.last]
        assert (one.pairs, one.first, one.last) == (
            len(here),
            min(lengths[i] for i in here),
            max(lengths[i] for i in here),
        )
        assert one.exact == sum(written[i] == gold[i] for i in here) / len(here)
        score = sacrebleu.corpus_bleu(
            [written[i] for i in here], [[gold[i] for i in here]], tokenize="none", force=True
        )
        assert one.bleu == pytest.approx(score.score)


def test_a_bucket_of_short_targets_has_no_bleu_and_others_have():
    gold = ["ab", "cd", "a b c d e", "b c d e f g"]
    found = by_length([1, 1, 5, 6], gold, gold, tokenised=True)
    assert [one.bleu for one in found] == [None, *[pytest.approx(100)] * 2]
    assert [one.exact for one in found] == [1, 1, 1]


def test_a_bucket_has_the_margin_of_its_own_pairs_but_a_lone_pair_has_none():
    gold = [f"a b c d {i}" for i in range(13)]
    written = [text if i % 2 else "a b c x" for i, text in enumerate(gold)]
    lengths = [3] * 6 + [9] * 6 + [30]
    buckets = by_length(lengths, written, gold, tokenised=True, resamples=50)
    assert [one.pairs for one in buckets] == [6, 6, 1]
    alone = compare(Scores(0.0, 1.0, 0), written[:6], gold[:6], tokenised=True, resamples=50)
    assert buckets[0].bleu_margin == alone.bleu_margin > 0
    assert buckets[2].bleu_margin is None
    unasked = by_length(lengths, written, gold, tokenised=True)
    assert {one.bleu_margin for one in unasked} == {None}
