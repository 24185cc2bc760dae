"""rookworld_compare: what is registered, killed and made again, charged and judged; and what is
refused."""
import json
import math
import os
import signal
import sys
from itertools import count
from unittest.mock import MagicMock, patch
import numpy as np
import pandas as pd
import pytest
import torch
from rookworld_nb.arms import arms, compare
from rookworld_nb.arms.arms import ARMS, Arm, Plan, run_config
from rookworld_nb.arms.compare import ArmRun, choose_rates, compare_arms, find_verdict, measure_rows, paired_bootstrap, read_plan, verdict_sentences
from rookworld_nb.config import CompareConfig
from rookworld_nb.files import file_sha256, write_at_once
from rookworld_nb.report.report import holm
from runs import Started, call, children, wait_until

PLAN = '''
budget = 4.0
seeds = [0, 1]
rates = [1e-4]
primaries = ["A exact people, history 1"]
guardrails = ["P best_move shipped"]
prompts = 4
batch_size = 4
[base]
data = "positions"
env_ratio = 0.5
prompts_per_step = 2
group_size = 2
max_refills = 0
max_new_tokens = 80
[arms.labels]
kind = "supervised"
[arms.rejection]
kind = "rejection"
[arms.grpo]
kind = "grpo"
'''
STEADY = '''
from rookworld_nb.arms.arms import Arm
Arm.clock = lambda arm: 2.0*arm.steps
'''      # a clock on which each step costs the same on every machine


@pytest.fixture
def folder(tmp_path):
    (tmp_path/'plan.toml').write_text(PLAN)
    return tmp_path


@pytest.fixture(autouse=True)
def steady():
    "A step costs two seconds, whatever the machine does."
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with patch.object(Arm, 'clock', lambda arm: 2.0*arm.steps): yield
    torch.set_num_threads(threads)


def made(folder, out, plan='plan.toml', **how):
    return compare_arms(CompareConfig(plan=str(folder/plan), output_dir=str(folder/out), **how))


def tables(out): return [(out/f'{name}.csv').read_text() for name in ('compare', 'verdict')]


# ---- runs

def test_killed_and_resumed(folder):
    "The same table; no half run is left, no finished run is made again, another plan is refused."
    said = made(folder, 'whole')
    assert 'labels spent' in '\n'.join(said)
    written = count()
    def dies(*args):
        if next(written) == 5: raise KeyboardInterrupt     # in the middle of a write
        write_at_once(*args)

    with patch.object(compare, 'write_at_once', dies), pytest.raises(KeyboardInterrupt) as e:
        made(folder, 'killed')
    assert '3 of 7 test runs are in' in e.value.__notes__[0]
    runs = folder/'killed'/'runs'
    before = {p.name: p.stat().st_mtime_ns for p in runs.iterdir()}
    assert len(before) == 3 and not (folder/'killed'/'verdict.csv').exists()
    with pytest.raises(ValueError, match=r'lacks 4 of 7 runs, test-grpo-0.0001-0 first'):
        made(folder, 'killed', stage='verdict')
    assert made(folder, 'killed') == said
    assert tables(folder/'killed') == tables(folder/'whole')
    assert {name: (runs/name).stat().st_mtime_ns
            for name in before} == before and len([*runs.iterdir()]) == 7
    with patch.object(compare, 'make_run', None):
        assert made(folder, 'killed', stage='verdict') == said
    (folder/'changed.toml').write_text(PLAN.replace('budget = 4.0', 'budget = 5.0'))
    with pytest.raises(ValueError) as e: made(folder, 'killed', 'changed.toml')
    assert 'changed.toml is not the plan that' in str(e.value) and file_sha256(folder/'plan.toml')[:12] in str(e.value) and '\n' not in str(e.value)
    with patch.object(compare, 'origin_of',
                      lambda *args: dict(model='0'*64, version='', torch='')), pytest.raises(
                          ValueError, match='has not the weights that'):
        made(folder, 'killed')
    known = json.loads((folder/'killed'/'registered.json').read_text())
    assert known['plan'] == file_sha256(folder/'plan.toml') and len(known['weights']) == 64


