"""From the hub: the real `huggingface_hub` client inside our loader, against a server of our own.
Every published layout, every refusal, a resumed download, two steps of training."""
import json
import os
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from hub_server import HubServer
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.lm.loader import config_from_hf, load_model, load_weights, save_model
from rookworld_nb.lm.model import GPT, GPTConfig
from rookworld_nb.lm.tokenizer import load_tokenizer

transformers = pytest.importorskip('transformers')
IDS = torch.randint(50257, (2, 12), generator=torch.Generator().manual_seed(0))
SECRET = 'hf_secret'
# every layout, and two steps, at full size: 11 GB of disk and some minutes
FULL = os.environ.get('HUB_SHAPE') == '124M'


def environment(hub, home, **more):
    "A process that knows no other hub than ours."
    kept = {k: v for k, v in os.environ.items() if not k.startswith(('ROOKWORLD_', 'HF_'))}
    return (kept | dict(HF_ENDPOINT=hub.url, HF_HOME=str(home), HF_HUB_OFFLINE='0',
                        HF_HUB_DISABLE_XET='1', OMP_NUM_THREADS='1') | more)


def python(code, *args, cwd, env, timeout=150):
    done = subprocess.run([sys.executable, '-c', code, *map(str, args)], cwd=cwd, env=env,
                          capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope='module')
def hub():
    with HubServer() as hub: yield hub


# ---- every published layout

def published(directory, tensors, config, shards=1, kind='safetensors'):
    "Weights and config as repositories have them, in so many files."
    directory.mkdir(parents=True)
    (directory/'config.json').write_text(json.dumps(config))
    stem, save = ('model', save_file) if kind == 'safetensors' else ('pytorch_model', torch.save)
    tensors = {name: t.clone().contiguous() for name, t in tensors.items()}
    if shards == 1: return save(tensors, directory/f'{stem}.{kind}')
    parts = {
        f'{stem}-{k + 1:05}-of-{shards:05}.{kind}': dict(list(tensors.items())[k::shards])
        for k in range(shards)
    }
    for file, part in parts.items(): save(part, directory/file)
    where = {name: file for file, part in parts.items() for name in part}
    (directory/
     f'{stem}.{kind}.index.json').write_text(json.dumps({'metadata': {}, 'weight_map': where}))


def as_dtype(tensors, dtype): return {name: t.to(dtype) for name, t in tensors.items()}


def with_head(tensors):
    return (
        tensors
        | {'lm_head.weight': next(t for name, t in tensors.items() if name.endswith('wte.weight'))})
def with_buffers(tensors):
    return (tensors | {
        'transformer.h.0.attn.bias': torch.ones(1, 1, 64, 64),
        'transformer.h.1.attn.masked_bias': torch.tensor(-1e4)
    })


def padded(tensors):
    """The vocabulary as trainers like it, 50,304 rows; what stands in the last ones matters to
    nobody."""
    return {
        name: torch.cat([t, t[:47]]) if name.endswith(('wte.weight', 'lm_head.weight')) else t
        for name, t in tensors.items()
    }


def original():
    "A GPT-2 over GPT-2's vocabulary, small unless asked for, every parameter random."
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        **{} if FULL else dict(n_layer=2, n_head=2, n_embd=32, n_positions=64))
    theirs = transformers.GPT2LMHeadModel(config).eval()
    for p in theirs.parameters(): p.data += (0.01 if FULL else 0.1) * torch.randn_like(p)
    return theirs


def logits(config, tensors):
    "What our model says with these tensors."
    model = GPT(config_from_hf(config)).eval()
    load_weights(model, tensors)
    with torch.no_grad(): return model(IDS)


LAYOUTS = ('transformers', 'bare', 'with head', 'with buffers', 'sharded', 'bf16', 'fp16', 'padded',
           'padded weights only', 'bin', 'sharded bin', 'old bin', 'all at once')


