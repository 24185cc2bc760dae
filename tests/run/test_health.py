"""Faults put into a running command, each in a process of its own: it survives, or stops with its
post-mortem, and nothing is lost (nbs/run/06_recovery.ipynb). The table of all of them is in
nbs/run/07_train.ipynb."""
import contextlib
import json
import math
import os
import signal
from dataclasses import replace
from functools import partial
from unittest.mock import patch
import pytest
import torch
from safetensors.torch import load_file
from rookworld_nb.run import checkpoint, train
from rookworld_nb.grpo import experience, step as learning
from rookworld_nb.fast.generate import completion_logits, sampling_logits
from rookworld_nb.grpo.grpo import token_logprobs
from rookworld_nb.run.checkpoint import newest_unfinished
import runs
from runs import contents, die, some_positions

CHOICES = '''--model nano --max_steps 8 --save_every 1 --stable_after 2 --keep_last 3 --prompts_per_step 2 --group_size 4 --env_ratio 0.5 --eval_prompts 2 --warmup_steps 2
    --max_new_tokens 100 --max_refills 0 --learning_rate 5e-5 --kl_coef 0.6 --threads 1'''.split()


@pytest.fixture(autouse=True, scope='module')
def short_windows():
    with patch.object(train, 'HealthMonitor', partial(train.HealthMonitor, window=3)): yield


@pytest.fixture(scope='module')
def args(tmp_path_factory):
    return [*CHOICES, '--data', some_positions(tmp_path_factory.mktemp('data')), '--output_dir']


def rows(out, name='metrics'):
    "Strict JSON: no nan, no infinity."
    return [
        json.loads(line, parse_constant=pytest.fail)
        for line in (out/f'{name}.jsonl').read_text().splitlines()
    ]


def in_child(*how): return runs.in_child(*how, measured=False)
def weights(out, step): return (out/f'checkpoints/step-{step}/model.safetensors').read_bytes()


@contextlib.contextmanager
def broken(module, name, how, steps, lives=range(99)):
    """In these steps, of the lives of the run (0 before the first recovery), `how` changes what a
    function returns."""
    work, one_step, now = getattr(module, name), train.train_step, {}
    def stepping(learner, source, step):
        now['on'] = step in steps and learner.recoveries in lives
        return one_step(learner, source, step)
    def faulty(*args, **kw):
        found = work(*args, **kw)
        return how(found, *args) if now.get('on') else found
    with patch.object(module, name, faulty), patch.object(train, 'train_step', stepping): yield


def nan_loss(found, *_): return found[0] * math.nan, found[1]


def inf_gradient(found, learner, *_):
    next(learner.model.parameters()).grad.view(-1)[0] = math.inf
    return found


def nan_weight(found, learner, *_):
    with torch.no_grad(): next(learner.model.parameters()).view(-1)[0] = math.nan
    return found


def worse(found, *_):
    found[0].rewards -= 0.5
    return found


def far(found, *_): return found | dict(kl_nats_per_sequence=99.)


# ---- a step is skipped ----


@pytest.mark.parametrize('name, how, words', [('policy_loss', nan_loss, 'loss nan'),
                                              ('_gradient', inf_gradient, 'gradient norm inf')])
def test_a_step_that_is_not_finite_is_skipped(args, tmp_path, name, how, words):
    out = tmp_path/'run'
    assert in_child([*args, out, '--keep_last', 9], broken(learning, name, how, [4])) == 0
    found = rows(out)
    assert [r['skipped']
            for r in found] == [0, 0, 0, 1, 0, 0, 0, 0] and [r['health'] for r in found
                                                             ] == [0, 0, 0, 1, 0, 0, 0, 0]
    assert words in found[3]['skip_reason'] and found[3]['loss'] is None and 'skip_reason' not in found[4]
    assert weights(out, 3) == weights(out, 4) != weights(out, 5)
    assert 'Step    4 | warning: step skipped, 1 in a row' in (
        out/'train.log').read_text() and not (out/'metrics-discarded.jsonl').exists()


# ---- the run goes back ----

@pytest.mark.parametrize('module, name, how, steps, more, last', [
    # three skipped steps in a row
    (learning, 'policy_loss', nan_loss, [5, 6, 7], '', 7),
    # nothing but going back can help
    (learning, 'update', nan_weight, [6], '', 6),
    (learning, 'update', far, [6], '--kl_coef 0.05', 6),
    # the mean of three steps is below 0.3 in the second
    (experience, 'collect', worse, [5, 6, 7], '--env_ratio 0', 6)])