def test_a_run_in_a_process_of_its_own(tmp_path, monkeypatch):
    "It computes on one thread, and ends with the command that began it."
    monkeypatch.setenv('OMP_NUM_THREADS', '2')
    run = ArmRun('test', 'grpo', 1e-4, 0)
    def made_by(code): compare._made_apart([sys.executable, '-c', code], tmp_path/'plan.toml', run, tmp_path)
    made_by('import os; assert os.environ["OMP_NUM_THREADS"] == "1"')
    with pytest.raises(RuntimeError, match='test-grpo-0.0001-0 ended with exit code 3'): made_by('raise SystemExit(3)')
    child = MagicMock(**{'poll.return_value': None, 'wait.side_effect': [KeyboardInterrupt, -9]})
    with patch.object(compare.subprocess, 'Popen', lambda *args, **how: child), pytest.raises(KeyboardInterrupt):
        made_by('')
    child.kill.assert_called_once_with()
    assert child.stdin.close.called and child.wait.call_count == 2


def test_a_killed_command(folder):
    "SIGKILL in the middle of a run: its process ends too, and the same command makes the rest."
    quick = PLAN.replace('[arms.rejection]\nkind = "rejection"\n',
                         '').replace('seeds = [0, 1]', 'seeds = [0]').replace(
                             'budget = 4.0',
                             'budget = 0.1').replace('"positions"', '"unlabelled:games"').replace(
                                 'env_ratio = 0.5',
                                 'env_ratio = 1.0').replace('guardrails = ["P best_move shipped"]',
                                                            '')
    (folder/'plan.toml').write_text(quick)
    command = Started('compare', 'plan.toml', '--output_dir', 'out', cwd=folder)
    wait_until(lambda: (folder/'out'/'runs'/'test-start-0-0.json').exists(), command)
    mine = wait_until(lambda: children(command.pid), command)
    assert all(os.getsid(pid) == pid for pid in mine)      # where Ctrl-C of a terminal does not reach them
    os.kill(command.pid, signal.SIGKILL)
    for pid in mine:
        wait_until(lambda: not os.path.exists(f'/proc/{pid}') or open(f'/proc/{pid}/stat').read().
                   rpartition(')')[2].split()[0] == 'Z')
    first = (folder/'out'/'runs'/'test-start-0-0.json').stat().st_mtime_ns
    assert len([*(folder/'out'/'runs').glob('*.json')]) < 3
    code, out, err = call('compare', 'plan.toml', '--output_dir', 'out', cwd=folder)
    assert code == 0, err
    assert (folder/'out'/'runs'/'test-start-0-0.json').stat(
    ).st_mtime_ns == first and out.splitlines()[-1] == 'Tables: out/compare.csv, out/verdict.csv'
    spent = pd.read_csv(folder/'out'/'compare.csv').dropna(subset=['spent'])
    assert set(spent.arm) == {'labels', 'grpo'} and (spent.spent >= 0.1).all()


def test_equal_cost_within_one_step():
    """Each arm stops with the first step that reaches the budget, whatever its steps cost; the rate
    has fallen when it does."""
    class Toy(Arm):
        def __init__(self, cost):
            self.plan, self.config, self.cost, self.spent, self.label_seconds, self.steps, self.rates = plan, run_config(
                plan, 'a', 1e-3, 0), cost, 0.0, 0.0, 0, []
        def clock(self): return self.now()
        def now(self): return self.at
        def step(self): self.at += self.cost; self.rates.append(self.rate)
        at = 100.0

    plan = Plan(arms=dict(a={}), budget=7.0, seeds=[0], rates=[1e-3], primaries=[],
                base=dict(warmup_steps=1))
    for cost in (0.01, 0.5, 3.0, 6.9, 20.0):
        toy = Toy(cost).train()
        assert toy.spent - cost < plan.budget <= toy.spent + 1e-9 and toy.steps == math.ceil(
            plan.budget/cost - 1e-9), cost
        assert toy.rates[0] == 1e-3 and toy.rates == sorted(toy.rates, reverse=True)
    assert Toy(0.01).train().rates[-1] == pytest.approx(1e-4, rel=0.01)


