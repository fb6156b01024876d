"""What is said of figures: both ways, so that nothing is known beforehand."""

from dataclasses import replace

from made_up import comparison, result

from regard.comparison.report.summary import summary
from regard.comparison.results import Spread


def said(*results, **more):
    return " ".join(summary(comparison(*results, **more)))


def test_the_best_is_named_with_how_much_better_it_is():
    words = said(result("lstm", (2.0, 2.02)), result("conv", (1.5, 1.52)), result("elman", (3.0,)))
    assert "conv is best with 1.510 ± 0.014 bits per byte, 0.500 (24.9 %) better than lstm" in words
    assert "elman comes last" in words
    words = said(result("lstm", (1.5, 1.52)), result("conv", (2.0, 2.02)))
    assert "lstm is best" in words
    assert "comes last" not in words


def test_within_the_spread_it_is_too_close_to_call():
    words = said(result("lstm", (2.0, 2.2)), result("conv", (2.05, 2.06)), result("elman", (9, 9)))
    assert "too close to call" in words
    assert "conv 2.055 ± 0.007, lstm 2.100 ± 0.141" in words
    assert "seeds do" in words
    assert "is best with" not in words


def test_who_comes_last_is_not_told_from_those_as_bad():
    words = said(*(result(n, (q, q)) for n, q in (("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 3.0))))
    assert "d comes last with 3.000 ± 0.000, too close to c to call." in words
    alone = said(*(result(n, (q, q)) for n, q in (("a", 1.0), ("b", 2.0), ("c", 3.0))))
    assert "c comes last with 3.000 ± 0.000." in alone


def test_a_tie_of_one_seed_is_not_put_down_to_test_sets_that_nobody_drew():
    words = said(result("a", (2.0,)), result("b", (2.0,)))
    assert "too close to call (bits per byte: a 2.000, b 2.000): they do not differ." in words
    assert "resampled" not in words


def test_a_model_whose_figure_has_no_end_is_not_passed_over():
    lost = replace(result("b"), scores={})
    assert "Of b there is no figure" in said(result("a", key="loss"), lost)


def test_sizes_that_could_not_be_matched_are_told():
    words = said(result("a", parameters=21_500), result("b", parameters=33_800))
    assert "They are not of one size: a has 21.5k parameters, b 33.8k." in words
    near = said(result("a", parameters=30_000), result("b", parameters=33_000))
    assert "not of one size" not in near
    assert "not of one size" not in said(result("ngram", parameters=0), result("b"))


def test_one_seed_says_nothing_of_chance_but_of_bleu_resampling_does():
    assert "nobody knows how much" in said(result("a", (2.0,)), result("b", (3.0,)))

    def pair(name, bleu):
        return result(name, (bleu,), key="bleu", margin=1.0, lengths=(30.0, 30.0))

    assert "a is best with 31.50 BLEU" in said(pair("a", 31.5), pair("b", 30.0), pairs=True)
    close = said(pair("a", 30.5), pair("b", 30.0), pairs=True)
    assert "too close to call" in close
    assert "resampled test sets" in close
    assert "nobody knows" not in close


def test_who_trains_fastest_and_how_many_times():
    words = said(result("a", pace=3000.0), result("b", pace=1000.0))
    assert "a trains fastest, 3,000 tokens a second: 3.0 times b, the slowest (1,000)" in words
    words = said(result("a", pace=500.0), result("b", pace=1000.0))
    assert "b trains fastest, 1,000 tokens a second: 2.0 times a" in words
    assert "fastest, 1,000" not in said(result("a", pace=1000.0), result("b", pace=1000.0))


def test_what_counts_is_not_said_to_train():
    words = said(result("ngram", parameters=0, pace=1e9), result("a"), result("b"))
    assert "ngram trains" not in words
    assert "ngram is not trained but counted, which took 1 min" in words


def test_who_uses_most_and_least_context():
    words = said(result("a", used=64.0), result("b", used=4.0), result("c", used=64.0))
    assert (
        "a and c use most of context: 95 % of what more tokens give is there with about 64" in words
    )
    assert "b uses least of context: 95 % of what more tokens give is there with about 4" in words
    alike = said(result("a", used=4.0), result("b", used=4.0))
    assert "a and b use as much of context" in alike
    assert "least" not in alike
    alone = said(result("a", used=4.0))
    assert "a has 95 % of what more give with about 4 tokens of context." in alone
    assert "use as much" not in alone


def test_whose_cost_grows_fastest():
    words = said(result("a", power=1.8), result("b", power=1.0), result("c", power=1.02))
    assert "grows fastest for a, about as n^1.80" in words
    assert "(b n^1.00, c n^1.02)" in words
    assert "grows alike for all" in said(result("a", power=1.0), result("b", power=1.01))
    words = said(result("a", power=1.0), result("b", power=2.0))
    assert "grows fastest for b" in words


def test_whose_state_grows():
    words = said(result("a", power=2.0, state=1000), result("b", state=64))
    assert "After 512 tokens a keeps 512.0 kB for each text that it writes, b 64 B" in words
    assert "what b keeps does not grow" in words
    alike = said(result("a", state=64), result("b", state=64))
    assert "After 512 tokens each keeps 64 B for each text; what a, b keep" in alike


def test_rows_longer_than_trained_on_are_spoken_of_where_they_hurt():
    words = said(result("a", lengths=(2.0, 3.0)), result("b", lengths=(2.0, 1.9)))
    assert (
        "a gets worse in rows longer than it was trained on: 2.00 nats at positions 1–16" in words
    )
    assert "b gets worse" not in words


def test_only_who_was_trained_on_shorter_rows_is_said_to_read_longer_ones():
    longer = "in rows longer than it was trained on"
    assert "gets worse" not in said(result("a", lengths=(2.0, 3.0), trained_on=32))
    assert "gets worse" not in said(result("ngram", lengths=(2.0, 3.0), parameters=0))
    recurrent = said(result("lstm", lengths=(2.0, 3.0), trained_on=0))
    assert "lstm gets worse far into a row: 2.00 nats at positions 1–16, 3.00" in recurrent
    assert longer not in recurrent
    short = said(result("a", lengths=(2.0,)), result("b", lengths=(2.0, 3.0)))  # no room for more
    assert "a gets worse" not in short
    assert f"b gets worse {longer}" in short


def translating(plain, attending):
    return said(
        result("rnn", (20.0, 20.1), key="bleu", lengths=plain),
        result("rnn+attention", (30.0, 30.1), key="bleu", lengths=attending),
        pairs=True,
    )


def test_the_bottleneck_is_seen_only_where_it_is():
    words = translating((30.0, 10.0), (31.0, 25.0))
    assert (
        "The one vector is a bottleneck: attention adds +1.0 BLEU to rnn on the shortest" in words
    )
    assert "+15.0 on the longest" in words
    assert (
        "rnn falls most with length: 20.0 BLEU from sources of 1–5 tokens to those of 6–20" in words
    )
    words = translating((25.0, 10.0), (43.0, 22.0))  # a gap that shrinks, of less and less
    assert "The one vector is a bottleneck: attention adds +18.0 BLEU" in words
    assert "alone it comes to 58% and 45% of what it then has" in words
    words = translating((30.0, 29.0), (35.0, 30.0))
    assert "No bottleneck" in words
    assert "rnn+attention falls most with length: 5.0" in words
    assert "No model falls with length" in translating((30.0, 30.0), (30.0, 31.0))
    little = translating((0.1, 0.0), (0.1, 0.1))
    assert "No bottleneck" in little
    assert "No model falls with length" in little


def test_who_failed_is_told_and_one_alone_is_no_race():
    words = said(result("a"), result("b", failed="it ran out of luck"))
    assert "b could not be compared: it ran out of luck" in words
    assert "there is no other to compare" in words
    assert said(result("a", failed="x")) == "a could not be compared: x"


def test_a_spread_is_the_deviation_between_seeds():
    assert Spread((1.0, 3.0)).shown(2) == "2.00 ± 1.41"
    assert Spread((1.0,)).shown(2) == "1.00"
    assert Spread((1.0,)).deviation == 0.0