def test_a_broken_run_goes_back(args, tmp_path, module, name, how, steps, more, last):
    out = tmp_path/'run'
    assert in_child([*args, out, *more.split()], broken(module, name, how, steps, [0])) == 0
    found, lost = rows(out), rows(out, 'metrics-discarded')
    assert [r['step'] for r in found] == list(range(1, 9)) and (out/'comparison.json').exists()
    at = lost[0]['step']
    assert [r['step'] for r in lost] == list(range(
        at, last + 1)) and {r['recovery']
                            for r in lost} == {1} and lost[-1]['health'] == 2
    assert 1 < at <= steps[0]
    assert [r['recoveries'] for r in found] == [0]*(at - 1) + [1]*(9 - at)
    again = found[at - 1]
    assert again['learning_rate'] == lost[0]['learning_rate'] / 2 and again['prompts_p'] == lost[0]['prompts_p']
    assert [r['completion'] for r in rows(out, 'completions') if r['step'] == at
            ] != [r['completion'] for r in rows(out, 'completions-discarded') if r['step'] == at]
    for file in (out/'checkpoints/step-8').glob('*.safetensors'):
        assert all(x.isfinite().all() for x in load_file(file).values())


def test_a_damaged_stable_checkpoint(args, tmp_path):
    "The run goes back to its beginning."
    out = tmp_path/'run'
    def cut_and_far(*args):
        for file in (out/'checkpoints').glob('step-*/optimizer.safetensors'): os.truncate(file, 1000)
        return far(*args)
    assert in_child([*args, out, '--kl_coef', 0.05], broken(learning, 'update', cut_and_far, [6], [0])) == 0
    assert {r['recoveries']
            for r in rows(out)} == {1} and [r['step'] for r in rows(out, 'metrics-discarded')
                                            ] == [1, 2, 3, 4, 5, 6]
    assert 'recovery 1 of 3: back to the beginning' in (out/'train.log').read_text()


def died_at(name, n, module=train):
    "The process dies after the n-th call of a function since the run went back."
    work, calls, back = getattr(module, name), [], train.go_back
    def counted(*args, **kw):
        found = work(*args, **kw)
        calls.append(name)
        if len(calls) == n and begun: die()
        return found
    begun = []
    def going_back(*args):
        begun.append(1)
        calls.clear()
        return back(*args)
    return patch.object(module, name, counted), patch.object(train, 'go_back', going_back)


def fault_of_three_steps(): return broken(learning, 'policy_loss', nan_loss, [5, 6, 7], [0])


@pytest.fixture(scope='module')
def went_back(args, tmp_path_factory):
    "What a run leaves that went back and was not killed."
    out = tmp_path_factory.mktemp('back')/'whole'
    assert in_child([*args, out], fault_of_three_steps()) == 0
    return contents(out)


@pytest.mark.parametrize('name, module',
                         [('_discard', checkpoint), *(pytest.param(*where, marks=pytest.mark.slow)
                                                      for where in (('_write_files', checkpoint),
                                                                    ('note_step', train)))])
def test_killed_while_it_goes_back(args, went_back, tmp_path, name, module):
    "Whatever is done by then, the resumed run ends as the one that was not killed."
    out = tmp_path/'run'
    with contextlib.ExitStack() as prepared:
        for p in (fault_of_three_steps(), *died_at(name, 1, module)): prepared.enter_context(p)
        assert in_child([*args, out]) == -signal.SIGKILL
    assert in_child(['--resume', out], fault_of_three_steps()) == 0
    assert contents(out) == went_back


# ---- the run stops ----

def test_it_stops_with_a_post_mortem(args, tmp_path):
    out = tmp_path/'runs/run'
    assert runs.in_child([*args, out, '--max_recoveries', 2], broken(learning, 'update', nan_weight, range(5, 9)), tmp_path/'err') == 1
    lines = (tmp_path/'err').read_text().splitlines()
    assert len(lines) == 1 and 'step 5: weight_norm not finite, after 2 recoveries' in lines[
        0] and f'post-mortem: {out}/post_mortem.html' in lines[0]
    told, page = json.loads((out/'post_mortem.json').read_text()), (out/'post_mortem.html').read_text()
    assert told['step'] == 5 and [s['name'] for s in told['signals'] if s['level'] == 'act'] == ['finite']
    assert page.count('class="card"') == 10 and 'weight_norm not finite' in page and '<script' not in page
    assert {r['recovery']
            for r in rows(out, 'metrics-discarded')} == {1, 2} and [r['step'] for r in rows(out)
                                                                    ] == [1, 2, 3, 4, 5]
    good, found = checkpoint.latest_good_checkpoint(out)
    assert good and not found and all(x.isfinite().all()
                                      for x in load_file(good/'model.safetensors').values())
    with pytest.raises(FileNotFoundError, match='none of the 1 runs'): newest_unfinished(tmp_path/'runs')
    # the fault is gone
    assert runs.in_child([
        '--resume', out
    ]) == 0 and not (out/'post_mortem.html').exists() and (out/'comparison.json').exists()


