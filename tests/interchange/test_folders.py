"""Folders as people have them: old spellings, damage, and models that no family can hold."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor

import regard
from regard import RegardError, build, preset
from regard.models.transformer import Transformer

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
FAMILIES = ("gpt2", "bert", "llama", "t5", "marian")


def tiny(name: str) -> Transformer:
    """A model with every weight drawn wide, so that none can be lost unnoticed."""
    model = build(preset(f"{name}-tiny")).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.3)
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str], Path]:
    """A family's tiny model, written to disk."""

    def write(family: str) -> Path:
        path = tmp_path / family
        regard.save(tiny(family), path)
        return path

    return write


def change_config(path: Path, remove: tuple[str, ...] = (), **changes: object) -> None:
    config = json.loads((path / "config.json").read_text()) | changes
    kept = {key: value for key, value in config.items() if key not in remove}
    (path / "config.json").write_text(json.dumps(kept))


def change_tensors(path: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    tensors = change(load_file(path / WEIGHTS))
    # Copied, since safetensors refuses tensors that share memory.
    save_file({name: t.clone() for name, t in tensors.items()}, path / WEIGHTS, {"format": "pt"})


def split(path: Path) -> dict[str, str]:
    """Write a folder's weights as several files with an index; returns where each tensor is."""
    regard.save(regard.load(path), path, shard_bytes=20_000)
    return json.loads((path / INDEX).read_text())["weight_map"]


def refusal(action: Callable[[], object]) -> str:
    """What the one error says; anything else that is raised fails the test."""
    with pytest.raises(RegardError) as caught:
        action()
    message = str(caught.value)
    assert message
    assert "Traceback" not in message
    return message


def refused(path: Path) -> str:
    return refusal(lambda: regard.load(path))


def logits(module: Transformer) -> Tensor:
    tokens = torch.arange(3, 36)[None]
    source = tokens.flip(1)
    memory = module.encode(source) if module.config.kind == "encoder-decoder" else None
    with torch.no_grad():
        return module(tokens, memory)


def assert_loads_as(path: Path, expected: Transformer) -> None:
    module = regard.load(path).module
    assert module.config == expected.config
    for (name, one), (_, other) in zip(
        module.named_parameters(), expected.named_parameters(), strict=True
    ):
        assert torch.equal(one, other), name


# Old spellings


def test_gpt2_without_prefix_and_with_its_causal_masks_loads(folder):
    path = folder("gpt2")
    expected = regard.load(path).module

    def old(tensors):
        bare = {name.removeprefix("transformer."): t for name, t in tensors.items()}
        masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 64, 64).tril() for i in range(2)}
        floors = {f"h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(2)}
        return bare | masks | floors

    change_tensors(path, old)
    assert_loads_as(path, expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_gpt2_with_causal_masks_that_are_not_floating_point_loads(folder, dtype):
    """Older transformers stored them so; they hold nothing and must not stop anyone."""
    path = folder("gpt2")
    expected = regard.load(path).module
    masks = {f"transformer.h.{i}.attn.bias": torch.ones(1, 1, 64, 64).to(dtype) for i in range(2)}
    change_tensors(path, lambda tensors: tensors | masks)
    assert_loads_as(path, expected)


def test_bert_with_position_ids_loads(folder):
    """A buffer of whole numbers that older transformers stored; it holds nothing."""
    path = folder("bert")
    expected = regard.load(path).module
    ids = {"bert.embeddings.position_ids": torch.arange(64)[None]}
    change_tensors(path, lambda tensors: tensors | ids)
    assert_loads_as(path, expected)


def test_bert_with_gamma_and_beta_and_a_next_sentence_head_loads(folder):
    path = folder("bert")
    expected = regard.load(path).module

    def old(tensors):
        spell = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for new, name in spell.items():
            tensors = {key.replace(new, name): t for key, t in tensors.items()}
        assert any(name.endswith("gamma") for name in tensors)
        extra = {
            "cls.seq_relationship.weight": torch.ones(2, 32),
            "cls.seq_relationship.bias": torch.ones(2),
            "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"],
            "cls.predictions.decoder.bias": tensors["cls.predictions.bias"],
        }
        return tensors | extra

    change_tensors(path, old)
    assert_loads_as(path, expected)


def test_bare_bert_without_prefix_loads_without_a_head(folder):
    path = folder("bert")
    expected = regard.load(path).module.state_dict()

    def bare(tensors):
        body = {name: t for name, t in tensors.items() if name.startswith("bert.")}
        return {name.removeprefix("bert."): t for name, t in body.items()}

    change_tensors(path, bare)
    module = regard.load(path).module
    assert module.config.head == "none"
    assert module.config.pooler
    assert module.state_dict().keys() == {n for n in expected if not n.startswith("head.")}
    assert all(torch.equal(t, expected[name]) for name, t in module.state_dict().items())


def test_bert_with_an_untied_head_and_one_bias_loads(folder):
    """transformers 4 stored the bias of the output once, under the name of the tied one."""
    path = folder("bert")
    own = torch.randn(256, 32)
    change_tensors(path, lambda tensors: tensors | {"cls.predictions.decoder.weight": own})
    change_config(path, tie_word_embeddings=False)
    module = regard.load(path).module
    assert not module.config.tied
    assert torch.equal(module.head.project.weight, own)


def test_t5_11_as_transformers_4_wrote_it_has_its_own_unscaled_head(folder):
    path = folder("t5")
    own = torch.randn(256, 32)
    change_tensors(path, lambda tensors: tensors | {"lm_head.weight": own})
    change_config(path, remove=("scale_decoder_outputs",), tie_word_embeddings=False)
    module = regard.load(path).module
    assert torch.equal(module.head.project.weight, own)
    assert not module.config.scale_head


@pytest.mark.parametrize("key", ["type", "rope_type"])
@pytest.mark.parametrize(
    "scaling",
    [
        {"factor": 2.0},
        {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ],
    ids=["linear", "llama3"],
)
def test_rope_in_the_old_spelling_is_read_as_transformers_reads_it(folder, key, scaling):
    path = folder("llama")
    kind = "linear" if len(scaling) == 1 else "llama3"
    change_config(
        path,
        remove=("rope_parameters",),
        rope_theta=300.0,
        rope_scaling={key: kind} | scaling,
    )
    config = regard.load(path).config
    assert (config.rotary_base, config.rotary_scaling.kind) == (300.0, kind)
    assert_agrees(path, hf.LlamaForCausalLM)


def test_llama3_rope_without_an_original_context_means_what_transformers_means(folder):
    path = folder("llama")
    rope = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0}
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    change_config(path, remove=("rope_theta", "rope_scaling"), rope_parameters=rope)
    assert_agrees(path, hf.LlamaForCausalLM)


def test_llama_of_2023_with_inverse_frequencies_and_few_settings_loads(folder):
    path = folder("llama")
    expected = regard.load(path).module
    names = [f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(2)]
    change_tensors(path, lambda tensors: tensors | {name: torch.ones(4) for name in names})
    later = ("rope_parameters", "rope_theta", "rope_scaling", "attention_bias", "mlp_bias")
    change_config(path, remove=(*later, "head_dim", "tie_word_embeddings"))
    assert_loads_as(path, expected)


@pytest.mark.parametrize(
    ("family", "head", "embedding"),
    [
        ("gpt2", "lm_head.weight", "transformer.wte.weight"),
        ("t5", "lm_head.weight", "shared.weight"),
        ("marian", "lm_head.weight", "model.shared.weight"),
    ],
)
def test_a_redundant_output_matrix_in_a_tied_file_is_not_kept_twice(
    folder, family, head, embedding
):
    path = folder(family)
    expected = regard.load(path).module
    change_tensors(path, lambda tensors: tensors | {head: tensors[embedding]})
    assert_loads_as(path, expected)
    assert expected.config.tied


def test_a_redundant_output_matrix_in_a_tied_llama_is_not_kept_twice(tmp_path):
    regard.save(build(replace(preset("llama-tiny"), tied=True)), tmp_path)
    expected = regard.load(tmp_path).module
    twice = "lm_head.weight", "model.embed_tokens.weight"
    change_tensors(tmp_path, lambda tensors: tensors | {twice[0]: tensors[twice[1]]})
    assert_loads_as(tmp_path, expected)
    assert expected.config.tied


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize(("family", "prefix"), [("t5", ""), ("marian", "model.")])
def test_embeddings_that_should_be_shared_but_differ_are_refused(folder, family, prefix, stack):
    """Else a model would silently compute something other than what its file says."""
    path = folder(family)
    name = f"{prefix}{stack}.embed_tokens.weight"
    change_tensors(path, lambda tensors: tensors | {name: torch.randn(256, 32)})
    assert name in refused(path)


# Damage


def test_everything_wrong_with_the_tensors_is_named_in_one_message(folder):
    path = folder("gpt2")
    missing = ("transformer.h.0.ln_1.weight", "transformer.h.1.mlp.c_fc.bias")

    def damage(tensors):
        kept = {name: t for name, t in tensors.items() if name not in missing}
        kept["transformer.wpe.weight"] = torch.zeros(63, 32)
        kept["transformer.h.0.attn.c_attn.weight"] = torch.zeros(96, 32)
        return kept | {"transformer.h.2.ln_1.weight": torch.zeros(32), "stray": torch.zeros(1)}

    change_tensors(path, damage)
    message = refused(path)
    assert "6 problems" in message
    assert message.count("\n") == 6
    lines = [
        "tensor transformer.h.0.ln_1.weight (32,) is missing",
        "tensor transformer.h.1.mlp.c_fc.bias (64,) is missing",
        "tensor transformer.wpe.weight should be (64, 32) but is (63, 32)",
        "tensor transformer.h.0.attn.c_attn.weight should be (32, 96) but is (96, 32)",
        "tensor transformer.h.2.ln_1.weight is unexpected",
        "tensor stray is unexpected",
    ]
    assert [line for line in lines if line not in message] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_that_is_taken_away_is_missed_by_its_name(folder, family):
    """Each, by itself and in one message with all others."""
    path = folder(family)
    names = list(load_file(path / WEIGHTS))
    change_tensors(path, lambda tensors: {"stray": torch.zeros(1)})
    message = refused(path)
    told = ("pooler", "cls.")  # parts of BERT that a file may lack altogether
    wanted = [name for name in names if not any(part in name for part in told)]
    assert [name for name in wanted if f"tensor {name} (" not in message] == []


def test_an_untied_t5_without_its_output_matrix_is_refused(folder):
    path = folder("t5")
    change_config(path, remove=("scale_decoder_outputs",), tie_word_embeddings=False)
    assert "lm_head.weight" in refused(path)


def test_two_spellings_of_one_tensor_are_refused(folder):
    path = folder("bert")
    twin = {"bert.embeddings.LayerNorm.gamma": torch.zeros(32)}
    change_tensors(path, lambda tensors: tensors | twin)
    assert "bert.embeddings.LayerNorm" in refused(path)


@pytest.mark.parametrize("kept", [0, 4, 8, 9, 0.01, 0.5, 0.9, -1])
def test_a_file_that_was_cut_off_is_refused_by_name(folder, kept):
    path = folder("gpt2")
    whole = (path / WEIGHTS).read_bytes()
    size = int(kept * len(whole)) if isinstance(kept, float) else kept
    (path / WEIGHTS).write_bytes(whole[:size])
    message = refused(path)
    assert WEIGHTS in message
    assert "again" in message  # what to do


@pytest.mark.parametrize(
    "start", [b"\xff" * 8, (2**40).to_bytes(8, "little"), (3).to_bytes(8, "little")]
)
def test_a_header_of_an_absurd_length_is_refused(folder, start):
    path = folder("gpt2")
    whole = (path / WEIGHTS).read_bytes()
    (path / WEIGHTS).write_bytes(start + whole[8:])
    assert WEIGHTS in refused(path)


def test_shards_that_are_missing_or_cut_off_are_all_named(folder):
    path = folder("gpt2")
    shards = sorted(set(split(path).values()))
    assert len(shards) > 3
    (path / shards[0]).unlink()
    (path / shards[1]).unlink()
    (path / shards[2]).write_bytes(b"")
    message = refused(path)
    assert all(name in message for name in shards[:3])
    assert shards[3] not in message


def test_a_tensor_in_two_shards_is_refused(folder):
    path = folder("gpt2")
    shards = sorted(set(split(path).values()))
    one, other = (load_file(path / name) for name in shards[:2])
    twice = next(iter(one))
    save_file(other | {twice: one[twice]}, path / shards[1])
    assert f"tensor {twice} is in two files" in refused(path)


@pytest.mark.parametrize(
    "name",
    ["../outside.safetensors", "/outside.safetensors", "a/../../x.safetensors", "..", "", "x.bin"],
)
def test_an_index_may_name_only_safetensors_beside_it(folder, name):
    path = folder("gpt2")
    places = split(path)
    if name == "../outside.safetensors":  # even where the file is there and good
        (path / next(iter(places.values()))).rename(path / name)
    first = next(iter(places))
    (path / INDEX).write_text(json.dumps({"weight_map": places | {first: name}}))
    assert repr(name) in refused(path)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": 1}']
)
def test_an_index_that_lists_nothing_is_refused(folder, content):
    path = folder("gpt2")
    split(path)
    (path / INDEX).write_text(content)
    assert INDEX in refused(path)