def test_a_label_is_charged_once():
    plan = Plan(arms=dict(s=dict(kind='supervised')), budget=9.0, seeds=[0], rates=[1e-4],
                primaries=[], batch_size=8, label_cost=0.5,
                base=dict(data='positions', max_positions=40, env_ratio=0.5))
    arm = ARMS['supervised'](plan, run_config(plan, 's', 1e-4, 0))
    asked, answered = [], arm.answered
    arm.answered = lambda rows: asked.extend(e.fen for e in rows if e.kind == 'P') or answered(rows)
    arm.train()
    assert len(asked) > len(set(asked)) or arm.steps < 12
    assert arm.label_seconds == 0.5*len(set(asked)) and arm.spent == 2.0*arm.steps + arm.label_seconds
    free = Plan(arms=dict(s=dict(kind='supervised')), budget=5.0, seeds=[0], rates=[1e-4],
                primaries=[], batch_size=8, label_cost=0.5, base=dict(data='positions',
                                                                      env_ratio=1.0))
    arm = ARMS['supervised'](free, run_config(free, 's', 1e-4, 0)).train()
    assert (arm.label_seconds, arm.steps) == (0, 3)     # the rules' answers


def test_labels_of_an_engine(monkeypatch):
    "Where rows have none; what the engine says is learned, and its time is charged."
    class Pool:
        def __init__(self, nodes, path): self.nodes = nodes
        def analyse(self, fens): return [arms_analysis(fen) for fen in fens]
    from rookworld_nb.chess.engine import Analysis
    from rookworld_nb.chess.quick_rules import legal_moves
    def arms_analysis(fen):
        moves = tuple(sorted(legal_moves(fen)))[:5]
        return Analysis(fen, moves, tuple(0.5 for _ in moves))
    monkeypatch.setattr(arms, 'EnginePool', Pool)
    plan = Plan(arms=dict(s=dict(kind='supervised')), budget=2.0, seeds=[0], rates=[1e-4],
                primaries=[], batch_size=6, label_cost=0.25,
                base=dict(data='unlabelled:games', env_ratio=0.5))
    arm = ARMS['supervised'](plan, run_config(plan, 's', 1e-4, 0))
    rows = arm.answered(arm.take(6))
    assert [e.target.moves == arms_analysis(e.fen).moves
            for e in rows if e.kind == 'P'] == [True]*3 and arm.label_seconds == 0.75
    assert all(e.completion() for e in rows)


# ---- choosing rates

def a_run(out, run, **measured):
    out.joinpath('runs').mkdir(parents=True, exist_ok=True)
    run.file(out).write_text(
        json.dumps(run._asdict() | dict(steps=1, spent=1.0, labels=0.0, measured=measured)))


def test_rates_are_chosen_by_the_primaries_that_keep_the_guardrails(tmp_path):
    p, g = 'P coherence people', 'P eval_error shipped'      # of the guard, less is better
    plan = Plan(arms=dict(a={}, b={}), budget=1.0, seeds=[0], rates=[1e-5, 1e-4, 1e-3],
                primaries=[p], guardrails=[g], margin=0.01, tuning_seeds=[7, 8])
    a_run(tmp_path, ArmRun('tuning', 'start', 0.0, 0), **{p: [0.5], g: [0.20]})
    for arm, found in dict(a=[(0.5, 0.20), (0.6, 0.205), (0.9, 0.30)], b=[(0.6, 0.30), (0.7, 0.40), (0.7, 0.50)]).items():
        for rate, (gain, error) in zip(plan.rates, found):
            for seed, more in ((7, 0.1), (8, -0.1)):
                a_run(tmp_path, ArmRun('tuning', arm, rate, seed),
                      **{p: [gain + more, None], g: [error + more]})
    # the best that keeps the guard; none keeps it, so the best, and of equals the lower
    assert choose_rates(plan, tmp_path) == dict(a=1e-4, b=1e-4)
    for tuning, n in ((True, 50), (False, 100)): assert len(measure_rows(p, tuning, 100)) == n
    assert not {e.fen
                for e in measure_rows(p, True, 999)} & {e.fen
                                                        for e in measure_rows(p, False, 999)}


# ---- the verdict

