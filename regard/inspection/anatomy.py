"""A model's parts as a tree: what each is, its weights' shapes, and how many numbers they hold."""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class ModulePart:
    """One module, or `times` neighbours that are alike."""

    name: str
    kind: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]  # of the weights directly in it
    parameters: int  # of one of them, with everything inside
    children: tuple["ModulePart", ...] = ()
    times: int = 1


def anatomy(module: nn.Module, name: str = "") -> ModulePart:
    """The tree below a module; works on the meta device. Alike neighbours become one part."""
    own = list(module.named_parameters(recurse=False))
    children: list[ModulePart] = []
    for child_name, child in module.named_children():
        part = anatomy(child, child_name)
        if children and _alike(children[-1], part):
            last = children.pop()
            first = last.name.split("–")[0]
            part = ModulePart(
                f"{first}–{child_name}", *_content(part), last.children, times=last.times + 1
            )
        children.append(part)
    inside = sum(child.parameters * child.times for child in children)
    here = sum(weight.numel() for _, weight in own)
    shapes = tuple((key, tuple(weight.shape)) for key, weight in own)
    return ModulePart(name, type(module).__name__, shapes, here + inside, tuple(children))


def _content(part: ModulePart) -> tuple[str, tuple[tuple[str, tuple[int, ...]], ...], int]:
    return part.kind, part.shapes, part.parameters


def _alike(left: ModulePart, right: ModulePart) -> bool:
    return _content(left) == _content(right) and left.children == right.children


def parameters(module: nn.Module) -> int:
    """How many numbers a model learns; shared ones count once."""
    return sum(weight.numel() for weight in module.parameters())