@pytest.fixture(scope='module')
def layouts(hub, tmp_path_factory):
    """Each layout downloaded and opened, all in one process: its logits, the warnings, and what the
    logits should be."""
    home, theirs = tmp_path_factory.mktemp('layouts'), original()
    config, state = theirs.config.to_dict(), {
        n: t
        for n, t in theirs.state_dict().items() if n != 'lm_head.weight'
    }
    bf16, fp16 = as_dtype(state, torch.bfloat16), as_dtype(state, torch.float16)
    wide, bare = config | dict(
        vocab_size=50304), {n.removeprefix('transformer.'): t
                            for n, t in state.items()}
    theirs.save_pretrained(home/'transformers')
    published(home/'bare', bare, config)
    published(home/'with head', with_head(state), config)
    published(home/'with buffers', with_buffers(state), config)
    published(home/'sharded', state, config, shards=3)
    published(home/'bf16', bf16, config)
    published(home/'fp16', fp16, config)
    published(home/'padded', padded(state), wide)
    published(home/'padded weights only', padded(state), config)
    published(home/'bin', state, config, kind='bin')
    published(home/'sharded bin', state, config, shards=2, kind='bin')
    published(home/'old bin', {}, config, kind='bin')
    torch.save(state, home/'old bin/pytorch_model.bin', _use_new_zipfile_serialization=False)
    published(home/'all at once', padded(with_buffers(with_head(bf16))), wide, shards=3)
    for name in LAYOUTS: hub.add(f'layouts/{name.replace(" ", "-")}', home/name)
    code = '''
import sys, warnings, torch
from pathlib import Path
from rookworld_nb.lm.loader import load_model
ids, found = torch.load(sys.argv[1], weights_only=True), {}
for name in sys.argv[2:]:
    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        warnings.simplefilter('always')
        model, tokenizer = load_model('layouts/' + name.replace(' ', '-'))
    assert tokenizer.name == 'gpt2' and {p.dtype for p in model.parameters()} == {torch.float32}
    found[name] = model(ids).detach(), [str(w.message) for w in said]
torch.save(found, 'found')
'''
    torch.save(IDS, home/'ids')
    code, out, err = python(code, home/'ids', *LAYOUTS, cwd=home, env=environment(hub, home/'home'),
                            timeout=900)
    assert code == 0, err
    with torch.no_grad(): exact = theirs(IDS).logits
    expected = {
        'bf16': logits(config, bf16), 'fp16': logits(config, fp16),
        'all at once': logits(config, bf16)
    }
    return SimpleNamespace(found=torch.load(home/'found', weights_only=True), expected=expected,
                           ours=logits(config, state), exact=exact)


@pytest.mark.parametrize('layout', LAYOUTS)
def test_a_published_layout_loads(layout, layouts):
    found, said = layouts.found[layout]
    assert torch.equal(found, layouts.expected.get(layout, layouts.ours))
    assert (found - layouts.exact).abs().max() < (0.05*layouts.exact.abs().max() if layout in layouts.expected else 1e-4)
    wanted = (['pickle']*('bin' in layout) + ['50304 rows are cropped']*(('padded' in layout) + 2*
                                                                         (layout == 'all at once')))
    assert len(said) == len(wanted), said
    for sentence, message in zip(wanted, said): assert sentence in message


# ---- what goes wrong

