"""Sudden collapses, with the health checks as they are: each run recovers, or stops with its
post-mortem and exit code 1 (nbs/run/06_recovery.ipynb), and what it calls stable is alive. The last
update is judged by the last evaluation (nbs/run/05_held_out.ipynb)."""
import contextlib
import json
from unittest.mock import patch
import pytest
import torch
from safetensors.torch import load_file
from rookworld_nb.lm.loader import load_model, save_model
from rookworld_nb.lm.model import PRESETS, GPT
from rookworld_nb.run import train
from rookworld_nb.run.checkpoint import stable_checkpoint
from runs import in_child, some_positions

CHOICES = '''--model nano --max_steps 12 --save_every 2 --stable_after 4 --prompts_per_step 2 --group_size 4 --env_ratio 0.5 --eval_prompts 2 --warmup_steps 1
    --check_every 0 --max_new_tokens 48 --max_refills 0 --threads 1'''.split()


@pytest.fixture(scope='module')
def args(tmp_path_factory):
    return [*CHOICES, '--data', some_positions(tmp_path_factory.mktemp('data')), '--output_dir']


def rows(out, name='metrics'):
    return [
        json.loads(line, parse_constant=pytest.fail)
        for line in (out/f'{name}.jsonl').read_text().splitlines()
    ]


def check_end(out, code, err, own=False):
    """Well at the end and exit code 0, or a post-mortem and exit code 1; and the stable checkpoint
    was well."""
    assert code in (0, 1) and (code == 1) == (out/'post_mortem.html').exists() == (not (out/'comparison.json').exists()), err.read_text()
    if code == 0:
        assert (own or rows(out)[-1]['format_share']
                > 0.5) and rows(out)[-1]['trained_tokens'] > 0 and rows(out)[-1]['health'] < 2
    else: assert 'post-mortem' in err.read_text().splitlines()[-1]
    if stable := stable_checkpoint(out):
        assert all(p.isfinite().all() for p in load_file(stable/'model.safetensors').values())
        for row in rows(out):
            # sampled from these weights
            if row['step'] == int(stable.name[5:]) + 1:
                assert row['trained_tokens'] and (own or row['format_share'] > 0.5), (stable, row)
    return code


def collapse(args, out, more='', prepared=None):
    code = in_child([*args, out, *more.split()], prepared, out.parent/'err', measured=False)
    return check_end(out, code, out.parent/'err', 'reward_function' in more)


@contextlib.contextmanager
def spoiled(how, first, again=True):
    """From a step on (or in this step only, before any recovery) the weights are spoiled after the
    update."""
    one_step = train.train_step
    def stepping(learner, source, step):
        found = one_step(learner, source, step)
        if step >= first if again else step == first and not learner.recoveries:
            with torch.no_grad(): how(learner.model, learner.tokenizer)
        return found
    with patch.object(train, 'train_step', stepping): yield


def nan(model, tokenizer): model.wte.weight[5, 5] = torch.nan


def only_the_end(model, tokenizer):
    model.ln_f.bias += (30*model.wte.weight[tokenizer.eot]/model.wte.weight[tokenizer.eot].norm())


def never_the_end(model, tokenizer):
    model.ln_f.bias -= (300*model.wte.weight[tokenizer.eot]/model.wte.weight[tokenizer.eot].norm())


@pytest.mark.parametrize('more', [
    '--learning_rate 0.02', '--learning_rate 0.5',
    '--learning_rate 0.02 --kl_coef 0 --kl_every 0 --max_recoveries 1'
])
def test_a_learning_rate_that_destroys(args, tmp_path, more):
    code = collapse(args, tmp_path/'run', more)
    assert code == 1 or rows(tmp_path/'run')[-1]['recoveries']


@pytest.mark.parametrize('how, words', [(nan, 'not finite'), (only_the_end, 'can be read'), (never_the_end, 'cut off')])
@pytest.mark.parametrize('again', [True, False], ids=['again and again', 'once'])
def test_spoiled_weights(args, tmp_path, how, words, again):
    "Nothing measures the KL, so that the format and the tokens have to tell."
    code = collapse(args, tmp_path/'run',
                    '--kl_coef 0 --kl_every 0 --learning_rate 1e-6 --max_recoveries 1',
                    spoiled(how, 3, again))
    assert code == int(again) and words in (tmp_path/'run/train.log').read_text()
    if not again:
        assert {r['recoveries']
                for r in rows(tmp_path/'run')} == {0, 1} or rows(
                    tmp_path/'run')[0]['recoveries'] == 1
    assert all(
        line.startswith('Step') for line in (tmp_path/'run/train.log').read_text().splitlines()
        if any(w in line for w in ('warning', 'not well', 'recovery')))


def test_a_reward_that_pays_for_length(args, tmp_path, monkeypatch):
    (tmp_path/'rewards.py').write_text('def long(prompt, completion, example): return len(completion)/200\n')
    monkeypatch.chdir(tmp_path)
    collapse(
        args, tmp_path/'run',
        '--learning_rate 3e-3 --kl_coef 0 --kl_every 0 --max_steps 40 --reward_function rewards:long'
    )
    assert 'no token to learn from' in (tmp_path/'run/train.log').read_text()


def test_a_model_that_never_knew_the_format(args, tmp_path):
    """The first step says so, and what to do; a model of which every answer is cut off has nothing
    to learn from."""
    _, tokenizer = load_model('nano')
    torch.manual_seed(0)
    save_model(GPT(PRESETS['nano']), tokenizer, tmp_path/'raw')
    code = collapse(args, tmp_path/'run', f'--model {tmp_path}/raw')
    log = (tmp_path/'run/train.log').read_text()
    assert 'Step    1 | warning: no answer to P could be read yet' in log and 'rookworld_pretrain' in log and code == 1
    assert 'recovery' not in log and len(rows(tmp_path/'run')) == 3


def test_the_last_update_is_judged(args, tmp_path):
    "No step comes after it; the evaluation sees what it did."
    arguments = [
        *args, tmp_path/'run', *'--max_steps 3 --eval_prompts 6 --max_recoveries 1'.split()
    ]
    assert in_child(arguments, spoiled(only_the_end, 3), tmp_path/'err') == 1
    assert 'at the end' in (tmp_path/'err').read_text() and (
        tmp_path/'run/post_mortem.json').exists() and not (tmp_path/'run/comparison.json').exists()
    assert in_child(['--resume', tmp_path/'run', '--max_recoveries', 3, '--allow_config_change'
                     ]) == 0 and (tmp_path/'run/comparison.json').exists()
