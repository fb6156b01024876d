"""Every family of models: the settings that tell its members apart, their names, their modules."""

from dataclasses import fields, replace
from typing import Any

import torch

from regard.errors import RegardError, nearest
from regard.models.bag.model import Bag, BagConfig
from regard.models.captioner.config import CaptionConfig
from regard.models.captioner.model import Captioner
from regard.models.construction import made_on
from regard.models.convolution.config import ConvolutionConfig
from regard.models.convolution.model import (
    ConvolutionDecoder,
    ConvolutionEncoderDecoder,
)
from regard.models.counting.model import NGram, NGramConfig
from regard.models.network import Network
from regard.models.recurrent.config import RecurrentConfig
from regard.models.recurrent.encoder_decoder import RecurrentEncoderDecoder
from regard.models.recurrent.model import RecurrentDecoder
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.model import build as build_transformer
from regard.models.transformer.presets import DIAL, DIALLED, PRESETS, preset
from regard.models.word_vectors.model import Word2VecConfig, WordVectors

Writer = Network | NGram | Bag  # they answer the protocol
Model = Writer | WordVectors
Config = (
    TransformerConfig
    | RecurrentConfig
    | ConvolutionConfig
    | CaptionConfig
    | NGramConfig
    | Word2VecConfig
    | BagConfig
)

NGRAM = NGramConfig()
WORDS = Word2VecConfig()
BAG = BagConfig()
LSTM = RecurrentConfig(dropout=0.2)
RNN = RecurrentConfig(
    kind="encoder-decoder", cell="gru", layers=1, width=256, hidden=512, dropout=0.3
)
BAHDANAU = replace(RNN, attention="additive")
CONVOLUTION = ConvolutionConfig(dilation_growth=2, dilation_cycle=4, dropout=0.1)
CAPTIONER = CaptionConfig()
OTHERS: dict[str, Config] = {
    "elman": replace(LSTM, cell="elman"),
    "gru": replace(LSTM, cell="gru"),
    "lstm": LSTM,
    "awd-lstm": RecurrentConfig(
        layers=3,
        width=400,
        hidden=1150,
        dropout=0.2,
        input_dropout=0.65,
        output_dropout=0.4,
        variational=True,
        weight_dropout=0.5,
        embedding_dropout=0.1,
    ),
    "rnn": RNN,
    "rnn+attention": BAHDANAU,
    "bahdanau": BAHDANAU,
    "luong": replace(RNN, cell="lstm", layers=2, attention="general", input_feeding=True),
    "conv": CONVOLUTION,
    "conv-pairs": ConvolutionConfig(kind="encoder-decoder", layers=4, dropout=0.2),
    "captioner": CAPTIONER,
    "captioner-lstm": replace(CAPTIONER, decoder="lstm"),
    "captioner-vit": replace(CAPTIONER, encoder="patches", encoder_layers=4),
    "captioner-vit-lstm": replace(CAPTIONER, encoder="patches", encoder_layers=4, decoder="lstm"),
    "unigram": replace(NGRAM, order=1),
    "bigram": replace(NGRAM, order=2),
    "trigram": replace(NGRAM, order=3),
    "ngram": NGRAM,
    "word2vec": WORDS,
    "skip-gram": WORDS,
    "cbow": replace(WORDS, method="cbow"),
    "bag-linear": BAG,
    "bag-perceptron": replace(BAG, layers=1),
}
ABOUT = {
    "elman": "a recurrent language model without gates, whose gradients vanish or explode",
    "gru": "the same with two gates",
    "lstm": "the same with three gates around a sum that gradients pass through",
    "awd-lstm": "the LSTM of Merity 2017: three layers, and dropout of everything",
    "rnn": "translates (--pairs) through one vector: a GRU that reads, a GRU that writes",
    "rnn+attention": "the same with attention: each step looks at all of the source",
    "bahdanau": "the same",
    "luong": "LSTMs that look behind each step, and read what they saw in the next",
    "conv": "a causal convolutional language model that sees the last 61 tokens",
    "conv-pairs": "translates (--pairs): convolutions that read, convolutions that write and look",
    "captioner": "says what is in a picture (--images): a residual network, and a Transformer",
    "captioner-lstm": "the same with an LSTM that looks at the picture for each word",
    "captioner-vit": "the same as captioner with a Transformer over patches of the picture",
    "captioner-vit-lstm": "patches, and an LSTM that looks at them",
    "unigram": "a bag of words: how often each token stands, order ignored",
    "bigram": "each token by the one before it",
    "trigram": "each token by the two before it",
    "ngram": "each token by the last four (or --order), interpolated modified Kneser–Ney",
    "word2vec": "word vectors by skip-gram: each word predicts those near it",
    "skip-gram": "the same",
    "cbow": "word vectors by continuous bag of words: those near a place predict the word there",
    "bag-linear": "labels texts (--pairs) by their words, order ignored: logistic regression",
    "bag-perceptron": "the same with a hidden layer",
}


def named(name: str) -> Config:
    """The settings that a model's name stands for."""
    if name in OTHERS:
        return OTHERS[name]
    if name not in PRESETS and not DIAL.fullmatch(name):
        known = [*PRESETS, *DIALLED, *OTHERS]
        raise RegardError(f"no model is called {name!r}; {nearest(name, known)}")
    return preset(name)


def settings_of(name: str) -> list[str]:
    """What can be changed in a model of this name; in a Transformer, if there is no such model."""
    return [f.name for f in fields(OTHERS.get(name) or TransformerConfig)]


def reads(config: Config) -> bool:
    """Whether such a model writes from a source: a text, or a picture."""
    return config.kind in ("encoder-decoder", "captioner")


def build(config: Config | str, device: torch.device | str | None = None) -> Any:
    """The module that a config (or a model's name) describes, freshly initialised.

    On the `meta` device it takes no memory.
    """
    config = named(config) if isinstance(config, str) else config
    if isinstance(config, NGramConfig):
        return NGram(config)
    if isinstance(config, TransformerConfig):
        return build_transformer(config, device)
    with made_on(device):
        if isinstance(config, CaptionConfig):
            return Captioner(config)
        pairs = config.kind == "encoder-decoder"
        if isinstance(config, RecurrentConfig):
            return (RecurrentEncoderDecoder if pairs else RecurrentDecoder)(config)
        if isinstance(config, ConvolutionConfig):
            return (ConvolutionEncoderDecoder if pairs else ConvolutionDecoder)(config)
        return Bag(config) if isinstance(config, BagConfig) else WordVectors(config)