FORKS = '''
import json, os, sys
from rookworld_nb.apps.cli import train_command
import rookworld_nb.run.train
cases = json.loads(sys.argv[1])
children = {}
for name, (args, environ) in cases.items():
    if child := os.fork():
        children[child] = name
        continue
    os.environ.update(environ)
    for fd, stream in ((1, 'out'), (2, 'err')): os.dup2(os.open(f'{name}.{stream}', os.O_CREAT | os.O_WRONLY), fd)
    code = train_command(args)
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)
codes = {children[child]: os.waitstatus_to_exitcode(status) for child, status in (os.wait() for _ in cases)}
print(json.dumps(codes))
'''
REFUSED = {   # case: arguments, environment, what the line says
    'private': ('--model house/private', {}, "config.json of 'house/private'", 'or it is private; '
                                                                               'check the name, or set HF_TOKEN'),
    'wrong token': ('--model house/private', {'HF_TOKEN': 'hf_wrong'}, "config.json of 'house/private'", 'refuses the token (401); check HF_TOKEN'),
    'gated': ('--model house/gated', {'HF_TOKEN': SECRET}, "config.json of 'house/gated'", 'access has to be granted; ask for it on http://'),
    'no repository': ('--model house/nothing', {}, "config.json of 'house/nothing'", 'no such repository'),
    'no revision': ('--model house/good@v9', {}, "config.json of 'house/good' at 'v9'", 'no such revision; check what stands behind the @'),
    'no config': ('--model house/empty', {}, "config.json of 'house/empty'", 'no such file'),
    'no weights': ('--model house/weightless', {}, "model.safetensors of 'house/weightless'", 'no such file'),
    'no shard': ('--model house/shardless', {}, "model-00002-of-00002.safetensors of "
                                                "'house/shardless'", 'no such file'),
    'too many requests': ('--model house/busy', {}, "config.json of 'house/busy'", '(429); wait some minutes, or set HF_TOKEN'),
    'server error': ('--model house/broken', {}, "config.json of 'house/broken'", 'the hub answers 501; try again later'),
    'always cut': ('--model house/cut', {}, "model.safetensors of 'house/cut'", 'the connection broke again and again; try again'),
    'tokenizer unknown': ('--model house/unsure', {}, "rookworld_tokenizer.json of 'house/unsure'", 'the hub answers 501'),
    'data: no repository': ('--data house/nothing', {}, 'house/nothing', 'no such repository, or it is private'),
    'data: private': ('--data house/secret', {}, 'house/secret', 'no such repository, or it is private'),
    'data: too many requests': ('--data house/busy-rows', {}, 'house/busy-rows', '(429)'),
}


def small_model(directory, **changes):
    tokenizer = load_tokenizer('chess')
    torch.manual_seed(0)
    model = GPT(
        GPTConfig(
            **dict(vocab_size=tokenizer.vocab_size, n_positions=192, n_layer=2, n_head=2, n_embd=32)
            | changes)).eval()
    save_model(model, tokenizer, directory)
    return model


@pytest.fixture(scope='module')
def refused(hub, tmp_path_factory):
    "Every refusal, each in a process of its own, all at once: exit code and stderr."
    home = tmp_path_factory.mktemp('refused')
    small_model(home/'good')
    for name, kept in dict(empty=[], weightless=['config.json'], shardless=['config.json']).items():
        (home/name).mkdir()
        for file in kept: (home/name/file).write_bytes((home/'good'/file).read_bytes())
    published(home/'split', load_file(home/'good/model.safetensors'), {}, shards=2)
    for file in ('model-00001-of-00002.safetensors', 'model.safetensors.index.json'):
        shutil.copy(home/'split'/file, home/'shardless')
    for name in ('good', 'empty', 'weightless', 'shardless'): hub.add(f'house/{name}', home/name)
    for name in ('busy', 'broken', 'unsure'): hub.add(f'house/{name}', home/'good')
    hub.add('house/private', home/'good', token=SECRET)
    hub.add('house/gated', home/'good', gated=True)
    small_model(home/'cut', n_embd=96)
    hub.add('house/cut', home/'cut')
    hub.add('house/secret', home/'good', 'dataset', token=SECRET)
    hub.add('house/busy-rows', home/'good', 'dataset')
    hub.fail('house/busy', status=429, headers={'Retry-After': '0'})
    hub.fail('house/broken', status=501)
    hub.fail('house/unsure/.*tokenizer', status=501)
    hub.fail(f'/cdn/{hub.etag(home/"cut/model.safetensors")}', cut=1000)
    cases = {name: (args.split(), environ) for name, (args, environ, *_) in REFUSED.items()}
    code, out, err = python(FORKS, json.dumps(cases), cwd=home, env=environment(hub, home/'home'))
    assert code == 0, err
    return {
        name: (code, (home/f'{name}.err').read_text())
        for name, code in json.loads(out).items()
    }


