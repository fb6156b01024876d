"""N-gram models (M3, M4): the family, and how they count."""

from regard.families.counting.family import FAMILY as FAMILY
