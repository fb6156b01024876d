"""What a model is given wrongly: each mistake is one `RegardError` that names it."""

from collections.abc import Callable

import pytest
import torch
from tiny_models import ids, tiny
from torch import Tensor

from regard.errors import RegardError
from regard.models.masks import Dense, Documents, Mask, Padding
from regard.models.transformer.model import Transformer

GPT2, BERT, T5 = "gpt2-tiny", "bert-tiny", "t5-tiny"


def refusal(call: Callable[[], object]) -> str:
    """The message of the one error; it is one line that begins with what was wrong."""
    with pytest.raises(RegardError) as caught:
        call()
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def run(model: Transformer, tokens: Tensor, **more: object) -> Tensor:
    """A forward pass, with a source for a model that reads one."""
    if model.config.kind == "encoder-decoder":
        return model(tokens, model.encode(ids(len(tokens), 3)), **more)
    return model(tokens, **more)


# --- tokens ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [GPT2, BERT, T5])
@pytest.mark.parametrize("wrong", [256, 1000, -1, -256])
def test_an_id_out_of_range_is_named_with_the_range(case: str, wrong: int):
    tokens = torch.tensor([[1, 2], [wrong, 3]])
    message = refusal(lambda: run(tiny(case), tokens))
    assert f"token id {wrong} is out of range" in message
    assert "0 to 255" in message


@pytest.mark.parametrize("wrong", [256, -1])
def test_an_id_out_of_range_in_the_source_is_named(wrong: int):
    assert f"token id {wrong}" in refusal(lambda: tiny(T5).encode(torch.tensor([[wrong]])))


@pytest.mark.parametrize("case", [GPT2, BERT, T5])
@pytest.mark.parametrize(
    ("tokens", "named"),
    [
        (torch.zeros(2, 3), "torch.float32 of shape (2, 3)"),
        (torch.zeros(2, 3, dtype=torch.bool), "torch.bool"),
        (torch.zeros(3, dtype=torch.long), "shape (3,)"),
        (torch.zeros(2, 3, 4, dtype=torch.long), "shape (2, 3, 4)"),
        (torch.tensor(5), "shape ()"),
    ],
)
def test_tokens_of_a_wrong_kind_or_shape_are_named(case: str, tokens: Tensor, named: str):
    model = tiny(case)
    memory = model.encode(ids(2, 3)) if case == T5 else None
    message = refusal(lambda: model(tokens, memory))
    assert message.startswith("token ids must be whole numbers (rows, positions)")
    assert named in message


@pytest.mark.parametrize("case", [GPT2, BERT, T5])
def test_tokens_on_another_device_are_named(case: str):
    model = tiny(case)
    memory = model.encode(ids(2, 3)) if case == T5 else None
    message = refusal(lambda: model(ids(2, 3).to("meta"), memory))
    assert "token ids are on meta" in message
    assert "model is on cpu" in message


def test_32_bit_ids_mean_the_same_as_64_bit_ones():
    tokens = ids(2, 3)
    assert torch.equal(tiny(GPT2)(tokens.int()), tiny(GPT2)(tokens))


@pytest.mark.parametrize("case", [GPT2, BERT, "t5-tiny learned"])
def test_more_tokens_than_learned_positions_are_refused(case: str):
    model = tiny(case)
    message = refusal(lambda: run(model, ids(1, 65)))
    assert "65 positions are needed" in message
    assert "table has 64" in message
    assert run(model, ids(1, 64)).isfinite().all()


def test_a_source_longer_than_the_learned_table_is_refused():
    assert "table has 64" in refusal(lambda: tiny("t5-tiny learned").encode(ids(1, 65)))


@pytest.mark.parametrize("scheme", ["rotary", "alibi", "relative", "sinusoidal", "none"])
def test_other_schemes_have_no_limit(scheme: str):
    assert tiny(f"gpt2-tiny {scheme}")(ids(1, 65)).isfinite().all()


# --- lengths ---------------------------------------------------------------------------------

WITH_LENGTHS = {
    "decoder": lambda lengths: tiny(GPT2)(ids(2, 3), lengths=lengths),
    "state": lambda lengths: tiny(GPT2)(ids(2, 3), None, tiny(GPT2).start(2, 8), lengths=lengths),
    "encoder": lambda lengths: tiny(BERT)(ids(2, 3), lengths=lengths),
    "source": lambda lengths: tiny(T5).encode(ids(2, 3), lengths),
    "target": lambda lengths: run(tiny(T5), ids(2, 3), lengths=lengths),
}


@pytest.mark.parametrize("call", WITH_LENGTHS.values(), ids=WITH_LENGTHS)
@pytest.mark.parametrize("lengths", [[1, 2, 3], [3], [], torch.tensor([[1], [2]]), 2])
def test_lengths_of_a_wrong_shape_are_named(call: Callable, lengths: object):
    assert "lengths must be one number for each of 2 rows" in refusal(lambda: call(lengths))


@pytest.mark.parametrize("call", WITH_LENGTHS.values(), ids=WITH_LENGTHS)
@pytest.mark.parametrize("lengths", [[1, 4], [-1, 2]])
def test_lengths_out_of_range_are_named(call: Callable, lengths: list[int]):
    message = refusal(lambda: call(lengths))
    assert "lengths must be between 0 and 3" in message
    assert str(lengths) in message