def test_a_pickle_is_never_opened_and_the_message_says_how_to_convert_it(folder, tmp_path):
    path = folder("gpt2")
    (path / WEIGHTS).unlink()
    mark = tmp_path / "opened"
    # A pickle that, if loaded, makes a folder: os.mkdir(mark).
    (path / "pytorch_model.bin").write_bytes(f"cos\nmkdir\n(V{mark}\ntR.".encode())
    message = refused(path)
    assert not mark.exists()
    assert "pytorch_model.bin" in message
    assert "save_pretrained" in message


def test_a_folder_without_weights_and_a_pipe_for_a_pickle_is_refused_without_reading(folder):
    path = folder("gpt2")
    (path / WEIGHTS).unlink()
    os.mkfifo(path / "pytorch_model.bin")  # opening it would wait for ever
    assert "pytorch_model.bin" in refused(path)


def test_a_folder_without_weights_says_so(folder):
    path = folder("gpt2")
    (path / WEIGHTS).unlink()
    assert WEIGHTS in refused(path)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool, torch.float8_e4m3fn])
def test_weights_that_are_not_floating_point_are_refused_by_name(folder, dtype):
    path = folder("gpt2")
    names = ("transformer.wte.weight", "transformer.ln_f.bias")
    kind = {name: torch.zeros(256, 32).to(dtype) for name in names[:1]}
    kind[names[1]] = torch.zeros(32).to(dtype)
    change_tensors(path, lambda tensors: tensors | kind)
    message = refused(path)
    assert all(name in message for name in names)