@pytest.mark.parametrize('case', REFUSED)
def test_a_refusal_is_one_line(case, refused):
    code, err = refused[case]
    assert code == 2, err
    assert err.startswith('rookworld_train: cannot ') and err.count(
        '\n') == 1 and SECRET not in err, err
    for part in REFUSED[case][2:]: assert part in err
    if case.startswith('data'): return
    assert 'from the Hugging Face hub: ' in err and err.endswith(
        '; or name the directory of a local copy instead\n'), err


LOAD = '''
import sys
from rookworld_nb.lm.loader import load_model
print(sum(p.double().sum().item() for p in load_model(sys.argv[1])[0].parameters()))
'''

def total(model): return sum(p.double().sum().item() for p in model.parameters())


def test_a_private_repository_opens_with_its_token_which_stays_on_the_hub(hub, tmp_path):
    "huggingface_hub 2.4.0 sends the token to no other host."
    model = small_model(tmp_path/'model', n_embd=64)
    hub.add('mine/model', tmp_path/'model', token=SECRET, revisions=('main', 'v1'))
    code, out, err = python(LOAD, 'mine/model@v1', cwd=tmp_path,
                            env=environment(hub, tmp_path/'home', HF_TOKEN=SECRET))
    assert (code, float(out), err) == (0, total(model), '')
    cdn = [
        r for r in hub.log
        if r['request'].startswith(f'GET /cdn/{hub.etag(tmp_path/"model/model.safetensors")}')
    ]
    assert len(cdn) == 1 and cdn[0]['token'] is None
    assert any(r['token'] == f'Bearer {SECRET}' and '/resolve/v1/config.json' in r['request']
               for r in hub.log)


def test_a_cut_download_resumes(hub, tmp_path):
    "huggingface_hub 2.4.0 goes on with the last whole part."
    model = small_model(tmp_path/'model', n_embd=640)
    weights = tmp_path/'model/model.safetensors'
    hub.add('house/resumed', tmp_path/'model')
    hub.fail('GET /cdn/' + hub.etag(weights), cut=25_000_000, times=1)
    code, out, err = python(LOAD, 'house/resumed', cwd=tmp_path,
                            env=environment(hub, tmp_path/'home'))
    assert (code, float(out), err) == (0, total(model), '')
    got = [r for r in hub.log if hub.etag(weights) in r['request']]
    # the client writes, and resumes, in parts of 10 MiB
    assert [r['range'] for r in got] == [None, 'bytes=20971520-']
    assert weights.stat().st_size < hub.sent(hub.etag(weights)) < 1.2*weights.stat().st_size


def test_patience_with_a_busy_hub(hub, tmp_path):
    "huggingface_hub 2.4.0 waits as it is told."
    model = small_model(tmp_path/'model')
    hub.add('house/patient', tmp_path/'model')
    hub.fail('house/patient.*config.json', status=429, times=2, headers={'Retry-After': '0'})
    code, out, err = python(LOAD, 'house/patient', cwd=tmp_path, env=environment(hub, tmp_path/'home'))
    assert (code, float(out), err) == (0, total(model), '')
    assert [
        r['status'] for r in hub.log
        if 'HEAD /house/patient' in r['request'] and 'config.json' in r['request']
    ] == [429, 429, 200]


def test_offline(hub, tmp_path):
    "Full cache: it works without a request. Empty cache: one line at once."
    model = small_model(tmp_path/'model')
    hub.add('house/offline', tmp_path/'model')
    assert python(LOAD, 'house/offline', cwd=tmp_path, env=environment(hub, tmp_path/'home'))[0] == 0
    asked = len(hub.log)
    code, out, err = python(LOAD, 'house/offline', cwd=tmp_path,
                            env=environment(hub, tmp_path/'home', HF_HUB_OFFLINE='1'))
    assert (code, float(out), err) == (0, total(model), '')
    code = 'import sys; from rookworld_nb.apps.cli import train_command; sys.exit(train_command())'
    code, out, err = python(code, '--model', 'house/offline', cwd=tmp_path, env=environment(hub, tmp_path/'empty', HF_HUB_OFFLINE='1'))
    assert (code, err) == (
        2,
        "rookworld_train: cannot get config.json of 'house/offline' from the Hugging Face hub: "
        "HF_HUB_OFFLINE is set and "
        'the file is not in the cache; unset it to download; or name the directory of a local copy instead\n'
    )
    assert len(hub.log) == asked


