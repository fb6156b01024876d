"""What a trace counts is what torch counts in a real run of the same module on a CPU."""

from collections import Counter
from functools import cache

import pytest
import torch
from small_models import (
    NAMES,
    kept_by_torch,
    learn,
    operations_by_torch,
    products_by_torch,
    small,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.costs import jobs
from regard.costs.jobs import Shape
from regard.costs.trace.tracer import tracing
from regard.models.captioner.config import CaptionConfig
from regard.models.captioner.model import Captioner
from regard.models.construction import build

ROWS, TOKENS, SOURCE = 2, 5, 3
ONEDNN = ("lstm", "awd-lstm", "luong")  # their workspace is oneDNN's own affair


@cache
def traced(config, rows=ROWS, tokens=TOKENS, source=SOURCE):
    """A pass there and back on the meta device."""
    module = build(config, "meta").eval()
    with tracing(module) as tracer:
        learn(module, jobs.numbers(tracer, rows, tokens), jobs.numbers(tracer, rows, source))
    return tracer


def dense(tracer):
    """Products as if no mask hid anything."""
    return dense_of(tracer.records)


def dense_of(records):
    found = 0
    for record in records:
        if "scaled_dot_product" in record.name:
            times, queries, width, keys = record.shape
            once = 4 * times * queries * width * keys
            found += 2 * once if "backward" in record.name else once
        else:
            found += record.products if "recurrence" in record.name else record.executed
    return found


@pytest.mark.parametrize("name", NAMES)
def test_products_are_those_that_torch_counts(name):
    config = small(name)
    assert dense(traced(config)) == products_by_torch(config, ROWS, TOKENS, SOURCE)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ONEDNN])
def test_what_is_kept_for_the_way_back_is_what_autograd_keeps(name):
    config = small(name)
    kept, seen = traced(config).kept.bytes, kept_by_torch(config, ROWS, TOKENS, SOURCE)
    slack = 8 * ROWS * TOKENS if name.startswith("bag") else 0  # an index that meta kernels keep
    assert seen <= kept <= seen + slack


def test_an_lstm_on_a_cpu_keeps_about_what_onednn_keeps():
    config = small("lstm")
    sizes = (16, 64, 8)
    kept, seen = traced(config, *sizes).kept.bytes, kept_by_torch(config, *sizes)
    assert kept == pytest.approx(seen, rel=0.05)


VIEWS = """view _unsafe_view t transpose transpose_ permute expand slice select split
split_with_sizes unsafe_split unbind unsqueeze squeeze detach alias lift_fresh _local_scalar_dense
zeros new_empty"""


OTHERWISE = (*ONEDNN, "bag-linear", "bag-perceptron")  # bags make some on the host


@pytest.mark.parametrize("name", [n for n in NAMES if n not in OTHERWISE])
def test_every_operation_is_one_of_a_real_run(name):
    config = small(name)
    free = {f"aten::{view}" for view in VIEWS.split()}
    seen = operations_by_torch(config, ROWS, TOKENS, SOURCE)
    counted = Counter(record.name for record in traced(config).records)
    assert {k: v for k, v in counted.items() if k not in free} == {
        k: v for k, v in seen.items() if k not in free
    }


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_counted_as_they_are(name):
    config = small(name)
    counted = jobs.train_step(config, Shape(ROWS, TOKENS, SOURCE))
    real = build(config)
    assert counted.parameters == sum(weight.numel() for weight in real.parameters())
    assert counted.weights == sum(weight.nbytes for weight in real.parameters())


WRITERS = [name for name in NAMES if "bert" not in name and not name.endswith("-encoder")]


@pytest.mark.parametrize("name", WRITERS)
def test_a_state_takes_as_many_bytes_as_the_real_one(name):
    config = small(name)
    counted = jobs.step(config, Shape(ROWS, TOKENS, SOURCE))
    module = build(config).eval()
    ids = torch.zeros(ROWS, TOKENS + 1, dtype=torch.long)
    with torch.no_grad():
        state = module.start(ROWS, TOKENS + 1)
        read = torch.zeros(ROWS, SOURCE, dtype=torch.long)
        memory = module.encode(read) if config.kind == "encoder-decoder" else None
        module(ids[:, :-1], memory, state=state, last=True)
        module(ids[:, -1:], state=state, last=True)
    held = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in jobs.tensors_in(state)}
    assert counted.state == sum(storage.nbytes() for storage in held.values())


def test_a_cache_is_what_the_lectures_say():
    counted = jobs.step(small("gpt2"), Shape(3, 9))
    assert counted.state == 2 * 3 * 10 * 32 * 2 * 4  # keys and values, rows, tokens, width, layers


def test_each_operation_stands_where_it_was_asked_for():
    tracer = traced(small("gpt2"))
    places = {r.place for r in tracer.records if r.products}
    parts = ("attention.query_key_value", "attention.attend", "attention.output")
    parts += ("feedforward.expand", "feedforward.contract")
    assert places == {f"decoder.blocks.{i}.{part}" for i in range(2) for part in parts} | {"head"}
    # Forward once and back twice, each at its place.
    for place in places - {p for p in places if p.endswith("attend")}:
        each = [r.products for r in tracer.records if r.place == place and r.products]
        assert len(each) == 3
        assert len(set(each)) == 1


@pytest.mark.parametrize("eye", ["cnn", "patches"])
@pytest.mark.parametrize("hand", ["lstm", "transformer"])
def test_a_captioner_is_counted_as_torch_counts_it(eye, hand):
    sizes = {"vocabulary": 30, "picture": 32, "patch": 8, "width": 32, "heads": 2, "dropout": 0.0}
    config = CaptionConfig(encoder=eye, decoder=hand, **sizes)
    counted = jobs.train_step(config, Shape(2, 4))
    there = [r for r in counted.records if r.phase in ("forward", "backward")]
    module = Captioner(config).eval()
    pictures = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    with (
        FlopCounterMode(display=False) as counter,
        sdpa_kernel(SDPBackend.MATH),
        torch.backends.mkldnn.flags(enabled=False),
    ):
        learn(module, torch.zeros(2, 4, dtype=torch.long), pictures)
    assert dense_of(there) == counter.get_total_flops()
    assert counted.parameters == sum(weight.numel() for weight in module.parameters())
