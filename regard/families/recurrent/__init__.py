"""Recurrent models (M5–M7): the family, and how far back they are felt."""

from regard.families.recurrent.family import FAMILY as FAMILY
