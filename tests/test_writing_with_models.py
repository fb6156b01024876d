"""`regard.load(path)` and then: generate, stream, translate, score, fill, embed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import regard
from regard.decoding.search.minimum_risk import least_risk
from regard.decoding.settings import SEEDS, Beam, Sampling
from regard.decoding.translation import limit_for
from regard.errors import RegardError
from regard.loading import Model
from regard.models.counting.estimate import estimate
from regard.models.counting.model import NGram
from regard.models.kernels.int8 import quantise
from regard.models.kernels.packed import packed
from regard.text.learning import learn

TEXT = "the cat sat on the mat. a dog ran under the cat, and straße! " * 3


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    tokenizer = learn("char", [TEXT], 0)
    made = {}
    for name in ("gpt2-tiny", "bert-tiny", "marian-tiny"):
        torch.manual_seed(0)
        config = regard.preset(name)
        module = regard.build(replace(config, vocabulary=len(tokenizer), context=48)).eval()
        with torch.no_grad():
            for weight in module.parameters():
                if weight.dim() == 2:
                    weight.normal_(0, 0.25)
        source = tokenizer if config.kind == "encoder-decoder" else None
        made[config.kind] = Model(module, {}, tokenizer, source)
    return made


def test_one_prompt_or_several_n_times_each_in_order(models):
    model = models["decoder"]
    asked = {"max_tokens": 6, "temperature": 0.9, "seed": 4}
    several = model.generate(["the c", "a d"], n=2, **asked)
    assert len(several) == 4
    alone = [
        model.generate(prompt, **{**asked, "seed": seed})[0]
        for prompt in ("the c", "a d")
        for seed in (4, 5)
    ]
    assert [one.text for one in several] == [one.text for one in alone]
    assert [one.ids for one in several] == [one.ids for one in alone]


def test_ids_may_be_a_list_an_array_or_a_tensor(models):
    model = models["decoder"]
    ids = model.tokenizer.encode("the c")
    wanted = model.generate("the c", max_tokens=5, temperature=0.0)[0].ids
    for given in (ids.tolist(), ids, torch.tensor(ids.tolist()), [ids.tolist()]):
        assert model.generate(given, max_tokens=5, temperature=0.0)[0].ids == wanted


def test_a_stream_brings_the_pieces_of_the_whole(models):
    model = models["decoder"]
    asked = [Sampling(limit=9, seed=1), Sampling(limit=5, seed=2, temperature=0.0)]
    whole = model.stream(["the", "a"], asked).whole()
    texts, ends = ["", ""], [None, None]
    for piece in model.stream(["the", "a"], asked):
        assert ends[piece.row] is None
        texts[piece.row] += piece.text
        ends[piece.row] = piece.end
    assert texts == [one.text for one in whole]
    assert ends == [one.end for one in whole]


def test_a_stop_string_ends_one_text_and_not_its_neighbour(models):
    model = models["decoder"]
    free = model.generate(["the", "a "], max_tokens=14, seed=2)
    stop = free[0].text[4:6]
    assert stop
    found = model.generate(["the", "a "], max_tokens=14, seed=2, stop=[stop])
    assert found[0].text == free[0].text[: free[0].text.index(stop)]
    assert found[0].end == "stop"
    other = free[1].text
    assert found[1].text == (other[: other.index(stop)] if stop in other else other)


def test_beam_search_of_a_text_is_at_least_as_probable_as_greedy(models):
    model = models["decoder"]
    best = model.generate("the", max_tokens=8, beam=Beam(beams=6, length_penalty=0.0))[0]
    greedy = model.generate("the", max_tokens=8, temperature=0.0, logprobs=0)[0]
    assert best.logprob >= greedy.logprob - 1e-5


def test_a_recorded_search_brings_its_tree_with_every_text(models):
    model, beam = models["decoder"], Beam(beams=3, n_best=2, record=True)
    found = model.generate(["the", "a d"], max_tokens=4, beam=beam)
    assert [len(one.tree) for one in found] == [4] * 4
    assert found[0].tree is found[1].tree is not found[2].tree
    for one in found:
        worths = [c.worth for step in one.tree for c in step if c.fate == "ended"]
        assert one.score in sorted(worths)[-2:]
    assert model.generate("the", max_tokens=4, beam=3)[0].tree is None


def test_the_score_of_a_translation_is_what_the_search_said(models):
    model = models["encoder-decoder"]
    for found in model.translations(["the cat", "a dog ran"], Beam(beams=4, n_best=3)):
        for one in found:
            source = one.source[:-1]
            scored = model.score([one.ids], sources=[source])[0]
            ended = one.logprob == pytest.approx(scored.logprob, abs=1e-3)
            short = one.logprob == pytest.approx(sum(scored.logprobs[:-1]), abs=1e-3)
            assert ended or short  # one that met its limit has no end


def test_translations_keep_their_order_whatever_the_batches(models):
    model = models["encoder-decoder"]
    lines = ["the cat sat on the mat.", "a", "", "dog ran", "the cat, and a dog", " "]
    wanted = [model.translate(line)[0].text for line in lines]
    for rows in (1, 2, 6):
        assert [one.text for one in model.translate(lines, rows=rows)] == wanted
    lazily = model.translations(iter(lines), rows=2)
    assert next(lazily)[0].text == wanted[0]


def test_sampling_from_a_source_is_streamed_too(models):
    model = models["encoder-decoder"]
    found = model.generate("the cat", n=3, max_tokens=7, seed=1)
    assert [one.text for one in found] == [
        model.generate("the cat", max_tokens=7, seed=seed)[0].text for seed in (1, 2, 3)
    ]


def test_an_encoder_fills_and_every_model_embeds(models):
    assert len(models["encoder"].fill("the [mask]at", top=3).gaps[0]) == 3
    for model in models.values():
        vectors = model.embed(["the cat", "a dog"])
        assert vectors.shape == (2, model.config.width)


def test_eight_bits_stay_near(models):
    model = models["decoder"]
    small = Model(quantise(model.module), {}, model.tokenizer)
    plain, rounded = model.score([TEXT[:40]])[0], small.score([TEXT[:40]])[0]
    assert rounded.per_token == pytest.approx(plain.per_token, rel=0.1)
    assert rounded.logprob != plain.logprob


def test_a_module_of_the_same_kind_drafts(models):
    model = models["decoder"]
    stream = model.stream("the", Sampling(limit=12, temperature=0.0), draft=model)
    assert stream.whole()[0].ids == model.generate("the", max_tokens=12, temperature=0.0)[0].ids
    assert stream.acceptance == 1.0


@pytest.mark.parametrize(
    ("kind", "call", "words"),
    [
        ("encoder", lambda m: m.generate("a"), "it fills gaps"),
        ("encoder", lambda m: m.score("a"), "it fills gaps"),
        ("decoder", lambda m: m.translate("a"), "it continues texts"),
        ("decoder", lambda m: m.fill("a [mask]"), "it continues texts"),
        ("encoder-decoder", lambda m: m.fill("a [mask]"), "it translates"),
        ("encoder-decoder", lambda m: m.generate(""), "the source is empty"),
        ("decoder", lambda m: m.generate([[99999]]), "token id 99999 does not exist"),
        ("decoder", lambda m: m.generate([[-1]]), "token id -1 does not exist"),
        ("decoder", lambda m: m.generate([[1.5]]), "must be text or token ids"),
        ("decoder", lambda m: m.generate("a" * 60), "context holds 48; shorten it"),
        ("decoder", lambda m: m.generate("a" * 60, beam=2), "context holds 48; shorten it"),
        ("decoder", lambda m: m.generate("a", temperature=float("nan")), "temperature must be"),
        ("decoder", lambda m: m.generate("a", max_tokens=-1), "max_tokens must be"),
        ("decoder", lambda m: m.generate("a", beam=3, max_tokens=0), "at least one token"),
        ("decoder", lambda m: m.generate("a", n=0), "n must be a whole number from 1 to"),
        ("decoder", lambda m: m.generate("a", stop=map(str, range(5000))), "5,000 are too many"),
        ("decoder", lambda m: m.generate("a", banned=[10**6]), "does not exist"),
        ("encoder-decoder", lambda m: m.translate(["a", "b" * 90]), "line 2: a source of 91"),
        (
            "encoder-decoder",
            lambda m: m.translate(["a"], rows=0),
            "rows must be a whole number, 1 or",
        ),
    ],
)
def test_bad_input_is_one_sentence(models, kind, call, words):
    with pytest.raises(RegardError, match=words) as raised:
        call(models[kind])
    assert "\n" not in str(raised.value)


def test_ids_only_models_take_ids_as_they_are(models):
    bare = Model(models["decoder"].module, {"eos_token_id": 2, "bos_token_id": 1})
    with pytest.raises(RegardError, match="came without a tokenizer"):
        bare.generate("the")
    ids = [1, *models["decoder"].tokenizer.encode("the").tolist()]
    found = bare.generate(np.array(ids), max_tokens=6, temperature=0.0)[0]
    wanted = models["decoder"].generate("the", max_tokens=6, temperature=0.0)[0]
    assert found.text == ""
    never = {0, 1, 3, 4}
    assert found.ids == wanted.ids or set(found.ids) & never


def test_a_stream_that_was_left_goes_on_where_it_was(models):
    model, asked = models["decoder"], Sampling(limit=6, seed=3)
    whole = model.stream(["the", "a", "dog"], asked).whole()
    stream = model.stream(["the", "a", "dog"], asked)
    pieces = [next(iter(stream)) for _ in range(2)]
    pieces += list(stream)
    for row, one in enumerate(whole):
        tokens = [token for piece in pieces if piece.row == row for token in piece.tokens]
        assert tokens == list(one.tokens)


@pytest.mark.parametrize("coverage", [0.0, 0.5])
def test_what_was_forced_is_aligned_as_if_it_had_been_found(models, coverage):
    model = models["encoder-decoder"]
    beam = Beam(beams=4, attention=True, coverage_penalty=coverage)
    ((free,),) = model.translations("the cat sat", beam)
    ((forced,),) = model.translations("the cat sat", replace(beam, beams=1), prefix=free.ids[:3])
    assert forced.ids[:3] == free.ids[:3]
    torch.testing.assert_close(forced.attention[:4], free.attention[:4], atol=1e-5, rtol=1e-4)
    assert len(forced.ids) <= len(forced.attention) <= len(forced.ids) + 1
    (forced.attention * 2).requires_grad_()  # a plain tensor


@pytest.mark.parametrize("coverage", [0.0, 2.0])
def test_an_ensemble_of_one_is_that_one(models, coverage):
    model = models["encoder-decoder"]
    beam = Beam(beams=3, attention=True, coverage_penalty=coverage, n_best=2)
    lines = ["the cat sat on the mat", "a dog"]
    alone = list(model.translations(lines, beam))
    both = list(regard.ensemble([model]).translations(lines, beam))
    for one, other in zip(alone, both, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            assert mine.ids == theirs.ids
            assert mine.score == pytest.approx(theirs.score, abs=1e-4)
            torch.testing.assert_close(mine.attention, theirs.attention, atol=1e-5, rtol=1e-4)


def test_models_that_read_other_words_do_not_work_together(models):
    model = models["encoder-decoder"]
    words = learn("char", [TEXT + "xyz"], 0)
    other = Model(model.module, {}, model.tokenizer, words)
    with pytest.raises(RegardError, match="the draft has another vocabulary"):
        model.stream("the cat", draft=other)


def test_a_model_that_is_being_trained_is_refused_and_not_changed(models):
    module = regard.build(models["decoder"].config).train()
    model = Model(module, {}, models["decoder"].tokenizer)
    for call in (lambda: model.generate("a"), lambda: model.score("a"), lambda: model.embed("a")):
        with pytest.raises(RegardError, match="being trained"):
            call()
    assert module.training


@pytest.mark.parametrize("convert", [quantise, packed])
def test_converted_weights_are_not_saved(models, convert, tmp_path):
    small = convert(models["decoder"].module)
    if small is models["decoder"].module:
        pytest.skip("this torch has no oneDNN")
    with pytest.raises(RegardError, match="load the model plain"):
        regard.save(small, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": 0.5}, {"seed": 3}, {"stop": "x"}, {"logprobs": 1}, {"top_k": 3}],
)
def test_a_beam_search_takes_no_settings_of_drawing(models, wrong):
    with pytest.raises(RegardError, match="a beam search draws nothing"):
        models["decoder"].generate("the", beam=3, **wrong)


def test_other_kinds_of_input_are_taken_or_told(models):
    model = models["encoder-decoder"]
    ids = model.tokenizer.encode("the cat")
    wanted = model.translate("the cat")[0].ids
    for given in (ids, ids.tolist(), torch.tensor(ids.tolist()), [ids], (t for t in ["the cat"])):
        assert model.translate(given)[0].ids == wanted
    for wrong in (None, 5, torch.tensor(3)):
        with pytest.raises(RegardError, match="give texts, or token ids"):
            models["decoder"].generate(wrong)
    with pytest.raises(RegardError, match="search with `translate`"):
        model.generate("the cat", beam=3)


@pytest.mark.parametrize(
    ("kind", "call", "words"),
    [
        ("encoder-decoder", lambda m: m.translate("a", beam="5"), "beam must be a whole number"),
        ("encoder-decoder", lambda m: m.translate(b"a dog"), "give texts, or token ids"),
        ("encoder-decoder", lambda m: m.translate([[True, False]]), "must be text or token ids"),
        ("decoder", lambda m: m.generate({"a": 1}), "give texts, or token ids"),
        ("decoder", lambda m: m.generate("a", draft="runs/x"), "a draft is a model"),
        ("decoder", lambda m: m.generate("a", n="2"), "n must be .* not '2'"),
        ("decoder", lambda m: m.generate("a", n=True), "n must be .* not True"),
        ("decoder", lambda m: m.generate("a", seed=SEEDS - 1, n=2), f"seed must be {SEEDS - 2} or"),
        ("encoder", lambda m: m.fill("a [mask]", top="3"), "top must be .* not '3'"),
        ("encoder", lambda m: m.fill("a [mask]", top=True), "top must be .* not True"),
        ("decoder", regard.ensemble, "made of a list of models, not of a model$"),
        ("decoder", lambda m: regard.ensemble([m, None]), r"not of \[a model, None\]$"),
        ("decoder", lambda m: m.generate("a", stop=5), "must be a list of texts"),
        ("encoder", lambda m: m.fill(["a [mask]"]), "give a text with gaps"),
        (
            "decoder",
            lambda m: m.generate("a", banned=5),
            "banned must be a list of whole numbers, 0 or more",
        ),
        (
            "decoder",
            lambda m: m.generate("a", banned=None, beam=2),
            "banned must be a list of whole numbers",
        ),
        ("decoder", lambda m: m.stream("a", None), "settings are a Sampling, or one for each"),
        ("decoder", lambda m: m.stream("a", {"limit": 3}), "a Sampling, .* not {'limit': 3}"),
        ("decoder", lambda m: m.stream("a", [{"limit": 3}]), "settings are a Sampling"),
        ("decoder", lambda m: m.stream(["a", "b"], [Sampling()]), "2 prompts need as many"),
        (
            "encoder-decoder",
            lambda m: m.translate("a", max_tokens="a"),
            "max_tokens must be .* not 'a'",
        ),
        (
            "encoder-decoder",
            lambda m: m.translate("a", max_tokens=2.5),
            "a whole number, .* not 2.5",
        ),
        ("encoder-decoder", lambda m: m.translate("a", max_tokens=-1), "0 or more, not -1"),
        ("encoder-decoder", lambda m: m.translate("a", rows="a"), "rows must be .* not 'a'"),
        ("encoder-decoder", lambda m: list(m.translations("a", prefix=None)), "a prefix must be"),
    ],
)
def test_a_wrong_type_is_one_sentence(models, kind, call, words):
    with pytest.raises(RegardError, match=words) as raised:
        call(models[kind])
    assert "\n" not in str(raised.value)


def test_numbers_of_numpy_are_numbers(models):
    two, writer = np.int64(2), models["decoder"]
    plain = writer.generate("the", n=2, seed=2, max_tokens=4, banned=(9,))
    numpys = writer.generate("the", n=two, seed=two, max_tokens=2 * two, banned=[np.int32(9)])
    assert numpys == plain
    assert models["encoder"].fill("a [mask]", top=two) == models["encoder"].fill("a [mask]", top=2)
    translator, lines = models["encoder-decoder"], ["a dog", "the cat"]
    for settings in ({"rows": 2, "max_tokens": 2}, {"mbr": 2, "rows": 2}):
        given = {name: np.int64(value) for name, value in settings.items()}
        assert translator.translate(lines, **given) == translator.translate(lines, **settings)


def test_a_list_of_banned_tokens_is_taken_as_a_tuple():
    assert Sampling(banned=[5, 7]) == Sampling(banned=(5, 7))
    assert Beam(banned=[5, 7]) == Beam(banned=(5, 7))


def test_a_model_without_weights_is_refused(models):
    bare = Model(
        regard.build(models["decoder"].config, "meta").eval(), {}, models["decoder"].tokenizer
    )
    for call in (bare.generate, bare.score, bare.embed):
        with pytest.raises(RegardError, match="on the meta device has no weights"):
            call("the")


def test_a_translation_says_whether_it_came_to_its_end(models):
    model, line = models["encoder-decoder"], "the cat sat on the mat"
    (whole,) = model.translate(line, max_tokens=40)
    (cut,) = model.translate(line, max_tokens=1, prefix=whole.ids[:1])
    assert cut.end == "limit"
    kinds = set()
    for best in model.translations(line, Beam(8, n_best=8)):
        for one in best:
            kinds.add(one.end)
            ended = model.score([[*one.ids, 2]], sources=[line])[0].logprob
            assert (one.logprob == pytest.approx(ended, abs=1e-3)) is (one.end == "end")
    assert kinds
    drawn = model.generate(line, n=3, max_tokens=limit_for(len(cut.source), 48))
    (safest,) = model.translate(line, mbr=3)
    assert safest.end in {"end" if one.end == "end" else "limit" for one in drawn}


def test_nothing_gives_nothing(models):
    model = models["decoder"]
    assert model.generate([]) == model.generate([], beam=3) == []
    stream = model.stream([], draft=model)
    assert list(stream) == stream.whole() == []
    assert list(models["encoder-decoder"].stream([])) == []
    assert models["encoder-decoder"].translate([]) == []
    assert models["decoder"].score([]) == []


@pytest.mark.parametrize("wrong", [[2], [0], [1], [4], [5, 2, 6]])
def test_no_translation_begins_with_what_ends_it_or_is_never_written(models, wrong):
    model = models["encoder-decoder"]
    with pytest.raises(RegardError, match=r"begin with token id [0124], .* leave it out"):
        next(model.translations("the cat", prefix=wrong))
    with pytest.raises(RegardError, match="no text can begin with 'Ω': the model lacks a word"):
        next(model.translations("the cat", prefix="Ω"))
    (found,) = next(model.translations("the cat", prefix=[3, 7]))  # an unknown word's id may
    assert found.ids[:2] == [3, 7]


# --- several translations, several models -----------------------------------------------------


def test_a_translation_begins_as_it_was_told_to(models):
    model = models["encoder-decoder"]
    lines = ["the cat", "a dog ran"]
    free = model.translate(lines)
    forced = model.translate(lines, prefix="sat")
    assert not any(one.text.startswith("sat") for one in free)
    assert all(one.text.startswith("sat") for one in forced)
    assert forced == [best[0] for best in model.translations(lines, prefix="sat")]


def test_the_least_risky_translation_is_the_sample_that_agrees_best(models):
    model = models["encoder-decoder"]
    found = model.translate(["the cat", "", "a dog"], mbr=6, temperature=0.8, seed=4)
    assert found[1].text == ""
    for line, best in zip(("the cat", "a dog"), (found[0], found[2]), strict=True):
        limit = limit_for(len(model.speaker.source(line)), model.config.context)
        drawn = model.generate(line, n=6, temperature=0.8, seed=4, max_tokens=limit)
        choice = least_risk([one.text for one in drawn])
        assert (best.text, best.score) == (drawn[choice.index].text, max(choice.utilities))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"mbr": 4, "beam": 3}, "leave out beam and prefix"),
        ({"mbr": 4, "prefix": "sat"}, "leave out beam and prefix"),
        ({"mbr": 4, "prefix": None}, "leave out beam and prefix"),
        ({"mbr": 4, "temperature": -1}, "temperature must be"),
        ({"mbr": -1}, "mbr must be a whole number from 1 to 4,096"),
        ({"seed": 3}, "temperature and seed are for mbr"),
        ({"temperature": 0.5}, "temperature and seed are for mbr"),
    ],
)
def test_drawing_and_searching_have_their_own_settings(models, wrong, words):
    with pytest.raises(RegardError, match=words):
        models["encoder-decoder"].translate("the cat", **wrong)


def test_samples_without_a_tokenizer_cannot_be_compared(models):
    bare = Model(models["encoder-decoder"].module)
    with pytest.raises(RegardError, match="compared as texts"):
        bare.translate([[5, 6]], mbr=3)


def other_than(model: Model, seed: int) -> Model:
    """Of the same kind and words, with other weights."""
    module = regard.build(model.config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() == 2:
                weight.copy_(0.25 * torch.randn(weight.shape, generator=generator))
    return replace(model, module=module)


def counted(model: Model) -> Model:
    """A trigram of the same words."""
    ids = np.array([1, *model.tokenizer.encode(TEXT), 2])
    return replace(model, module=NGram.of(estimate(ids, 3, model.config.vocabulary, 1)))


@pytest.mark.parametrize("make", [lambda model: other_than(model, 3), counted])
def test_an_ensemble_scores_and_writes_by_the_mean_probability(models, make):
    members = [models["decoder"], make(models["decoder"])]
    both = regard.ensemble(members)
    texts = ["the cat sat", "a dog"]
    each = [model.score(texts) for model in members]
    for one, *others in zip(both.score(texts), *each, strict=True):
        shares = np.exp([other.logprobs for other in others])
        np.testing.assert_allclose(np.exp(one.logprobs), shares.mean(0), rtol=1e-5)
    # What it writes has the probability that it tells for it.
    (best,) = both.generate("", max_tokens=5, temperature=0, logprobs=0)
    noted = [token.logprob for token in best.tokens]
    scored = both.score([best.ids])[0].logprobs[: len(noted)]
    np.testing.assert_allclose(noted, scored, atol=1e-4)


def test_an_ensemble_translates_with_all_that_one_model_can(models):
    model = models["encoder-decoder"]
    both = regard.ensemble([model, other_than(model, 3)])
    (found,) = both.translate("the cat", Beam(beams=3, attention=True), prefix="sat")
    assert found.text.startswith("sat")
    (score,) = both.score([found.ids], sources=["the cat"])
    behind = score.logprobs[3:]
    assert found.logprob == pytest.approx(sum(behind), abs=1e-3) or found.logprob == pytest.approx(
        sum(behind[:-1]), abs=1e-3
    )  # one that met its limit has no end
    assert both.translate("the cat", mbr=4)[0].text


def test_models_that_do_not_fit_together_are_one_sentence(models):
    decoder, translator = models["decoder"], models["encoder-decoder"]
    words = learn("char", [TEXT + "xyz"], 0)
    wrong = {
        "a list of models, not of \\[\\]": [],
        "a list of models, not of 5": 5,
        "a list of models, not of \\['runs/a'\\]": ["runs/a"],
        "must have the same kind": [decoder, translator],
        "model 2 has another vocabulary": [decoder, replace(decoder, tokenizer=words)],
        "it fills gaps": [models["encoder"]] * 2,
        "model 2 begins or ends texts with other ids than model 1": [
            Model(decoder.module),
            Model(decoder.module, {"eos_token_id": 6}),
        ],
    }
    for sentence, given in wrong.items():
        with pytest.raises(RegardError, match=sentence):
            regard.ensemble(given)
    both = regard.ensemble([decoder, other_than(decoder, 3)])
    with pytest.raises(RegardError, match="ask its members one by one"):
        both.embed("the")
    with pytest.raises(RegardError, match="holds a Transformer"):
        regard.save(both, "nowhere")