def test_what_is_not_a_folder_is_refused(folder, tmp_path):
    path = folder("gpt2")
    for wrong in (tmp_path / "nowhere", path / "config.json", str(path / WEIGHTS), "a\0b"):
        message = refused(wrong)
        assert str(wrong) in message
        assert "is not a folder" in message


def test_a_path_too_long_to_exist_is_refused(tmp_path):
    assert "not a folder" in refused(tmp_path / ("x" * 5000))


# config.json


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"not json",
        b"\xff\xfe\x00",
        b'["gpt2"]',
        b"null",
        b'{"model_type": "gpt2"}}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"model_type": "gpt2", "n_embd": ' + b"9" * 5000 + b"}",
    ],
    ids=["empty", "open", "text", "bytes", "list", "null", "more", "bomb", "deep", "digits"],
)
def test_a_config_that_is_no_json_object_is_refused_by_name(folder, content):
    path = folder("gpt2")
    (path / "config.json").write_bytes(content)
    assert "config.json" in refused(path)


def test_a_missing_config_is_named(folder):
    path = folder("gpt2")
    (path / "config.json").unlink()
    assert "config.json" in refused(path)
    (path / "config.json").mkdir()
    assert "config.json" in refused(path)


@pytest.mark.parametrize(
    ("said", "hint"),
    [("gtp2", "'gpt2'"), ("llama4", "'llama'"), (None, "known: bert, gpt2"), (["bert"], "'bert'")],
)
def test_an_unknown_model_type_is_answered_with_the_nearest(folder, said, hint):
    path = folder("gpt2")
    change_config(path, model_type=said)
    message = refused(path)
    assert str(said) in message
    assert hint in message


