"""What a config.json may say, and how a wrong one is refused."""

import json

import pytest
from tiny_folders import FAMILIES, change_config, refused

import regard


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
