"The code of the claim: what a step with the worth of every move does, and the arms, a few seconds of each."
import copy
import importlib.util
import os
import re
import shlex
import sys
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
import numpy as np
import pandas as pd
import pytest
import torch
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.chess.positions import position_key, split_of
from rookworld_nb.chess.quick_rules import legal_moves
from rookworld_nb.chess.synthetic import rare_moves
from rookworld_nb.config import TrainConfig
from rookworld_nb.grpo.experience import PromptSource, StepFacts, collect
from rookworld_nb.grpo.step import Learner, _gradient, make_targets, train_step
from rookworld_nb.lm.loader import load_model
from rookworld_nb.reward.coherence import score_by_rules
from rookworld_nb.reward.scoring import Scorer
from rookworld_nb.run.checkpoint import only_writer
from rookworld_nb.run.targets import TokenRows, completion_loss
from rookworld_nb.sweep.space import fill_program, grid, read_space
from runs import call, some_positions

EXPERIMENTS = Path(__file__).parents[1]/'nbs/experiments/2026-11-26-candidates'
sys.path.append(str(EXPERIMENTS))
import claim_plan

CONFIG = TrainConfig(data='positions', reward_source='rules', kl_coef=0.6, prompts_per_step=4, group_size=4, env_ratio=0.25, max_new_tokens=24, env_max_new_tokens=48, kl_every=0, max_refills=0, learning_rate=1e-3, warmup_steps=0, temperature=1.5)


@pytest.fixture(scope='module')
def nano(): return load_model('nano')


@pytest.fixture(scope='module')
def rows(): return load_rows('positions', 0.25, 0, 'train', 60)


def gradient(nano, rows, config):
    "Of one batch that is the same for all; and its targets."
    learner = Learner(copy.deepcopy(nano[0]), nano[1], config)
    batch, _ = collect(*nano, PromptSource(rows).take('P', 3) + PromptSource(rows).take('A', 1), replace(config, exact_best='off'), seed=6, scorer=learner.scorer)
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


