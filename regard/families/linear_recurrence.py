"""The family of gated linear recurrences: trained by a parallel scan, decoded step by step."""

from regard.families.base import Family

FAMILY = Family()