def slow_bootstrap(d, draws=4000):
    "The same draws, one after the other, rows repeated as often as drawn."
    k, n = d.shape
    rng = np.random.default_rng(0)
    seeds, prompts = rng.multinomial(k, np.full(k, 1/k), draws), rng.multinomial(n, np.full(n, 1/n), draws)
    means = [
        np.nanmean(np.repeat(np.repeat(d, s, axis=0), q, axis=1)).round(12)
        for s, q in zip(seeds, prompts)
    ]
    below, above = sum(m <= 0 for m in means), sum(m >= 0 for m in means)
    return np.nanmean(d), *np.percentile(means, [2.5, 97.5]), min(1, 2*(1 + min(below, above))/4001)


def slow_holm(p, level=0.05):
    """A finding remains when, for each of the smallest k up to it, the k-th is below level/(m - k +
    1)."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    return [
        all(p[j] < level/(len(p) - order.index(j)) for j in order[:order.index(i) + 1])
        for i in range(len(p))
    ]


def test_the_verdict_by_another_computation(tmp_path):
    rng, p = np.random.default_rng(3), ['P coherence people', 'P coherence armies', 'P eval_error shipped']
    plan = Plan(arms=dict(a={}, b={}, c={}), budget=1.0, seeds=[0, 1, 2], rates=[1e-4], primaries=p,
                guardrails=['A exact shipped'])
    lead = dict(a=[0.3, 0.1, -0.2, 0.0], b=[0.0, 0.0, 0.0, 0.0], c=[0.28, -0.1, 0.0, 0.0])
    values = {}
    for arm, means in lead.items():
        for seed in plan.seeds:
            of = {
                m: (rng.normal(x, 0.5, 30) + 0.1*seed).round(5)
                for m, x in zip([*p, 'A exact shipped'], means)
            }
            of[p[0]][seed] = np.nan
            values[arm, seed] = of
            a_run(tmp_path, ArmRun('test', arm, 1e-4, seed),
                  **{m: [None if np.isnan(v) else v for v in x.tolist()]
                     for m, x in of.items()})
    a_run(tmp_path, ArmRun('test', 'start', 0.0, 0),
          **{m: [0.0]*30
             for m in [*p, 'A exact shipped']})
    table = find_verdict(plan, tmp_path)
    assert list(table.role) == ['primary']*6 + ['guardrail']*2
    for r in table.itertuples():
        sign = -1 if 'error' in r.measure else 1
        d = (sign*np.array(
            [values['a', s][r.measure] - values[r.control, s][r.measure] for s in plan.seeds]))
        assert (r.difference, r.low, r.high, r.p) == pytest.approx(slow_bootstrap(d), abs=1e-9), r
        assert r.seeds_ahead == sum(np.nanmean(row) > 0 for row in d)
    tests = table[table.role == 'primary']
    assert tests.remains.tolist() == slow_holm(
        tests.p.tolist()) and 0 < tests.remains.sum() < 6 and not table.remains[6:].any()
    assert pd.read_csv(tmp_path/'verdict.csv').remains.tolist() == table.remains.tolist()
    said = verdict_sentences(table, pd.read_csv(tmp_path/'compare.csv'))
    won = int((tests.remains & (tests.difference > 0)).sum())
    assert said[
        0] == f'Not reached: a is ahead in {won} of 6 primary comparisons and behind in {int((tests.remains & (tests.difference < 0)).sum())}, after Holm.'
    assert sum(line.startswith('Guardrail: ')
               for line in said) == 2 and said[-1] == 'c spent 1.0 s on average in 1 steps.'


def test_holm_by_enumeration():
    rng = np.random.default_rng(0)
    for _ in range(200):
        p = (rng.random(6)**4).round(4)
        assert holm(pd.Series(p)).tolist() == slow_holm(p.tolist())


def test_what_nobody_answered():
    assert math.isnan(paired_bootstrap(np.full((2, 3), np.nan))['p'])


# ---- what is refused


@pytest.mark.parametrize('old, new, says', [
    ('[arms.rejection]', '[arms.grpo]\nkind = "grpo"\n[arms.rejection]',
     "Cannot declare ('arms', 'grpo') twice (at line"),
    ('kind = "rejection"', 'kind = "rejecting"',
     "[arms.rejection] has an unknown kind 'rejecting'; did you mean rejection?"),
    ('kind = "rejection"', '',
     '[arms.rejection] must be a table with a kind: grpo, supervised, rejection'),
    ('"A exact people, history 1"', '"A exact people"',
     "'A exact people': A has no source 'people'"),
    ('"A exact people, history 1"', '"A right people, history 1"', "A has no metric 'right'"),
    ('"A exact people, history 1"', '"P best_move shipped"',
     "'P best_move shipped' must stand once in primaries, guardrails and reported"),
    ('seeds = [0, 1]', 'seeds = [0, 100]',
     'seed 100 must stand in seeds or in tuning_seeds, not in both'),
    ('seeds = [0, 1]', 'seeds = [1, 1]', 'seeds has 1 twice'),
    ('seeds = [0, 1]', 'seeds = 3', 'seeds must be a list, not 3'),
    ('rates = [1e-4]', 'rates = [-1.0]', 'rates must have only values that are above 0, not -1.0'),
    ('budget = 4.0', 'budget = "long"', "budget must be a number, not 'long'"),
    ('budget = 4.0', '', 'budget is missing'),
    ('prompts = 4', 'promts = 4', "a plan has no line 'promts'; did you mean prompts?"),
    ('group_size = 2', 'learning_rate = 1e-3',
     '[base] must leave learning_rate out: rates says it'),
    ('group_size = 2', 'save_every = 2',
     '[base] must leave save_every out: it has no effect in a comparison'),
    ('group_size = 2', 'group_sice = 2',
     "TrainConfig has no field 'group_sice'; did you mean group_size?"),
    ('kind = "supervised"', 'kind = "supervised"\nkl_coef = 0.3',
     '[arms.labels] must leave kl_coef out: it has no effect on an arm of kind supervised'),
    ('kind = "grpo"', 'kind = "grpo"\nreward_source = "row"',
     "[base] with [arms.grpo]: reward_source must be rules, not 'row'"),
    ('kind = "grpo"', 'kind = "grpo"\ngamma = 0.5',
     '[base] with [arms.grpo]: gamma has no effect without baseline value'),
])
def test_one_sentence_with_the_place(old, new, says, tmp_path):
    assert old in PLAN
    (tmp_path/'plan.toml').write_text(PLAN.replace(old, new, 1))
    with pytest.raises(ValueError) as e: read_plan(tmp_path/'plan.toml')
    assert str(e.value).startswith(f'{tmp_path}/plan.toml: ') and says in str(
        e.value) and '\n' not in str(e.value), e.value


def test_the_command_refuses_in_one_line(tmp_path):
    (tmp_path/'plan.toml').write_text(PLAN.replace('kind = "rejection"', 'kind = "magic"'))
    for args, says in ((['plan.toml'], 'plan.toml: [arms.rejection] has an unknown kind'),
                       (['nowhere.toml'], 'plan nowhere.toml does not exist'),
                       (['.'], 'plan . is not a file'),
                       ([], 'plan is missing'), (['plan.toml', 'judge'],
                                                 'stage must be one of run, verdict, not')):
        code, out, err = call('compare', *args, cwd=tmp_path)
        assert code == 2 and err.startswith('rookworld_compare: ') and says in err and err.count(
            '\n') == 1, err
    assert [p.name for p in tmp_path.iterdir()] == ['plan.toml']
    (tmp_path/'plan.toml').write_text(PLAN)
    code, out, err = call('compare', 'plan.toml', 'verdict', cwd=tmp_path)
    assert (code, [p.name for p in tmp_path.iterdir()]) == (2, [
        'plan.toml'
    ]) and 'compared is no comparison: it has no registered.json' in err


def test_a_kind_that_is_no_text_is_refused(tmp_path):
    (tmp_path/'plan.toml').write_text('\n'.join([
        'budget = 4.0', 'seeds = [0]', 'rates = [1e-4]', 'primaries = ["A exact shipped"]', '[base]',
        '[arms.a]', 'kind = ["grpo"]', '[arms.b]', 'kind = "grpo"']))
    with pytest.raises(ValueError, match=r"plan.toml: \[arms.a\] has an unknown kind \['grpo'\]; did you mean grpo"):
        read_plan(tmp_path/'plan.toml')