@pytest.mark.parametrize("call", WITH_LENGTHS.values(), ids=WITH_LENGTHS)
def test_lengths_that_are_not_whole_numbers_are_refused(call: Callable):
    assert "lengths" in refusal(lambda: call([1.5, 2.0]))


def test_lengths_given_under_both_names_are_refused():
    call = tiny(T5).encode
    message = refusal(lambda: call(ids(2, 3), [1, 2], source_lengths=[1, 2]))
    assert "`lengths` and `source_lengths`" in message


# --- masks -----------------------------------------------------------------------------------


WRONG_MASKS: dict[str, Mask] = {
    "Dense(4, 4)": Dense(torch.ones(4, 4, dtype=torch.bool)),
    "Dense(3, 1)": Dense(torch.ones(3, 1, dtype=torch.bool)),
    "Dense(3, 3, 3)": Dense(torch.ones(3, 3, 3, dtype=torch.bool)),
    "Padding(4,)": Padding(torch.tensor([1, 2, 3, 3])),
    "Padding(3,)": Padding(torch.tensor([3, 3, 3])),  # too many rows, even if all are full
    "document ids of shape (2, 2)": Documents(torch.zeros(2, 2)),
}


@pytest.mark.parametrize("case", [GPT2, BERT, T5])
@pytest.mark.parametrize("named", WRONG_MASKS)
def test_a_mask_of_a_wrong_shape_is_named(case: str, named: str):
    assert named in refusal(lambda: run(tiny(case), ids(2, 3), mask=WRONG_MASKS[named]))


@pytest.mark.parametrize("case", [GPT2, BERT, T5])
def test_a_bare_tensor_is_not_taken_for_a_mask(case: str):
    table = torch.ones(3, 3, dtype=torch.bool)
    assert "mask" in refusal(lambda: run(tiny(case), ids(2, 3), mask=table))


# --- segments --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [GPT2, T5])
def test_segments_where_there_are_none_are_refused(case: str):
    segments = torch.zeros(2, 3, dtype=torch.long)
    message = refusal(lambda: run(tiny(case), ids(2, 3), segments=segments))
    assert "knows no segments" in message


@pytest.mark.parametrize(
    ("segments", "named"),
    [
        (torch.full((2, 3), 2), "segment id 2 is out of range; this model knows 0 to 1"),
        (torch.full((2, 3), -1), "segment id -1 is out of range"),
        (torch.zeros(2, 3), "segment ids must be whole numbers"),
        (torch.zeros(2, 4, dtype=torch.long), "segment"),
        (torch.zeros(1, 3, dtype=torch.long), "segment"),
    ],
)
def test_wrong_segments_are_named(segments: Tensor, named: str):
    assert named in refusal(lambda: tiny(BERT)(ids(2, 3), segments=segments))


# --- sources ---------------------------------------------------------------------------------


def test_a_missing_source_is_asked_for():
    message = refusal(lambda: tiny(T5)(ids(2, 3)))
    assert "memory=model.encode(source)" in message
    assert refusal(lambda: tiny(T5)(ids(2, 3), state=tiny(T5).start(2, 8))) == message


@pytest.mark.parametrize("case", [GPT2, BERT])
def test_a_source_for_a_model_that_reads_none_is_refused(case: str):
    memory = tiny(T5).encode(ids(2, 3))
    assert "memory" in refusal(lambda: tiny(case)(ids(2, 3), memory))


@pytest.mark.parametrize("case", [GPT2, BERT])
def test_a_model_without_a_source_does_not_encode(case: str):
    assert "reads no source" in refusal(lambda: tiny(case).encode(ids(2, 3)))


@pytest.mark.parametrize("stated", [False, True])
def test_a_source_of_other_rows_is_refused(stated: bool):
    model = tiny(T5)
    memory, state = model.encode(ids(3, 4)), model.start(2, 8) if stated else None
    message = refusal(lambda: model(ids(2, 3), memory, state))
    assert "the source has 3 rows, the target 2" in message


def test_another_source_than_the_states_is_refused():
    model = tiny(T5)
    state, source = model.start(2, 8), ids(2, 4)
    with torch.no_grad():
        model(ids(2, 1), model.encode(source), state)
    again = model.encode(source)  # equal, but read again: the state's keys are not its
    assert "begun with another source" in refusal(lambda: model(ids(2, 1), again, state))


def test_a_source_read_by_another_model_is_refused():
    foreign = tiny(T5, width=64).encode(ids(2, 3))
    assert "source" in refusal(lambda: tiny(T5)(ids(2, 3), foreign))


# --- what an assembly does not do ------------------------------------------------------------


def test_an_encoder_keeps_no_state():
    assert "an encoder cannot continue" in refusal(lambda: tiny(BERT).start(2, 8))
    state = tiny(GPT2).start(2, 8)
    assert "no memory, no state" in refusal(lambda: tiny(BERT)(ids(2, 3), None, state))


def test_a_model_without_a_head_or_a_pooler_says_so():
    headless = tiny(BERT, head="none", head_bias=False)
    assert "no output head" in refusal(lambda: headless(ids(2, 3)))
    assert headless.hidden(ids(2, 3)).shape == (2, 3, 32)
    plain = tiny("regard-2-encoder")
    assert "no pooler" in refusal(lambda: plain.pooled(plain.hidden(ids(2, 3))))