SIZES = {
    "gpt2": ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head"),
    "bert": ("vocab_size", "max_position_embeddings", "hidden_size", "num_hidden_layers"),
    "llama": ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size"),
    "t5": ("vocab_size", "num_layers", "d_model", "num_heads", "d_kv", "d_ff"),
    "marian": ("vocab_size", "d_model", "decoder_layers", "encoder_layers", "decoder_ffn_dim"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_missing_size_is_named_in_one_message(folder, family):
    path = folder(family)
    change_config(path, remove=SIZES[family])
    message = refused(path)
    assert [key for key in SIZES[family] if f"{key} must be a whole number" not in message] == []


@pytest.mark.parametrize("wrong", ["32", 32.0, [32], {"n": 32}, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_size_of_a_wrong_type_is_named_in_one_message(folder, family, wrong):
    path = folder(family)
    change_config(path, **dict.fromkeys(SIZES[family], wrong))
    message = refused(path)
    assert [key for key in SIZES[family] if f"{key} must be" not in message] == []
    assert repr(wrong) in message


@pytest.mark.parametrize("wrong", [0, -1, 3, 2**40, 2**70])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_size_out_of_proportion_is_refused(folder, family, wrong):
    """Each by itself; a layer count is left out, for it would be a loop of as many turns."""
    path = folder(family)
    said = json.loads((path / "config.json").read_text())
    for key in SIZES[family]:
        if "layer" not in key:
            change_config(path, **{key: wrong})
            assert refused(path)
            change_config(path, **{key: said[key]})
    assert regard.load(path)


@pytest.mark.parametrize(
    ("family", "key"),
    [
        ("gpt2", "activation_function"),
        ("bert", "hidden_act"),
        ("llama", "hidden_act"),
        ("t5", "feed_forward_proj"),
        ("marian", "activation_function"),
    ],
)
def test_an_unknown_activation_is_refused_with_the_nearest(folder, family, key):
    path = folder(family)
    change_config(path, **{key: "gelo"})
    message = refused(path)
    assert "'gelo'" in message
    assert key in message
    assert "'gelu'" in message


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("kind", ["yarn", "dynamic", "longrope", 7])
def test_an_unsupported_rope_type_is_refused(folder, key, kind):
    path = folder("llama")
    change_config(path, remove=("rope_parameters", "rope_scaling"))
    change_config(path, **{key: {"rope_type": kind, "factor": 2.0}})
    message = refused(path)
    assert repr(kind) in message
    assert "llama3" in message


@pytest.mark.parametrize(
    "rope",
    [
        [1],
        "linear",
        {"rope_type": "linear", "factor": "2"},
        {"rope_type": "linear", "factor": 0.5},
        {"rope_type": "llama3", "low_freq_factor": 4.0, "high_freq_factor": 1.0},
        {"rope_type": "default", "rope_theta": 0.0},
    ],
)
def test_a_senseless_rope_is_one_problem_among_those_of_the_config(folder, rope):
    path = folder("llama")
    change_config(path, rope_parameters=rope, hidden_act="gelo")
    message = refused(path)
    assert "config.json" in message
    assert "gelo" in message


@pytest.mark.parametrize("kind", ["linear", "llama3"])
def test_a_scaled_rope_without_a_factor_is_refused(folder, kind):
    path = folder("llama")
    change_config(path, rope_parameters={"rope_type": kind})
    assert "factor" in refused(path)


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
        ("gpt2", "add_cross_attention", True),
        ("bert", "is_decoder", True),
        ("bert", "position_embedding_type", "relative_key"),
        ("t5", "is_encoder_decoder", False),
        ("marian", "normalize_before", True),
        ("marian", "static_position_embeddings", False),
        ("marian", "encoder_attention_heads", 2),
    ],
)
def test_a_setting_that_changes_the_function_beyond_us_is_refused(folder, family, key, value):
    path = folder(family)
    change_config(path, **{key: value})
    message = refused(path)
    assert key in message
    assert repr(value) in message


def test_a_senseless_tie_is_refused_and_not_taken_for_true(folder):
    path = folder("gpt2")
    change_config(path, tie_word_embeddings="no")
    assert "tie_word_embeddings" in refused(path)


def test_all_problems_of_a_config_come_together(folder):
    path = folder("llama")
    rope = {"rope_type": "yarn"}
    change_config(path, hidden_size="32", hidden_act="gelo", rms_norm_eps=[], rope_parameters=rope)
    message = refused(path)
    assert "4 problems" in message
    assert all(word in message for word in ("hidden_size", "gelo", "rms_norm_eps", "yarn"))


# Saving


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("gpt2-tiny", {"positions": "alibi"}, "positions = 'alibi'"),
        ("gpt2-tiny", {"kv_heads": 2}, "kv_heads = 2"),
        ("regard-2", {"query_key_norm": True}, "query_key_norm = True"),
        ("llama-tiny", {"gated": False}, "gated = False"),
        ("llama-tiny", {"norm_place": "post"}, "norm_place = 'post'"),
        ("t5-tiny", {"scale_scores": True}, "scale_scores = True"),
        ("bert-tiny", {"head_bias": False}, "head_bias = False"),
        ("bert-tiny", {"segments": 0}, "segments = 0"),
        ("marian-tiny", {"attention_bias": False}, "attention_bias = False"),
        ("transformer-tiny", {}, "sinusoidal"),
        ("regard-2-encoder", {}, "kind = 'encoder'"),
    ],
)
def test_a_model_no_family_can_hold_is_refused_with_the_reason(tmp_path, name, changes, named):
    model = build(replace(preset(name), vocabulary=64, **changes))
    message = refusal(lambda: regard.save(model, tmp_path / "out"))
    assert named in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt2-tiny", {"rotary_base": 5e5}),
        ("gpt2-tiny", {"relative_buckets": 16}),
        ("llama-tiny", {"relative_distance": 256}),
    ],
)
def test_a_setting_that_a_model_does_not_use_does_not_stop_its_saving(tmp_path, name, changes):
    model = build(replace(preset(name), **changes)).eval()
    regard.save(model, tmp_path)
    assert torch.equal(logits(regard.load(tmp_path).module), logits(model))