# ---- memory ----

@contextlib.contextmanager
def room_for(completions, name='backward_pass'):
    work = getattr(learning, name)
    def narrow(learns, part, *rest):
        if len(part.completion_mask) > completions:
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory"
            )
        return work(learns, part, *rest)
    with patch.object(learning, name, narrow): yield


def test_out_of_memory(args, tmp_path):
    """The run ends as one that had small micro-batches from the beginning, bit for bit; and its
    gradient is that of large ones."""
    sizes = dict(whole=64, small=4, narrow=64)
    for name, size in sizes.items():
        assert in_child([
            *args, tmp_path/name, '--max_steps', 3, '--max_refills', 2, '--temperature', 1.3,
            '--micro_batch_size', size
        ],
                        room_for(4) if name == 'narrow' else None) == 0
    found = {name: contents(tmp_path/name) for name in sizes}
    assert found['narrow'] == found['small']
    large, small = (next(r for r in found[name]['metrics.jsonl'] if r['grad_norm']) for name in ('whole', 'narrow'))
    assert large['step'] == small['step'] and abs(large['grad_norm'] - small['grad_norm']) < 1e-5*large['grad_norm']
    assert json.loads((tmp_path/'narrow/checkpoints/step-3/state.json'
                       ).read_text())['state']['learner']['micro_batch_size'] == 4
    assert in_child([*args, tmp_path/'none', '--max_refills', 2], room_for(3), tmp_path/'err') == 1
    assert 'memory is too small for one group of 4 completions' in (
        tmp_path/'err').read_text().splitlines()[-1]


def test_out_of_memory_before_the_gradient(args, tmp_path):
    "A value head looks at the completions first; it is the first to meet the limit."
    for name, size in dict(small=4, narrow=64).items():
        room = room_for(4, 'Head') if name == 'narrow' else None
        assert in_child([
            *args, tmp_path/name, '--baseline', 'value', '--max_steps', 2, '--max_refills', 2,
            '--micro_batch_size', size
        ], room) == 0
    assert contents(tmp_path/'narrow') == contents(tmp_path/'small')


# ---- odd rewards and completions ----

def equal(found, *_):
    found[0].rewards.fill_(0.25)
    return found


def cut_to(length):
    "The completions of the first prompt have so many tokens; None: only the end token."
    def how(r, model, tokenizer, *_):
        mask, ids, group = r.completion_mask.clone(), r.completion_ids.clone(), slice(
            0, r.group_size)
        mask[group] = False
        mask[group, :1 if length is None else length] = True
        if length is None: ids[group, 0] = tokenizer.eot
        r = replace(r, completion_mask=mask, completion_ids=torch.where(mask, ids, tokenizer.eot),
                    truncated=r.truncated & mask[:, -1])
        with torch.no_grad():
            logprobs = (
                token_logprobs(sampling_logits(completion_logits(model, r), r), r.completion_ids)*
                mask)
        texts = [
            tokenizer.decode(i[m].tolist()) if length else ''
            for i, m in zip(r.completion_ids, mask)
        ]
        return replace(
            r, logprobs=logprobs, completions=[
                t if g < r.group_size else c for g, (t, c) in enumerate(zip(texts, r.completions))
            ])
    return how


def never_ends(r, model, tokenizer, *_): return replace(r, truncated=torch.ones_like(r.truncated))


@pytest.mark.parametrize('more', ['', '--no_dynamic_sampling --baseline ema --loss_type dapo'])
@pytest.mark.parametrize(
    'module, name, how', [(experience, 'collect', equal), (experience, 'generate', cut_to(0)),
                          (experience, 'generate', cut_to(1)),
                          (experience, 'generate', cut_to(None)),
                          (experience, 'generate', never_ends)],
    ids=['equal rewards', 'empty group', 'one token', 'only the end token', 'maximal length'])
def test_odd_completions(args, tmp_path, module, name, how, more):
    out = tmp_path/'run'
    assert in_child([*args, out, '--max_steps', 3, '--kl_coef', 0, *more.split()],
                    broken(module, name, how, [2]),
                    tmp_path/'err') == 0, (tmp_path/'err').read_text()
    found = rows(out)
    assert [r['step'] for r in found] == [1, 2, 3] and not any(r['skipped'] or r['recoveries'] for r in found)
    if more and name == 'generate' and how is not never_ends:
        assert len(next(r['completion'] for r in rows(out, 'completions') if r['step'] == 2)) <= 4
    if how is equal:
        assert found[1]['zero_signal_share'] == 1 and (found[1]['grad_norm'] == 0) == (not more)