def test_a_mistyped_path_is_not_asked_for(hub, tmp_path):
    (tmp_path/'runs/grpo-001').mkdir(parents=True)
    asked = len(hub.log)
    code, out, err = python(LOAD, 'runs/grpo-002', cwd=tmp_path, env=environment(hub, tmp_path/'home'))
    assert err.endswith(
        "no model 'runs/grpo-002': there is a directory runs here, but no grpo-002 in it\n"
    ) and len(hub.log) == asked


# ---- the whole way

ROWS = 200

def published_rows(path):
    "A dataset repository as it is published: one column of text, padded rows."
    rows = load_rows('positions', env_ratio=0.5, limit=ROWS)
    (path/'data').mkdir(parents=True)
    pd.DataFrame({'text': [e.prompt() + e.completion('padded')
                           for e in rows]}).to_parquet(path/'data/train-00000-of-00001.parquet')


def test_two_steps_of_a_downloaded_model_on_downloaded_rows(hub, tmp_path):
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            **{} if FULL else dict(n_layer=2, n_head=2, n_embd=64, n_positions=320))).to(
                torch.bfloat16)
    theirs.save_pretrained(tmp_path/'model', max_shard_size='100MB' if FULL else '1MB')
    size = sum(p.numel() for p in theirs.parameters())
    del theirs
    published_rows(tmp_path/'rows')
    hub.add('org/gpt2-124m', tmp_path/'model')
    hub.add('org/rows', tmp_path/'rows', 'dataset')
    args = '''--model org/gpt2-124m --data org/rows --max_steps 2 --prompts_per_step 1 --group_size 2 --eval_prompts 2 --max_new_tokens 8
              --max_refills 0 --temperature 1 --keep_last 1 --threads 1 --output_dir run'''.split()
    code = 'import sys; from rookworld_nb.apps.cli import train_command; sys.exit(train_command())'
    code, out, err = python(code, *args, cwd=tmp_path, env=environment(hub, tmp_path/'home'),
                            timeout=600)
    assert code == 0, err
    assert len(re.findall(r'^Step +\d+ \| Loss', out, re.M)) == 2
    assert len(list((tmp_path/'model').glob('model-*.safetensors'))) >= 2
    for shard in (tmp_path/'model').glob('model-*.safetensors'):
        assert hub.sent(hub.etag(shard)) == shard.stat().st_size
    assert (tmp_path/'run/checkpoints/step-2/model.safetensors').stat().st_size > 4*size and (
        size > 124_000_000) == FULL
    shutil.rmtree(tmp_path)     # 2 GB at full size


@pytest.mark.parametrize('name, text, said', [
    ('config.json', '['*100_000, 'config.json is not readable JSON: nested too deeply'),
    ('rookworld_tokenizer.json', '{"tokens": [["a"]]}', r"rookworld_tokenizer.json: a token must be text, not \['a'\]"),
    ('rookworld_tokenizer.json', '{"tokens": ["a", {}]}', 'rookworld_tokenizer.json: a token must be text, not {}')
])
def test_a_file_of_a_model_that_says_nonsense_is_named(name, text, said, tmp_path):
    tokenizer = load_tokenizer('chess')
    save_model(GPT(GPTConfig(tokenizer.vocab_size, 64, 1, 1, 8)), tokenizer, tmp_path)
    (tmp_path/name).write_text(text)
    with pytest.raises(ValueError, match=said): load_model(tmp_path)
