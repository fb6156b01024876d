"""The tree of parts adds up to the model."""

import pytest

import regard
from regard.inspection.anatomy import anatomy, parameters


def total(part):
    """All numbers in a tree, counted from its leaves' shapes."""
    here = sum(size(shape) for _, shape in part.shapes)
    return here + sum(child.times * total(child) for child in part.children)


def size(shape):
    result = 1
    for extent in shape:
        result *= extent
    return result


@pytest.mark.parametrize("name", ["gpt2", "bert-base", "llama-3-8b", "t5-small", "marian"])
def test_the_shapes_in_the_tree_add_up_to_every_parameter(name):
    module = regard.build(regard.preset(name), "meta")
    tree = anatomy(module)
    assert tree.parameters == total(tree) == parameters(module)
    assert parameters(module) == sum(p.numel() for p in module.parameters())


def test_alike_neighbours_become_one_part_and_others_stay_apart():
    module = regard.build(regard.preset("gpt2"), "meta")
    (blocks,) = (part for part in anatomy(module.decoder).children if part.name == "blocks")
    (block,) = blocks.children
    assert (block.name, block.times) == ("0–11", 12)
    names = [part.name for part in block.children]
    assert {"attention_norm", "feedforward_norm"} <= set(names)
