"""GPT-2 small at full size, random weights, against `transformers`: count, logits, greedy text, there and back, memory.
PARITY_TOKENS=144 PARITY_PROMPTS=64 for the whole check."""
import os
import shutil
import subprocess
import sys
from pathlib import Path
import pytest
import torch
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.fast.generate import generate
from rookworld_nb.lm.loader import load_model, save_model

transformers = pytest.importorskip('transformers')
TOKENS, PROMPTS = int(os.environ.get('PARITY_TOKENS', 16)), int(os.environ.get('PARITY_PROMPTS', 4))
SIZE_MB = 4*124_439_808/1e6


@pytest.fixture(scope='module')
def theirs():
    """GPT-2 small of `transformers`; every parameter gets a push, since at its own start GPT-2 only
    repeats the last token."""
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    for p in theirs.parameters(): p.data += 0.05*torch.randn_like(p)
    return theirs


@pytest.fixture(scope='module')
def directory(theirs, tmp_path_factory):
    directory = tmp_path_factory.mktemp('gpt2')/'theirs'
    theirs.save_pretrained(directory)
    yield directory
    shutil.rmtree(directory)     # 0.5 GB


@pytest.fixture
def folder(tmp_path):
    "A directory that does not outlive the test: half a gigabyte each."
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.fixture(scope='module')
def ours(directory): return load_model(directory)


@pytest.fixture(scope='module')
def prompts():
    "Questions of many lengths: P is short, A long, and a growing piece of each is asked."
    rows = load_rows('positions', env_ratio=0.5, limit=PROMPTS)
    return [e.prompt()[:20 + 3*i] for i, e in enumerate(rows)]


def batch(rows):
    "Left-padded ids and mask."
    width = max(map(len, rows))
    ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, width - len(row):], mask[i, width - len(row):] = torch.tensor(row), True
    return ids, mask


def their_logits(theirs, ids, mask):
    with torch.no_grad():
        return theirs(ids, attention_mask=mask.long(),
                      position_ids=(mask.cumsum(-1) - 1).clamp(min=0)).logits


def test_parameters(ours):
    model, tokenizer = ours
    assert sum(p.numel() for p in model.parameters()
               ) == 124_439_808 and tokenizer.vocab_size == 50257 == model.config.vocab_size


def test_logits_under_left_padding(theirs, ours, prompts):
    model, tokenizer = ours
    ids, mask = batch([tokenizer.encode(p) for p in prompts[:8]])
    assert not mask.all()
    with torch.no_grad():
        gap = (model(ids, mask)[mask] - their_logits(theirs, ids, mask)[mask]).abs().max()
    assert gap <= 1e-4


def test_greedy_text(theirs, ours, prompts):
    "All prompts in one left-padded batch here, one by one there: the same ids."
    model, tokenizer = ours
    rollouts = generate(model, tokenizer, prompts, max_new_tokens=TOKENS, temperature=0)
    assert len({len(tokenizer.encode(p)) for p in prompts}) > len(prompts)//2
    # text that varies, not one token for ever
    assert sum(len(row.unique()) for row in rollouts.completion_ids[:, :16]) > 8*len(prompts)
    how = dict(do_sample=False, max_new_tokens=TOKENS, eos_token_id=tokenizer.eot,
               pad_token_id=tokenizer.eot)
    for prompt, ids, mask in zip(prompts, rollouts.completion_ids, rollouts.completion_mask):
        asked = torch.tensor([tokenizer.encode(prompt)])
        with torch.no_grad():
            answer = theirs.generate(asked, attention_mask=torch.ones_like(asked), **how)
        assert ids[mask].tolist() == answer[0, asked.shape[1]:].tolist(), prompt


@pytest.mark.parametrize('name', ['nano', 'gpt2'])
def test_there_and_back(name, ours, folder):
    model, tokenizer = ours if name == 'gpt2' else load_model('nano')
    save_model(model, tokenizer, folder)
    back, its_tokenizer = load_model(folder)
    assert its_tokenizer.name == tokenizer.name and back.config == model.config
    for (n, p), q in zip(model.named_parameters(), back.parameters()): assert torch.equal(p, q), n
    exported, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    ids, mask = batch([
        tokenizer.encode(t) for t in ('P: 8/8/8/8/8/4k3/4p3/4K3 w - - 0 1',
                                      'A: 8/8/8/8/8/4k3/4p3/4K3 w - - 0 1+e1d1+e1d1+')
    ])
    with torch.no_grad():
        gap = (model(ids, mask)[mask] - their_logits(exported.eval(), ids, mask)[mask]).abs().max()
    assert gap <= 1e-4


PEAK = '''
import re, sys
def peak(): return int(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1])*1.024e-3
from rookworld_nb.lm.loader import load_model
before = peak()
load_model(sys.argv[1])
print(peak() - before)
'''


@pytest.mark.skipif(not Path('/proc/self/status').exists(), reason='peak memory is read from /proc')
@pytest.mark.parametrize('layout', [
    'bf16 sharded with head', *['bin', 'fp32', 'bf16']*('PARITY_TOKENS' in os.environ)
])
def test_memory_while_loading(layout, theirs, directory, folder):
    "At most 1.5 times the model as it will be, in float32; what was mapped and touched counts."
    if layout == 'fp32': path = directory
    elif layout == 'bin':
        path = folder
        (path/'config.json').write_bytes((directory/'config.json').read_bytes())
        torch.save({n: t
                    for n, t in theirs.state_dict().items() if n != 'lm_head.weight'},
                   path/'pytorch_model.bin')
    else:
        path, low = folder, transformers.GPT2LMHeadModel(theirs.config).to(torch.bfloat16)
        if 'head' in layout:
            low.lm_head.weight = torch.nn.Parameter(low.transformer.wte.weight.detach().clone())
            low.config.tie_word_embeddings = False
        low.save_pretrained(path, max_shard_size='100MB' if 'sharded' in layout else '1GB')
        assert (path/'model.safetensors').exists() == (layout == 'bf16')
    environ = os.environ | {'OMP_NUM_THREADS': '1', 'HF_HUB_OFFLINE': '1'}
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', PEAK,
                           str(path)], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    print(f'{layout}: {float(done.stdout):.0f} MB, {float(done.stdout)/SIZE_MB:.2f} x')
    assert float(done.stdout) <= 1.5*SIZE_MB


def test_few_products_are_remembered():
    "oneDNN keeps a plan for each number of rows that it met: 128 of them, unless you say otherwise."
    names = 'LRU_CACHE_CAPACITY', 'ONEDNN_PRIMITIVE_CACHE_CAPACITY'
    told = subprocess.run([sys.executable, '-c', f'import os, rookworld_nb.lm.products; print(*map(os.environ.get, {names}))'],
                          env={k: v for k, v in os.environ.items() if k not in names}, capture_output=True, text=True, check=True)
    assert told.stdout.split() == ['128', '128']
