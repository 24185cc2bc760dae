"The code of the claim: what a step with the worth of every move does, and the arms, a few seconds of each."
import copy
import importlib.util
import random
from dataclasses import replace
from functools import cache
from pathlib import Path
import pytest
import torch
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.chess.quick_rules import legal_moves
from rookworld_nb.config import TrainConfig
from rookworld_nb.grpo.experience import PromptSource, StepFacts, collect
from rookworld_nb.grpo.step import Learner, _gradient, make_targets, train_step
from rookworld_nb.lm.loader import load_model
from rookworld_nb.run.targets import TokenRows, completion_loss

CONFIG = TrainConfig(reward_source='rules', prompts_per_step=4, group_size=4, env_ratio=0.25, max_new_tokens=24, env_max_new_tokens=48, kl_every=0, max_refills=0, learning_rate=1e-3, warmup_steps=0, temperature=1.0)


@pytest.fixture(scope='module')
def nano(): return load_model('nano')


@pytest.fixture(scope='module')
def rows(): return load_rows('positions', 0.25, 0, 'train', 60)


def gradient(nano, rows, config):
    "Of one batch that is the same for all; and its targets."
    learner = Learner(copy.deepcopy(nano[0]), nano[1], config)
    batch, _ = collect(*nano, PromptSource(rows).take('P', 3) + PromptSource(rows).take('A', 1), replace(config, exact_best='off'), seed=3, scorer=learner.scorer)
    targets = make_targets(learner, batch, StepFacts(1))
    _gradient(learner, batch.rollouts, targets)
    return torch.cat([p.grad.flatten() for p in learner.parameters()]), targets


def test_micro_batches_and_copies_add_up(nano, rows):
    "The expectation is found at the right place of the right row, however the batch is cut."
    config = replace(CONFIG, exact_best='first')
    whole, targets = gradient(nano, rows, config)
    cut, *_ = gradient(nano, rows, replace(config, micro_batch_size=4))
    assert (cut - whole).norm() < 1e-5*whole.norm()
    assert (targets.exact.place.view(4, 4) == torch.tensor([1, 1, 1, -1])[:, None]).all()      # the last prompt is A
    assert not torch.allclose(whole, gradient(nano, rows, replace(CONFIG, advantage_scale='batch'))[0])


@pytest.mark.parametrize('vocabulary', ['full', 'task'])
def test_the_exact_term_is_the_gradient_of_the_expected_worth(nano, rows, vocabulary):
    "With no rest and no sampled advantage, one step makes legal first moves more likely."
    learner = Learner(copy.deepcopy(nano[0]), nano[1], replace(CONFIG, exact_best='first', env_ratio=0.0, vocabulary=vocabulary, grad_clip=0.05, prompts_per_step=6))
    examples = PromptSource(rows).take('P', 6)
    batch, _ = collect(learner.model, nano[1], examples, learner.config, seed=0, scorer=learner.scorer)
    targets = make_targets(learner, batch, StepFacts(1))
    targets.exact.rest.zero_()
    targets = replace(targets, advantages=torch.zeros_like(targets.advantages))

    def legal():
        "The probability of a legal first candidate."
        with torch.no_grad():
            found = []
            for e in examples:
                p = learner.model(torch.tensor([nano[1].encode(e.prompt() + ' M: e2e4 E: 0.0 B: e2e4')[:40]]))[0, 38].softmax(-1)
                found.append(sum(p[nano[1].encode(m)[0]].item() for m in legal_moves(e.fen)))
            return sum(found)/len(found)
    before = legal()
    _gradient(learner, batch.rollouts, targets)
    for p in learner.parameters(): p.data -= 0.02*p.grad/torch.cat([q.grad.flatten() for q in learner.parameters()]).norm()
    assert legal() > before


def test_refusals(nano):
    for wrong, words in (dict(baseline='ema'), 'group_mean or leave_one_out'), (dict(inner_steps=2), 'no clip'), (dict(minibatches=2), 'no clip'), (dict(normalize_rewards=True), 'false with exact_best'), (dict(advantage_scale='group'), 'std 0'):
        with pytest.raises(ValueError, match=words): TrainConfig(exact_best='first', **wrong)
    TrainConfig(exact_best='best', advantage_scale='group', min_std=0.1)


@pytest.mark.parametrize('where', ['first', 'best'])
def test_a_step_of_each(nano, rows, where):
    learner = Learner(copy.deepcopy(nano[0]), nano[1], replace(CONFIG, exact_best=where, loss_type='dapo', kl_coef=0.02))
    row, _ = train_step(learner, PromptSource(rows), 1)
    assert row['skipped'] == 0 and row['sampling_gap_nats'] < 1e-3 and row['kl_nats_per_token'] == 0 and row['part_p_coherent'] > 0


def arms():
    spec = importlib.util.spec_from_file_location('claim_arms', Path(__file__).parents[1]/'nbs/experiments/claim_arms.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_arms_go_on_where_they_stopped(tmp_path, monkeypatch):
    "S1 and S4 for two steps, all at once or one at a time: the same weights."
    claim = arms()
    plan = dict(base=claim.BASE | dict(batch_size=4, replay_rows=8), arms=dict(S1=dict(kind='labels', charged=True), S4=dict(kind='rejection')))
    monkeypatch.setattr(claim, 'load_rows', cache(lambda *how: load_rows(*how, limit=400)))
    for arm in plan['arms']:
        through = claim.Run(arm, plan, 1e-4, 0, tmp_path/'through')
        for _ in range(2): through.advance()
        first = claim.Run(arm, plan, 1e-4, 0, tmp_path/'parts')
        first.advance()
        first.save()
        second = claim.Run(arm, plan, 1e-4, 0, tmp_path/'parts')
        second.restore()
        second.advance()
        assert all(torch.equal(a, b) for a, b in zip(through.model.parameters(), second.model.parameters())), arm
        assert second.step == 2 and second.spent > first.spent > 0
        assert any(not torch.equal(a, b) for a, b in zip(through.model.parameters(), through.start.parameters())), arm
    assert len(second.seen) == 0


def test_the_label_time_is_charged_once(tmp_path, monkeypatch):
    claim = arms()
    monkeypatch.setattr(claim, 'load_rows', cache(lambda *how: load_rows(*how, limit=400)))
    spent = {}
    for charged in (False, True):
        plan = dict(base=claim.BASE | dict(batch_size=4, replay=0.0, label_cost=1000.0), arms=dict(S=dict(kind='labels', charged=charged)))
        run = claim.Run('S', plan, 1e-4, 0, tmp_path/str(charged))
        run.advance()
        spent[charged] = run.spent
    assert 4000 < spent[True] < 4900 and spent[False] < 900


def test_uniform_rows_are_uniform_over_what_is_left(nano):
    fen = 'r2q1rk1/ppp2ppp/2npbn2/2b1p1B1/2B1P3/2NP1N2/PPP2PPP/R2Q1RK1 w - - 4 8'
    row = arms().uniform_row(fen, nano[1], random.Random(0))
    legal = legal_moves(fen)
    for j in range(5):
        assert len(row.soft[1 + j]) == len(legal) - j and abs(sum(p for _, p in row.soft[1 + j]) - 1) < 1e-9
    assert row.weights[7:17] == [0.0]*10 and row.completion[18] == row.completion[1]
    assert torch.isfinite(completion_loss(nano[0], TokenRows([row]).batch(torch.tensor([0]))))
    assert arms().uniform_row('7k/8/8/8/8/8/r7/7K w - - 0 1', nano[1], random.Random(0)) is None