def by_hand(nano, batch, config):
    "The gradient that the formula of exact_best gives for dr_grpo without a scale, completion by completion, in float64."
    model, tokenizer = copy.deepcopy(nano[0]).double(), nano[1]
    r, G = batch.rollouts, config.group_size
    moves = {w: i for i in range(tokenizer.vocab_size) if re.fullmatch('[a-h][1-8][a-h][1-8][qrbn]?', w := tokenizer.decode([i]))}
    ids = [r.completion_ids[i][r.completion_mask[i]].tolist() for i in range(len(r.completion_ids))]
    mark_m, end, mark_b = (tokenizer.encode(' M: e2e4 E: 0.0 B: e2e4')[k] for k in (0, 2, -2))
    exact, R, total = [], batch.rewards.flatten().double(), lambda e, text: score_by_rules(e.prompt(), text).total
    for i in range(len(ids)):
        e, known = batch.examples[i//G], {}     # of this completion: column -> what every token is worth there
        left, mark = {*legal_moves(e.fen)}, mark_b if config.exact_best == 'best' else mark_m
        at = ids[i].index(mark) + 1 if e.kind == 'P' and mark in ids[i] else None
        while at and at < len(ids[i]):
            w = torch.zeros(tokenizer.vocab_size).double()
            if config.exact_best == 'candidates':
                w[[moves[m] for m in left] or [end]] = 1.
                left -= {tokenizer.decode([ids[i][at]])}
            else:
                head = '' if config.exact_best == 'first' else tokenizer.decode(ids[i][:at])
                said = lambda m: f'M: {m} E: 0.0 B: {m}' if config.exact_best == 'first' else f'{head} {m}'
                w[:] = total(e, head)
                w[[*moves.values()]] = total(e, said(next(m for m in moves if m not in left)))
                for m in left: w[moves[m]] = total(e, said(m))
            known[at] = w
            at = at + 1 if config.exact_best == 'candidates' and len(known) < 5 and ids[i][at] in moves.values() else None
        exact.append(known)
    drawn, loss = torch.tensor([sum(w[ids[i][t]].item() for t, w in known.items()) for i, known in enumerate(exact)]).double(), 0.
    for p in range(len(batch.examples)):
        others = [q for q in range(len(batch.examples)) if q != p and exact[q*G]]
        x, y = (torch.cat([v[q*G:q*G+G] - v[q*G:q*G+G].mean() for q in others]) for v in (drawn, R))
        slope = 1. if config.exact_best == 'best' else ((x @ y)/(x @ x)).clamp(0, 2)
        for i in range(p*G, p*G + G):
            prompt = tokenizer.encode(batch.examples[p].prompt(tokenizer.style))
            logp = (model(torch.tensor([prompt + ids[i]]))[0, len(prompt) - 1:-1].double()/config.temperature).log_softmax(-1)
            for t, drawn_id in enumerate(ids[i]):
                left_over = lambda k: R[k] - slope*sum(w[ids[k][u]].item() for j, (u, w) in enumerate(exact[k].items()) if j < places)
                places = sum(u <= t for u in exact[i])
                loss = loss - logp[t, drawn_id]*(left_over(i) - sum(map(left_over, range(p*G, p*G + G)))/G)
                if t in exact[i]: loss = loss - (G - 1)/G*slope*(logp[t].exp() @ exact[i][t])
    (loss/(len(ids)*config.max_new_tokens)).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize('where', ['first', 'candidates', 'best'])
def test_the_gradient_is_that_of_the_formula(nano, rows, where):
    config = replace(CONFIG, exact_best=where, advantage_scale='none', kl_coef=0.0, env_max_new_tokens=None, max_new_tokens=48, temperature=1.5)
    batch, _ = collect(*nano, PromptSource(rows).take('P', 4) + PromptSource(rows).take('A', 1), config, seed=6)     # a seed with illegal moves among the samples
    assert batch.examples[4].kind == 'A' and batch.rewards[:4].std(1).min() > 0
    learner = Learner(copy.deepcopy(nano[0]), nano[1], config)
    _gradient(learner, batch.rollouts, make_targets(learner, batch, StepFacts(1)))
    found, wanted = torch.cat([p.grad.flatten() for p in learner.parameters()]), by_hand(nano, batch, config)
    assert (found - wanted).norm() < 1e-4*wanted.norm(), ((found - wanted).norm()/wanted.norm()).item()


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


@pytest.mark.parametrize('where', ['first', 'candidates', 'best'])
def test_a_step_of_each(nano, rows, where):
    learner = Learner(copy.deepcopy(nano[0]), nano[1], replace(CONFIG, exact_best=where, loss_type='dapo', kl_coef=0.02))
    row, _ = train_step(learner, PromptSource(rows), 1)
    assert row['skipped'] == 0 and row['sampling_gap_nats'] < 1e-3 and row['kl_nats_per_token'] == 0 and row['part_p_coherent'] > 0


def arms():
    spec = importlib.util.spec_from_file_location('claim_arms', EXPERIMENTS/'claim_arms.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def claim(monkeypatch):
    claim = arms()
    monkeypatch.setattr(claim, 'load_rows', cache(lambda *how: load_rows(*how, limit=400)))
    return claim


def test_on_a_card_the_clock_on_the_wall_counts(tmp_path, claim, monkeypatch):
    "And the models go where they are told to."
    monkeypatch.setattr(claim, 'cpu_seconds', lambda: 5.)
    asked, found = [], claim.load_model
    monkeypatch.setattr(claim, 'load_model', lambda name, device='cpu': asked.append(str(device)) or found(name))
    monkeypatch.setattr(claim, 'pick_device', lambda name: f'the {name}')
    for device, waits in ('cpu', False), ('cuda', True):
        run = claim.Run('S1', dict(base=claim_plan.BASE | dict(batch_size=2, replay=0., device=device), arms=dict(S1=dict(kind='labels'))), 1e-4, 0, tmp_path/device)
        run.advance()
        assert (run.spent > 0) == waits
    assert asked == ['the cpu']*2 + ['the cuda']*2


@pytest.mark.slow
def test_arms_go_on_where_they_stopped(tmp_path, claim):
    "For two steps, all at once or one at a time: the same weights."
    plan = dict(base=claim_plan.BASE | dict(batch_size=4, replay_rows=8), arms=dict(
        S1=dict(kind='labels', charged=True), S4=dict(kind='rejection', prompts_per_step=4, group_size=4), R2=dict(kind='grpo', prompts_per_step=2, group_size=4, exact_best='first', temperature=2.2),
        S6=dict(kind='labels', env_ratio=0.5, rare_share=0.5), S7=dict(kind='rejection', env_ratio=0.5, prompts_per_step=4, group_size=4)))
    start = claim.Run('S1', plan, 1e-4, 0, tmp_path/'through').weights()
    for arm in plan['arms']:
        through = claim.Run(arm, plan, 1e-4, 0, tmp_path/'through')
        for _ in range(2): through.advance()
        first = claim.Run(arm, plan, 1e-4, 0, tmp_path/'parts')
        first.advance()
        first.save()
        second = claim.Run(arm, plan, 1e-4, 0, tmp_path/'parts')
        second.restore()
        second.advance()
        second.save()
        assert through.weights() == second.weights() != start, arm
        assert second.step == 2 and second.spent > first.spent > 0 and (second.out/'steps.jsonl').read_text().count('\n') == 2


def steps_are_seconds(monkeypatch, claim):
    clock = iter(range(10**6))
    monkeypatch.setattr(claim, 'cpu_seconds', lambda: next(clock))
    def measured(*how): return [dict(set='P', metric='legal_best', value=0.5, low=0.4, high=0.6, n=2)], dict(P=pd.DataFrame(dict(legal_best=[0., 1.], asked='these')))
    monkeypatch.setattr(claim, 'measured', measured)


def test_a_run_that_is_killed_leaves_no_half_row(tmp_path, claim, monkeypatch):
    "It goes on at the next call; with the steps of the first CSV a second run has the same weights, whatever the clock says."
    base = dict(batch_size=4, replay=0.0, checkpoint=0.0)
    plan = dict(base=claim_plan.BASE | base, stages=dict(tuning=claim_plan.STAGE | dict(P=2, budgets=[3.0, 5.0])), arms=dict(start=dict(kind='start'), S=dict(kind='labels')))
    steps_are_seconds(monkeypatch, claim)
    def go(out=tmp_path, steps=None): claim.run_seed([('S', 1e-4)], plan, 'tuning', out, 0, steps)
    for killed in (1, 3):
        with monkeypatch.context() as m:
            step, left = claim.Run.labels, iter(range(killed))
            m.setattr(claim.Run, 'labels', lambda self: step(self) if next(left, None) is not None else 1/0)
            with pytest.raises(ZeroDivisionError): go()
        assert claim.collected(tmp_path).steps.tolist() == ([] if killed == 1 else [3])
    with monkeypatch.context() as m:
        m.setattr(claim, 'measured', lambda *how: 1/0)                 # killed while it is measured
        with pytest.raises(ZeroDivisionError): go()
    assert claim.collected(tmp_path).steps.tolist() == [3]
    claim.keep(tmp_path, plan, tmp_path/'kept.csv')                      # half of a stage is not for others, see below
    assert pd.read_csv(tmp_path/'kept.csv').empty
    for _ in range(2): go()
    claim.run_seed([('start', 0.0)], plan, 'tuning', tmp_path, 0)
    table = claim.collected(tmp_path)
    claim.keep(tmp_path, plan, tmp_path/'kept.csv')
    assert (tmp_path/'kept.csv').read_text() == (tmp_path/'arms.csv').read_text()
    assert sorted(table[['arm', 'budget', 'steps', 'spent']].values.tolist()) == [['S', 3, 3, 3], ['S', 5, 5, 5], ['start', 0, 0, 0]]
    assert table.weights.nunique() == 3
    claim.take_over(tmp_path/'third', plan, tmp_path/'arms.csv')         # elsewhere nothing of it is made again
    with monkeypatch.context() as m:
        m.setattr(claim, 'Run', lambda *how: 1/0)
        go(tmp_path/'third')
        claim.run_seed([('start', 0.0)], plan, 'tuning', tmp_path/'third', 0)
    claim.collected(tmp_path/'third')
    assert (tmp_path/'third/arms.csv').read_text() == (tmp_path/'arms.csv').read_text()
    table[table.budget != 5].to_csv(tmp_path/'half.csv', index=False)    # of a stage that another machine did not end nothing is taken: its rest would be of another run
    claim.take_over(tmp_path/'fourth', plan, tmp_path/'half.csv')
    assert claim.collected(tmp_path/'fourth').arm.tolist() == ['start']
    monkeypatch.setattr(claim, 'cpu_seconds', lambda: 0)
    go(tmp_path/'second', claim.read_steps(tmp_path/'arms.csv'))
    assert claim.collected(tmp_path/'second').weights.tolist() == table[table.arm == 'S'].weights.tolist()


def test_a_run_past_its_budget_is_not_measured_there(tmp_path, claim, monkeypatch):
    plan = dict(base=claim_plan.BASE | dict(batch_size=4, replay=0.0), arms=dict(start=dict(kind='start'), S=dict(kind='labels')),
                stages=dict(final=claim_plan.STAGE | dict(budgets=[2.0, 4.0]), longer=claim_plan.STAGE | dict(budgets=[6.0])))
    steps_are_seconds(monkeypatch, claim)
    with pytest.raises(SystemExit, match='longer goes on from final, where S 0.0001 0 has to be measured first'): claim.run_seed([('S', 1e-4)], plan, 'longer', tmp_path, 0)
    claim.run_seed([('S', 1e-4)], plan, 'final', tmp_path, 0)
    claim.run_seed([('S', 1e-4)], plan, 'longer', tmp_path, 0)
    assert claim.collected(tmp_path)[['budget', 'steps']].values.tolist() == [[2, 2], [4, 4], [6, 6]]
    (tmp_path/'S-0.0001-0/at-final-4.csv').unlink()
    with pytest.raises(SystemExit, match='step 6 and 6.0 CPU-seconds, past 4, which was not measured'): claim.run_seed([('S', 1e-4)], plan, 'final', tmp_path, 0)
    with pytest.raises(SystemExit, match='past 4'): claim.run_seed([('S', 1e-4)], plan, 'final', tmp_path, 0, {('S', 1e-4, 0, b): b for b in (2.0, 4.0)})
    (tmp_path/'S-0.0001-0/state.pt').write_bytes(b'half a st')
    with pytest.raises(SystemExit, match='state.pt cannot be read; without it this run begins again'): claim.run_seed([('S', 1e-4)], plan, 'final', tmp_path, 0)


def test_the_arms_of_a_seed_take_turns(tmp_path, claim, monkeypatch):
    "The one that has spent least goes next, and each ends where it would have ended alone."
    plan = dict(base=claim_plan.BASE | dict(batch_size=4, replay_rows=8), stages=dict(tuning=claim_plan.STAGE | dict(budgets=[3.0])), arms=dict(start=dict(kind='start'),
        S1=dict(kind='labels'), S4=dict(kind='rejection', prompts_per_step=4, group_size=4), R2=dict(kind='grpo', prompts_per_step=2, group_size=4, exact_best='first')))
    steps_are_seconds(monkeypatch, claim)
    advance, turns = claim.Run.advance, []
    monkeypatch.setattr(claim.Run, 'advance', lambda self: (turns.append(self.arm), advance(self)))
    claim.run_seed([(a, 1e-4) for a in ('S1', 'S4', 'R2')], plan, 'tuning', tmp_path/'together', 0)
    assert turns == ['S1', 'S4', 'R2']*3
    for a in ('R2', 'S4', 'S1'): claim.run_seed([(a, 1e-4)], plan, 'tuning', tmp_path/'alone', 0)
    together, alone = (claim.collected(tmp_path/name).set_index('arm').weights.to_dict() for name in ('together', 'alone'))
    assert together == alone and len(set(together.values())) == 3


@pytest.mark.slow
def test_where_a_stage_has_steps_the_rate_falls_over_them(tmp_path, claim, monkeypatch):
    "To a tenth, for labels as for rewards, whatever the clock says."
    arms = dict(start=dict(kind='start'), S=dict(kind='labels'), R=dict(kind='grpo', prompts_per_step=2, group_size=4))
    stage = claim_plan.STAGE | dict(budgets=[1.0], steps=dict(S=12, R=14))
    plan = dict(base=claim_plan.BASE | dict(batch_size=4, replay_rows=8), stages=dict(final=stage), arms=arms)
    steps_are_seconds(monkeypatch, claim)
    rates = dict(S=[], R=[])
    advance = claim.Run.advance
    monkeypatch.setattr(claim.Run, 'advance', lambda self: (advance(self), rates[self.arm].append(self.optimizer.param_groups[0]['lr'])))
    claim.run_seed([('S', 1e-4), ('R', 1e-4)], plan, 'final', tmp_path, 0)
    warm = [1e-5*k for k in range(1, 11)]
    assert rates['S'] == pytest.approx([*warm, 5.5e-5, 1e-5])                 # halfway between 1e-4 and 1e-5, then the end
    assert rates['R'] == pytest.approx([*warm, *(1e-5 + 4.5e-5*(1 + np.cos(np.pi*k/4)) for k in (1, 2, 3, 4))])
    assert claim.collected(tmp_path)[['arm', 'steps', 'spent']].values.tolist() == [['R', 14, 14], ['S', 12, 12]]
    for wrong in ('steps = {S = 3}, budgets = [1, 2]', 'steps = {S = 3}, seeds = [1, 2]'):
        (tmp_path/'wrong.toml').write_text(f'[base]\n[stages]\nfinal = {{{wrong}}}\nother = {{seeds = [2]}}\n[arms]\n')
        with pytest.raises(SystemExit, match='the stage final has steps, so it needs one budget, and seeds that no other stage has'): claim.read_plan(tmp_path/'wrong.toml')


def test_rates_and_arms_are_chosen_by_rule(claim):
    "The mean of the two scores decides, unless a guard is lost."
    def rows(stage, arm, rate, legal, move=0.3, **more):
        known = dict(legal_best=legal, coherence=legal, best_move=move, top5_overlap=0.4, regret=0.1) | more
        return [dict(stage=stage, arm=arm, learning_rate=rate, seed=0, budget=0 if arm == 'start' else 7, set='P', metric=m, value=v) for m, v in known.items()]
    base, plan_arms = claim_plan.BASE | dict(learning_rates=[0.1, 0.2]), dict(start={}, S1={}, S2={}, S3={}, R1={}, R2={})
    tuned = [('S1', 0.1, 0.9, 0.3), ('S1', 0.2, 0.9, 0.3), ('S2', 0.1, 0.9, 0.3), ('S2', 0.2, 0.95, 0.28), ('S3', 0.1, 0.91, 0.1), ('S3', 0.2, 0.99, 0.05),
             ('R1', 0.1, 0.5, 0.3), ('R1', 0.2, 0.9, 0.26), ('R2', 0.1, 0.5, 0.3), ('R2', 0.2, 0.6, 0.3)]
    table = pd.DataFrame(rows('tuning', 'start', 0., 0.8) + [r for line in tuned for r in rows('tuning', *line)])
    assert {a: claim_plan.best_rate(table, 'tuning', a, base) for a in list(plan_arms)[1:]} == dict(S1=0.1, S2=0.2, S3=0.1, R1=0.1, R2=0.2)
    assert type(claim_plan.best_rate(table, 'tuning', 'S1', base)) is float      # numpy's own go into a state, and `weights_only` does not let them out
    assert claim_plan.standing(table, 'tuning', 'S2', 0.2, 0.03) == (1, pytest.approx(0.95)) and claim_plan.standing(table, 'tuning', 'S3', 0.1, 0.03) == (0, pytest.approx(-0.2))
    with pytest.raises(SystemExit, match='complete first'): claim_plan.best_rate(table[table.learning_rate != 0.2], 'tuning', 'S1', base)
    worse = pd.DataFrame(rows('tuning', 'S1', 0.2, 0.99, regret=0.14))
    assert claim_plan.best_rate(pd.concat([table[(table.arm != 'S1') | (table.learning_rate != 0.2)], worse]), 'tuning', 'S1', base) == 0.1
    def screen(coherence): return pd.DataFrame(rows('screening', 'start', 0., 0.8) + [r for a, rate, legal in (('S1', .1, .99), ('S2', .2, .9), ('S3', .1, .95), ('R1', .1, .9), ('R2', .2, .91))
                                               for r in rows('screening', a, rate, legal, **dict(coherence=coherence) if a[0] == 'R' else {})])
    screened = screen(0.995)
    plan = dict(base=base, stages=dict(screening=claim_plan.STAGE | dict(budgets=[7])), arms=plan_arms)
    assert claim_plan.chosen(pd.concat([table, screened]), 'screening', plan) == ['S1', 'S3', 'R2']
    for lacking, words in ((table, 'complete first: nothing of start'), (pd.concat([table, screened[screened.arm != 'S2']]), 'nothing of S2 with seed 0')):
        with pytest.raises(SystemExit, match=words): claim_plan.chosen(lacking, 'screening', plan)
    with pytest.raises(SystemExit, match='the stopping rule: after screening no R arm is ahead of every S arm on legal_best or coherence'): claim_plan.chosen(pd.concat([table, screen(0.98)]), 'screening', plan)
    plan['stages']['screening']['seeds'] = [0, 1]
    with pytest.raises(SystemExit, match='nothing of S1 with seed 1'): claim_plan.chosen(pd.concat([table, screened]), 'screening', plan)


def test_the_verdict(claim, tmp_path, monkeypatch):
    "R is 10 points ahead of S1 and equal to S2 on average; a bootstrap that ignored the seeds would be far too narrow."
    monkeypatch.setattr(claim_plan, 'chosen', lambda *how: ['S1', 'S2', 'R1'])
    monkeypatch.setattr(claim_plan, 'best_rate', lambda *how: 0.1)
    paired = claim_plan.paired
    monkeypatch.setattr(claim_plan, 'paired', partial(paired, resamples=500))
    rng, n, seeds = np.random.default_rng(0), 400, [10, 11, 12, 13, 14]
    easy = rng.random(n)
    sets = [('P', ('legal_best', 'coherence', 'best_move', 'top5_overlap', 'regret')), ('chain', ('right',)), ('A-random-games', ('exact',)), ('A-illegal', ('recall_illegal',)), ('A-mates', ('recall_mate',))]
    def write(stage, budget, arm, seed, level, plays):
        folder = claim.run_folder(tmp_path, arm, 0.1 if arm != 'start' else 0.0, seed)
        folder.mkdir(exist_ok=True)
        right = (easy < level).astype(float)
        for where, columns in sets:
            frame = pd.DataFrame({c: right for c in columns}).assign(asked='an exam')
            if 'regret' in columns: frame['regret'] = np.where(np.arange(n) <= n//2, np.nan, 1 - right)
            frame.to_csv(folder/f'judged-{stage}-{budget}-{where}.csv', index=False)
        pd.DataFrame([dict(stage=stage, arm=arm, learning_rate=0.1 if arm != 'start' else 0.0, seed=seed, budget=0 if arm == 'start' else budget, steps=1, weights='w',
                           set='self-play', metric='legal_half_moves', value=plays)]).to_csv(folder/f'at-{stage}-{budget}.csv', index=False)
    for s in seeds:
        for budget, lead in ((7, 0.05), (30, 0.1)):
            for arm, level in dict(S1=0.6, S2=0.7 + 0.03*(-1)**s, R1=0.6 + lead).items(): write('final', budget, arm, s, level, 60 if arm == 'R1' else 50)
    write('final', 7, 'start', 0, 0.5, 30)
    stage = dict(seeds=seeds, budgets=[7, 30], exam='fresh', arms='chosen', games=3)
    plan = dict(base=claim_plan.BASE, arms={}, stages=dict(final=claim_plan.STAGE | stage, longer=claim_plan.STAGE | stage | dict(seeds=[10], budgets=[120])))
    unfinished = claim.run_folder(tmp_path, 'S2', 0.1, 14)/'at-final-30.csv'    # as another worker of a sweep leaves it
    unfinished.rename(unfinished.with_suffix('.away'))
    with pytest.raises(SystemExit, match='the stage final has to be complete first: nothing of S2 with seed 14 at 30'): claim.verdict(plan, 'final', tmp_path)
    unfinished.with_suffix('.away').rename(unfinished)
    whole = claim.verdict(plan, 'final', tmp_path)
    assert len(whole) == 2*(6 + 12 + 9)
    found = whole[whole.budget == 30].set_index(['metric', 'against'])
    one, other = found.loc[('legal_best', 'S1')], found.loc[('legal_best', 'S2')]
    assert abs(one.difference - 0.1) < 0.03 and one.low > 0 and one.t_low > 0 and one.holm and one.seeds_ahead == 5
    assert other.low < 0 < other.high and other.t_low < 0 < other.t_high and not other.holm and 0 < other.seeds_ahead < 5
    better = ((easy >= 0.6) & (easy < 0.7)).sum()
    assert one.mcnemar == ' '.join([f'{2/2**better:.2g}']*5) and found.loc[('right_states', 'S1')].mcnemar == one.mcnemar
    assert found.holm.sum() == 3 and found.loc[('regret', 'start')].difference == pytest.approx(-0.2, abs=0.05)
    def told(): return {(r.what, r.of): r.held for r in claim.conclusion(plan, 'final', tmp_path, whole).itertuples()}
    first = told()
    assert first['three points ahead', 'coherence against S1'] and first['the lead grows', 'coherence against S1'] and not first['three points ahead', 'legal_best against S2']
    assert first['and not less in longer', 'legal_best against S1'] is None and first['self-play, times that of the start', 'R1'] and all(first['no more than a point lost', m] for m in claim_plan.GUARDS)
    assert first['ties or wins everywhere', 'S2'] and not first['ties or wins everywhere', 'S1'] and first['THE CLAIM', 'R1 against S1 and S2'] is False
    claim.keep(tmp_path, plan, tmp_path/'kept.csv')                        # the same verdict elsewhere, from what was kept
    claim.take_over(tmp_path/'elsewhere', plan, tmp_path/'kept.csv')
    pd.testing.assert_frame_equal(claim.verdict(plan, 'final', tmp_path/'elsewhere'), whole)
    with pytest.raises(SystemExit, match='kept.csv has measures that are not in .*nothing.*--known'): claim.keep(tmp_path/'nothing', plan, tmp_path/'kept.csv')
    for s in seeds: write('final', 30, 'S2', s, 0.6, 50)                   # now R is ahead of both
    whole = claim.verdict(plan, 'final', tmp_path)
    assert told()['THE CLAIM', 'R1 against S1 and S2'] is None             # the last budget is missing
    for arm, level in dict(S1=0.6, S2=0.6, R1=0.68).items(): write('longer', 120, arm, 10, level, 50)
    assert told()['THE CLAIM', 'R1 against S1 and S2'] is False
    write('longer', 120, 'R1', 10, 0.75, 50)
    assert told()['THE CLAIM', 'R1 against S1 and S2'] is True
    file = tmp_path/'S1-0.1-12/judged-final-30-P.csv'
    pd.read_csv(file).assign(asked='another exam').to_csv(file, index=False)
    with pytest.raises(SystemExit, match="S1-0.1-12 was asked another exam than the rest in the set 'P': another exam, not an exam"): claim.verdict(plan, 'final', tmp_path)
    for file in tmp_path.glob('*-0.1-12/judged-final-*-P.csv'): pd.read_csv(file).assign(asked='another exam').to_csv(file, index=False)
    with pytest.raises(SystemExit, match="R1-0.1-12 was asked another exam than the rest in the set 'P': another exam, not an exam"): claim.verdict(plan, 'final', tmp_path)
    start, before = tmp_path/'start-0-0/judged-final-7-P.csv', whole.set_index(['budget', 'against', 'metric']).difference
    again = pd.read_csv(start).assign(asked='another exam', regret=lambda f: f.regret + 0.5)      # one seed was judged by other labels: so is the start, for that seed
    again.to_csv(start.with_stem(f'{start.stem}-again'), index=False)
    after = claim.verdict(plan, 'final', tmp_path).set_index(['budget', 'against', 'metric']).difference
    assert after[30, 'start', 'regret'] - before[30, 'start', 'regret'] == pytest.approx(-0.1, abs=0.01)
    pd.testing.assert_series_equal(after.drop('regret', level='metric'), before.drop('regret', level='metric'))
    claim.keep(tmp_path, plan, tmp_path/'kept again.csv')
    assert 'judged-final-7-P-again.csv' in set(pd.read_parquet(tmp_path/'kept again.parquet').file)
    again.assign(coherence=1 - again.coherence).to_csv(start.with_stem(f'{start.stem}-again'), index=False)
    with pytest.raises(SystemExit, match='are not about the same prompts'): claim.verdict(plan, 'final', tmp_path)
    constant = np.tile(np.array([[0.1], [-0.1], [0.2], [0.0], [0.3]]), (1, 5000))
    alone = paired(constant)
    assert alone['t_high'] - alone['t_low'] > alone['high'] - alone['low'] and alone['t_p'] > alone['p']
    assert alone['difference'] == pytest.approx(0.1) and alone['high'] - alone['low'] > 0.15 and paired(constant, family=6)['low'] < alone['low']


def test_what_nobody_was_asked_has_no_p():
    with np.errstate(invalid='ignore'): nothing = claim_plan.paired(np.full((5, 100), np.nan), resamples=500)
    assert nothing.pop('seeds_ahead') == 0 and np.isnan([*nothing.values()]).all()


def test_the_registered_plan_can_be_read(claim, tmp_path, monkeypatch):
    plan = claim.read_plan(EXPERIMENTS/'candidates_test.toml')
    how = plan['stages']['long']
    assert list(claim.runs(plan, 'long', tmp_path)) == [(0, [('start', 0.0)]), *((seed, [(arm, 5e-5) for arm in ('S6', 'S7', 'R9')]) for seed in how['seeds'])]
    assert [s for s, _ in claim.runs(plan, 'long', tmp_path, None, [70])] == [0, 70]
    claim.check_start(plan['base'])
    with pytest.raises(SystemExit, match='another nano: sha256 0000'): claim.check_start(plan['base'] | dict(sha256=64*'0'))
    claim.check_start(plan['base'] | dict(sha256=64*'0', model='elsewhere'))
    for file in EXPERIMENTS.glob('*.toml'):      # every plan can be read, and begins with this nano
        if 'program' in file.read_text(): continue
        some = claim.read_plan(file)
        claim.check_start(some['base'])
        for arm in some['arms'].values():
            if arm['kind'] == 'grpo': TrainConfig(data='positions', **{k: v for k, v in arm.items() if k != 'kind'})
    matched = claim.Run('R', dict(base=claim_plan.BASE, arms=dict(R=dict(kind='grpo', env_ratio=1.0, rare_share=1.0, rare_twins='all'))), 1e-4, 0, tmp_path)
    assert matched.source.take('A', 4) == list(islice(rare_moves('0 rare', twins='all'), 4))
    began = []
    monkeypatch.setattr(claim, 'run_seed', lambda pairs, plan, stage, out, seed, steps=None: began.append((stage, seed, pairs)))
    claim.main([str(EXPERIMENTS/'candidates_test.toml'), str(tmp_path/'out'), 'long', '--arms', 'R9', '--seeds', '70'])      # its steps are known, so an arm may go alone
    assert began == [('long', 0, [('start', 0.0)]), ('long', 70, [('R9', 5e-5)])]
    space = read_space(EXPERIMENTS/'candidates_card.toml')
    began.clear()
    monkeypatch.chdir(EXPERIMENTS)
    for point in grid(space): claim.main(fill_program(space.program, space.base | point, tmp_path)[2:])
    assert sorted((seed, arm) for _, seed, pairs in began for arm, _ in pairs if arm != 'start') == sorted((n, a) for a in how['arms'] for n in how['seeds'])
    (tmp_path/'by_the_clock.toml').write_text(TOY.replace('positions.parquet', 'positions'))
    with pytest.raises(SystemExit, match='--arms needs --steps'): claim.main([str(tmp_path/'by_the_clock.toml'), str(tmp_path/'out'), 'tuning', '--arms', 'R1'])
    (tmp_path/'wrong.toml').write_text('[base]\nlearning_rate = 1\n[stages]\n[arms]\n')
    with pytest.raises(SystemExit, match='unknown line learning_rate'): claim.read_plan(tmp_path/'wrong.toml')


def test_the_kept_measures_give_the_verdict_again(claim, tmp_path, capsys):
    "From what lies beside the page, in a folder that has nothing else."
    claim.main([str(EXPERIMENTS/'candidates_test.toml'), str(tmp_path), 'verdict', 'long', '--known', str(EXPERIMENTS/'candidates_measured.csv')])
    assert 'THE CLAIM' in capsys.readouterr().out
    for name in ('verdict', 'conclusion'): assert (tmp_path/f'{name}-long.csv').read_text() == (EXPERIMENTS/f'candidates_{name}.csv').read_text()


TOY = '''
[base]
data = "positions.parquet"
learning_rates = [1e-4]
batch_size = 4
replay = 0.0
[stages]
tuning    = {seeds = [0], budgets = [0.001], P = 4}
screening = {seeds = [0, 1], budgets = [0.002], rates = "best", P = 4}
[arms]
S1 = {kind = "labels"}
R1 = {kind = "grpo", prompts_per_step = 2, group_size = 2}
'''

@pytest.mark.slow
def test_a_plan_by_the_sweep_is_the_plan_by_hand(tmp_path, monkeypatch):
    "Budgets of a millisecond are one step. The screening refuses to begin before the tuning is complete, and is made by the same command."
    some_positions(tmp_path)
    (tmp_path/'toy.toml').write_text(TOY)
    script = shlex.quote(str(EXPERIMENTS/'claim_arms.py'))
    (tmp_path/'sweep.toml').write_text(f"program = 'python {script} toy.toml {{study}}/out {{stage}}'\n[space]\nstage = ['screening --seeds 1', 'tuning screening --seeds 0']\n")
    for said in 'failed | the stage tuning has to be complete first: S1 has rates []', 'finished':
        code, printed, err = call('sweep', 'sweep.toml', '--sampler', 'grid', cwd=tmp_path, PYTHONPATH=os.environ.get('PYTHONPATH', ''))
        assert code == 0 and f'| screening --seeds 1 | {said}\n' in printed, (printed, err)
    monkeypatch.chdir(tmp_path)
    arms().main(['toy.toml', 'out', 'tuning', 'screening'])
    found, wanted = (pd.read_csv(out/'arms.csv').drop(columns='spent') for out in (tmp_path/'sweeps/sweep/out', tmp_path/'out'))
    pd.testing.assert_frame_equal(found, wanted)
    assert len(wanted.drop_duplicates(['stage', 'arm', 'seed'])) == 1 + 2 + 1 + 4 and wanted[wanted.arm != 'start'].steps.eq(1).all()


def test_what_another_process_makes_is_not_made(tmp_path, claim, monkeypatch):
    "And the command does not end as if it were."
    monkeypatch.chdir(tmp_path)
    (tmp_path/'toy.toml').write_text(TOY.replace('positions.parquet', 'positions'))
    folder = claim.run_folder(tmp_path/'out', 'S1', 1e-4, 0)
    folder.mkdir(parents=True)
    monkeypatch.setattr(claim, 'measured', lambda *how: ([dict(set='P', metric='legal_best', value=0.5, low=0.4, high=0.6, n=2)], {}))
    with only_writer(folder), pytest.raises(SystemExit, match='not all is made: .*another process'): claim.main(['toy.toml', 'out', 'tuning'])
    assert claim.collected(tmp_path/'out').arm.tolist() == ['start']


def test_what_is_asked_is_held_out():
    "Fresh prompts are in the eval split and not among the shipped ones."
    claim = arms()
    known = {position_key(e.fen) for e in load_rows('positions', 0.0, 0, 'eval')}
    fens = claim.fresh_fens(12)
    assert len(set(map(position_key, fens)) - known) == 12 and {split_of(f) for f in fens} == {'eval'}


def test_what_is_replayed_is_what_the_start_drew(tmp_path, claim):
    "Its loss is the entropy of the start (1.9 nats a token here); answers read back from their text, odd ones as bytes, would cost 10 nats a token."
    run = claim.Run('S1', dict(base=claim_plan.BASE | dict(replay_rows=128), arms=dict(S1=dict(kind='labels'))), 1e-4, 0, tmp_path)
    assert run.replayed(6) == 2 and 120 < len(run.replay) <= 128
    each = torch.tensor([completion_loss(run.start, TokenRows([row]).batch(torch.tensor([0]))).item() for row in run.replay])
    assert each.max() < 5 and 1.5 < each.mean() < 2.5
    assert all(row.completion[-1] == run.tokenizer.eot for row in run.replay)


def test_arms_that_meet_both_tasks(tmp_path, claim):
    "Half of the rows are A, of these the share that is asked is rare, and of P narrow; labels of A are right, and of what was drawn only right answers are learned."
    base = claim_plan.BASE | dict(batch_size=16, replay=0.0)
    for arm in dict(kind='labels', env_ratio=0.5, rare_share=0.5, narrow_share=0.25), dict(kind='rejection', env_ratio=0.5, prompts_per_step=8, group_size=4, max_new_tokens=144):
        run, learned = claim.Run('S', dict(base=base, arms=dict(S=arm)), 1e-4, 0, tmp_path/arm['kind']), []
        run.learn = learned.extend
        run.advance()
        texts = [run.tokenizer.decode(r.prompt) + run.tokenizer.decode([i for i in r.completion if i != run.tokenizer.eot]) for r in learned]
        A = [claim.parse_row(t) for t in texts if t.startswith('A')]
        assert A and all(Scorer('rules').score([e], [e.completion()])[0].total == 1 for e in A)
        if arm['kind'] == 'labels': assert len(A) == 8 == len(texts) - len(A) and run.source.used | dict(seen=0) == dict(P=6, A=4, rare=4, narrow=2, seen=0)


def test_rows_of_the_exam_are_kept(tmp_path, monkeypatch):
    claim = arms()
    first = claim.a_rows(tmp_path, 6, 'a seed', 'illegal') + claim.a_rows(tmp_path, 6, 'a seed')
    assert len({e.prompt() for e in first}) == 12 and {split_of(e.fen) for e in first} == {'eval'} and all(e.target.truncated for e in first[:6])
    monkeypatch.setattr(claim, 'special_rows', None)
    monkeypatch.setattr(claim, 'generate_transitions', None)
    assert claim.a_rows(tmp_path, 6, 'a seed', 'illegal') + claim.a_rows(tmp_path, 6, 'a seed') == first


def test_wrong_moves_have_a_kind():
    import wrong_moves
    board = wrong_moves.chess.Board('4k3/8/8/8/4r3/8/3N4/4K3 w - - 0 1')     # in check: block or step aside
    said = {m: wrong_moves.kind(board, m, ['e1f1']) for m in ('e1d1', 'e1f1', 'd2b3', 'e1e2', 'd2d3', 'a1a2', 'e8d8')}
    assert said == dict(e1d1=None, e1f1='named before', d2b3='does not end the check', e1e2='does not end the check', d2d3='the piece cannot go there', a1a2='no own piece there', e8d8='no own piece there')
    pinned = wrong_moves.chess.Board('4k3/8/8/8/4r3/8/4N3/4K3 w - - 0 1')
    assert [wrong_moves.kind(pinned, m, []) for m in ('e2c3', 'e1d1', 'e1d2')] == ['pinned, or the king walks into check', None, None]
    answers = pd.DataFrame(dict(prompt=['P: 4k3/8/8/8/4r3/8/4N3/4K3 w - - 0 1']*2, completion=[' M: e1d1 e1d1 e2c3 e1d2 e1f1 E: 0.3 0.2 0.1 0.1 0.1 B: e1d1', ' M: e1d1'], coherence=[0, 0]))
    assert list(wrong_moves.found(answers)) == [('named before', 0.2, 5), ('pinned, or the king walks into check', 0.2, 5), ('coherent, 1 to 4 legal moves', 0.0, 2)]


def test_the_label_time_is_charged_once(tmp_path, claim):
    spent = {}
    for charged in (False, True):
        plan = dict(base=claim_plan.BASE | dict(batch_size=4, replay=0.0, label_cost=1000.0), arms=dict(S=dict(kind='labels', charged=charged)))
        run = claim.Run('S', plan, 1e-4, 0, tmp_path/str(charged))
        before = copy.deepcopy(run.source.state_dict())
        run.advance()
        assert run.rows[0]['rows'] == 4 and run.rows[0]['loss'] > 0
        run.source.load_state_dict(before)
        run.advance()                                                  # the same prompts once more
        spent[charged] = run.spent
    assert 4000 < spent[True] < 4900 and spent[False] < 900
