"""Five families of Hugging Face models as presets of our one Transformer."""

from regard.interchange.families.bert import Bert
from regard.interchange.families.family import Family
from regard.interchange.families.gpt2 import GPT2
from regard.interchange.families.llama import Llama
from regard.interchange.families.marian import Marian
from regard.interchange.families.t5 import T5

FAMILIES: dict[str, Family] = {
    family.name: family for family in (GPT2(), Bert(), Llama(), T5(), Marian())
}