def assert_agrees(path: Path, kind: type) -> None:
    """Our reading of a decoder-only folder and theirs give the same logits."""
    theirs, report = kind.from_pretrained(path, output_loading_info=True)
    assert not any(report.values())
    tokens = torch.arange(3, 36)[None]
    with torch.no_grad():
        expected = theirs(tokens).logits
    gap = (logits(regard.load(path).module) - expected).abs().max()
    assert gap < 2e-5 * expected.std()


@pytest.mark.parametrize("name", ["regard-4", "regard-12"])
def test_our_default_model_is_a_llama_to_transformers(tmp_path, name):
    config = preset(name)
    small = replace(config, vocabulary=64, width=32 * config.heads // 4, hidden=48, layers=2)
    model = build(small)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.3)
    regard.save(model, tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    assert said["model_type"] == "llama"
    assert_agrees(tmp_path, hf.LlamaForCausalLM)


@pytest.mark.parametrize(
    "changes",
    [{}, {"source_vocabulary": 64}, {"source_vocabulary": 512}, {"tied": False}],
    ids=["shared", "smaller source", "larger source", "untied"],
)
def test_a_marian_made_here_is_loaded_by_transformers(tmp_path, changes):
    model = build(replace(preset("marian-tiny"), **changes)).eval()
    torch.nn.init.normal_(model.head.bias)
    regard.save(model, tmp_path)
    theirs, report = hf.MarianMTModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    tokens = torch.arange(3, 36)[None]
    with torch.no_grad():
        expected = theirs(tokens.flip(1), decoder_input_ids=tokens).logits
    assert (logits(model) - expected).abs().max() < 2e-5 * expected.std()


def test_saving_over_the_folder_a_model_came_from_keeps_every_weight(folder):
    path = folder("llama")
    expected = regard.load(path).module
    held = {name: t.clone() for name, t in expected.named_parameters()}
    for shard_bytes in (20_000, 5_000_000_000, 10_000):
        model = regard.load(path)
        regard.save(model, path, shard_bytes)
        assert {n: torch.equal(p, held[n]) for n, p in model.module.named_parameters()} == (
            dict.fromkeys(held, True)
        )
        assert_loads_as(path, expected)


def test_a_folder_saved_again_in_other_shards_keeps_no_old_file(folder):
    path = folder("gpt2")
    split(path)
    assert not (path / WEIGHTS).exists()
    regard.save(regard.load(path), path)
    assert {p.name for p in path.iterdir()} == {"config.json", WEIGHTS}


def test_saving_takes_no_file_away_that_it_did_not_write(folder):
    path = folder("gpt2")
    others = ("model_of_yesterday.safetensors", "model-ema.safetensors", "tokenizer.json")
    for name in others:
        (path / name).write_text("keep me")
    split(path)
    regard.save(regard.load(path), path)
    assert [name for name in others if not (path / name).exists()] == []


def test_shards_hold_what_the_index_says_and_no_more_than_asked(folder):
    path = folder("llama")
    places = split(path)
    for name in set(places.values()):
        held = load_file(path / name)
        assert set(held) == {tensor for tensor, place in places.items() if place == name}
        assert len(held) == 1 or sum(t.nbytes for t in held.values()) <= 20_000
    total = json.loads((path / INDEX).read_text())["metadata"]["total_size"]
    assert total == sum(p.nbytes for p in regard.load(path).module.parameters())


def blocked_by_a_file(path: Path) -> Path:
    path.write_text("in the way")
    return path


def blocked_above(path: Path) -> Path:
    return blocked_by_a_file(path) / "below"


def blocked_weights(path: Path) -> Path:
    (path / WEIGHTS).mkdir(parents=True)
    return path


def blocked_config(path: Path) -> Path:
    (path / "config.json").mkdir(parents=True)
    return path


def not_writable(path: Path) -> Path:
    return Path("/proc")  # where not even root makes files


def not_a_path(path: Path) -> Path:
    return path / "a\0b"


@pytest.mark.parametrize(
    "blocked",
    [
        blocked_by_a_file,
        blocked_above,
        blocked_weights,
        blocked_config,
        not_writable,
        not_a_path,
    ],
)
def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path, blocked):
    path = blocked(tmp_path / "out")
    message = refusal(lambda: regard.save(tiny("gpt2"), path))
    assert str(path) in message
    assert "\n" not in message
    assert [p.name for p in tmp_path.rglob("*.partial")] == []  # and nothing half-written stays
