"""The five tokens that every tokenizer has as its first ids, whatever its kind."""

PAD = 0  # fills a row up; never read, never predicted
BOS = 1  # begins a sequence
EOS = 2  # ends a document
UNK = 3  # what the vocabulary has no token for
MASK = 4  # hides a token that is to be guessed

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")  # their texts, by id
