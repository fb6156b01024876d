"""Word vectors (M2): the family, and how they learn."""

from regard.families.word_vectors.family import FAMILY as FAMILY
