#!/usr/bin/env bash
# tokenizers 0.23.3: add_tokens gives a new token an id that another token already has, where the vocabulary has gaps.
#
# Expected: a new token gets an id above all ids in use (or one that is free), and decode(encode(text)) gives the text back.
# Seen: the new id is the number of tokens, not the highest id plus one. With the ids 0, 1, 2 and 5 (two moves were struck out of a list) the second new token gets 5,
#   which is Nf3: two tokens train one row of the embedding, and Nf3 is decoded as the new token. No error and no warning, also not when the tokenizer is saved and loaded.
# Who meets it: whoever cuts a vocabulary down to what a task needs, keeps the ids for the sake of the embedding, and then adds a mark.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet tokenizers==0.23.3
"$work/venv/bin/python" - <<'P'
from tokenizers import Tokenizer, models, pre_tokenizers

tokenizer = Tokenizer(models.WordLevel({'[UNK]': 0, 'e4': 1, 'e5': 2, 'Nf3': 5}, unk_token='[UNK]'))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
before = tokenizer.decode(tokenizer.encode('e4 e5 Nf3').ids)
tokenizer.add_special_tokens(['<white>', '<black>'])
loaded = Tokenizer.from_str(tokenizer.to_str())
ids = {token: loaded.token_to_id(token) for token in ('e4', 'e5', 'Nf3', '<white>', '<black>')}
after = loaded.decode(loaded.encode('e4 e5 Nf3').ids, skip_special_tokens=False)
print('before', repr(before), '| ids now', ids, '| size', loaded.get_vocab_size())
print('after ', repr(after), '| without special tokens', repr(loaded.decode(loaded.encode('e4 e5 Nf3').ids)))
assert before == 'e4 e5 Nf3'
assert ids['<black>'] == ids['Nf3'] == 5 and after == 'e4 e5 <black>', f'the behaviour has changed: {ids}, {after}'
P
# Output seen on 2026-11-27:
# before 'e4 e5 Nf3' | ids now {'e4': 1, 'e5': 2, 'Nf3': 5, '<white>': 4, '<black>': 5} | size 6
# after  'e4 e5 <black>' | without special tokens 'e4 e5'
