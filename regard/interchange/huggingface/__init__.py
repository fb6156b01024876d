"""Five families of Hugging Face models as presets of our one Transformer."""

from regard.interchange.huggingface.bert import Bert
from regard.interchange.huggingface.family import FolderFamily
from regard.interchange.huggingface.gpt2 import GPT2
from regard.interchange.huggingface.llama import Llama
from regard.interchange.huggingface.marian import Marian
from regard.interchange.huggingface.t5 import T5

FAMILIES: dict[str, FolderFamily] = {
    family.name: family for family in (GPT2(), Bert(), Llama(), T5(), Marian())
}
