"""GRPO by the rules, supervision and rejection sampling on the same unlabelled prompts, at equal CPU time.

`python unlabelled_claim.py PLAN.toml OUT run` makes all runs of the plan that OUT lacks, first those that choose each arm's learning rate, then the test; `... verdict` writes OUT/verdict.csv.
All arms take prompts from one mixture without armies, as many A as the default run, and train until their CPU time is spent: sampling, scoring, updates, and making the prompts. An engine's label is charged at the plan's cost.
Of a group, rejection sampling learns the answers with the best score, where not all have it."""
import argparse
import json
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path
import numpy as np
import pandas as pd
import torch
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.chess.tasks import PolicyAnswer
from rookworld_nb.config import TrainConfig
from rookworld_nb.grpo import step as grpo_step
from rookworld_nb.grpo.experience import collect, rollout_seed, task_counts
from rookworld_nb.grpo.mixture import unlabelled_mixture
from rookworld_nb.lm.loader import load_model
from rookworld_nb.measure.evaluate import judge_rows
from rookworld_nb.measure.probes import probe_rows, reserved_positions
from rookworld_nb.report.report import holm
from rookworld_nb.run.targets import TokenRow, TokenRows, completion_loss, tokenize

KINDS = ('games', 'deep', 'shuffled', 'endings', 'visited')     # armies and people's positions are never trained on
BATCH = 64                                                      # rows of a supervised step


def rate_at(share, steps, rate):
    "Warm-up over ten steps, then a cosine down to a tenth, over the share of the budget that is spent."
    return rate * min(1, steps/10) * (0.1 + 0.9*(1 + np.cos(np.pi*min(1, share)))/2)


class Arm:
    "A model that learns until its time is spent."
    def __init__(self, plan, rate, seed):
        self.plan, self.rate, self.seed, self.spent, self.steps = plan, rate, seed, 0.0, 0
        self.config = TrainConfig(seed=seed, learning_rate=rate, data='unlabelled:' + ','.join(KINDS))
        self.model, self.tokenizer = load_model('nano')
        self.source = unlabelled_mixture(KINDS, seed, reserved_positions())

    def lr(self): return rate_at(self.spent/self.plan['budget'], self.steps, self.rate)

    def train(self):
        self.prepare()
        while self.spent < self.plan['budget']:
            began, self.steps = time.process_time(), self.steps + 1
            self.step()
            self.spent += time.process_time() - began

    def prepare(self): self.optimizer = grpo_step.make_optimizer(list(self.model.parameters()), self.config)

    def imitate(self, rows):
        "One step of supervision on tokenised rows, but for those that are too long for the model."
        rows = TokenRows(r for r in rows if len(r.prompt) + len(r.completion) <= self.model.config.n_positions)
        if not len(rows): return
        for group in self.optimizer.param_groups: group['lr'] = self.lr()
        self.optimizer.zero_grad()
        completion_loss(self.model, rows.batch(torch.arange(len(rows)))).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_clip)
        self.optimizer.step()


class Grpo(Arm):
    "The default run."
    def prepare(self):
        self.learner = grpo_step.Learner(self.model, self.tokenizer, self.config)
        grpo_step.learning_rate_at = lambda step, config: self.lr()

    def step(self): grpo_step.train_step(self.learner, self.source, self.steps)


class Answers(Arm):
    "Supervision on the right answers to A, which the rules give."
    def step(self): self.imitate([tokenize(e, self.tokenizer) for e in self.source.take('A', BATCH)])


class Labels(Arm):
    "The same, and for P Stockfish's labels."
    def prepare(self):
        from rookworld_nb.chess.engine import EnginePool
        super().prepare()
        self.engine = EnginePool(self.plan['nodes'])

    def step(self):
        n = task_counts(self.steps, BATCH, self.config.env_ratio)['P']
        asked = self.source.take('P', n)
        labels = {a.fen: PolicyAnswer(a.moves, a.evals, a.moves[0]) for a in self.engine.analyse([e.fen for e in asked])}
        rows = [replace(e, target=labels[e.fen]) for e in asked] + self.source.take('A', BATCH - n)
        self.spent += n*self.plan['label_cost']
        self.imitate([tokenize(e, self.tokenizer) for e in rows])


class Rejection(Arm):
    "Supervision on the best of the model's own answers."
    def step(self):
        c = self.config
        examples = [e for task, n in task_counts(self.steps, c.prompts_per_step, c.env_ratio).items() for e in self.source.take(task, n)]
        batch, _ = collect(self.model, self.tokenizer, examples, c, rollout_seed(c.seed, self.steps, 0))
        self.source.record(examples, batch.rewards, completions=batch.rollouts.completions)
        best = {(i, batch.rollouts.completions[i*c.group_size + k]) for i, row in enumerate(batch.rewards.tolist()) if min(row) < max(row)
                for k, reward in enumerate(row) if reward == max(row)}
        encode = self.tokenizer.encode
        self.imitate([TokenRow(encode(examples[i].prompt(self.tokenizer.style)), [*encode(text), self.tokenizer.eot]) for i, text in sorted(best)])


ARMS = dict(grpo=Grpo, answers=Answers, labels=Labels, rejection=Rejection)


def measured(model, tokenizer, n):
    "Name -> list of what each held-out prompt scored, greedily; not a number where an answer has no such value."
    asked = [e for name in ('people', 'armies') for e in probe_rows(name, 3*n) if e.source != 'people, history 9']
    asked += [e for e in probe_rows('policy', 3*n) if e.source in ('people', 'armies', 'deep')] + [e for e in probe_rows('ends', n) if e.source.split(',')[0] in ('quiet', 'check', 'mate')]
    asked += [e for e in probe_rows('games', n) if e.source.startswith('promotions')]
    shipped = load_rows('positions', 0.2, 0, 'eval')
    asked += [replace(e, source='shipped') for kind, k in dict(P=10*n, A=4*n).items() for e in shipped.of_kind(kind)[:k]]
    judged = judge_rows(model, tokenizer, asked, limits=dict(P=60, A=100))
    wanted = dict(A=['exact'], P=['coherence', 'best_move', 'top5_overlap', 'eval_error'])
    return {f'{task} {metric} {source}': part[metric].astype(float).round(5).tolist() for task, metrics in wanted.items() for metric in metrics
            for source, part in judged[judged.task == task].groupby('source') if part[metric].notna().any() and (source == 'shipped' or metric in ('exact', 'coherence'))}


def one(plan, out, name, rate, seed):
    file = out/f'{name}-{rate:g}-{seed}.json'
    if file.exists(): return
    torch.set_num_threads(1)
    if name == 'start': arm, (model, tokenizer) = None, load_model('nano')
    else:
        (arm := ARMS[name](plan, rate, seed)).train()
        model, tokenizer = arm.model, arm.tokenizer
    file.write_text(json.dumps(dict(arm=name, rate=rate, seed=seed, steps=arm and arm.steps, spent=arm and round(arm.spent, 1), measured=measured(model, tokenizer, plan['n']))) + '\n')
    print(file.name, arm and (arm.steps, round(arm.spent)), flush=True)


def mean(run, name): return float(np.nanmean(run['measured'][name]))


def chosen(plan, runs, start):
    "Arm -> its rate: the most self-consistent on the plan's primaries among those that keep the guards within the margin, else among all."
    best = {}
    for name in plan['arms']:
        tried = [r for r in runs if r['arm'] == name and r['seed'] == plan['tuning_seed']]
        kept = [r for r in tried if all(mean(r, g) > mean(start, g) - plan['margin'] for g in plan['guards'])] or tried
        best[name] = max(kept, key=lambda r: sum(mean(r, p) for p in plan['primaries']))['rate']
    return best


def read(out): return [json.loads(f.read_text()) for f in sorted(out.glob('*-*-*.json'))]


def verdict(plan, out):
    "Paired differences, GRPO minus each control, over seeds and prompts; bootstrap of both, Holm over all."
    runs = read(out)
    start = next(r for r in runs if r['arm'] == 'start')
    rates, rng, found = chosen(plan, runs, start), np.random.default_rng(0), []
    def table(name, measure): return np.array([r['measured'][measure] for s in plan['seeds'] for r in runs if (r['arm'], r['rate'], r['seed']) == (name, rates[name], s)])
    for measure in [*plan['primaries'], *plan['guards'], *plan['reported']]:
        ours = table('grpo', measure)
        for other in [a for a in plan['arms'] if a != 'grpo']:
            theirs = table(other, measure)
            differences = ours - theirs                       # (seeds, prompts)
            k, n = differences.shape
            draws = np.array([np.nanmean(differences[rng.integers(k, size=k)][:, rng.integers(n, size=n)]) for _ in range(4000)])
            p = min(1, 2*(1 + min((draws <= 0).sum(), (draws >= 0).sum())) / (len(draws) + 1))
            found.append(dict(measure=measure, control=other, start=mean(start, measure), grpo=np.nanmean(ours), other=np.nanmean(theirs), difference=np.nanmean(differences),
                              low=np.quantile(draws, .025), high=np.quantile(draws, .975), p=p, seeds=k, n=n, grpo_rate=rates['grpo'], other_rate=rates[other]))
    found = pd.DataFrame(found)
    tested = found.measure.isin(plan['primaries'])
    found['remains'] = holm(found.p.where(tested))       # after Holm, among the primaries
    found.round(5).to_csv(out/'verdict.csv', index=False, lineterminator='\n')
    print(found.round(3).to_string())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('plan', type=Path)
    parser.add_argument('out', type=Path)
    parser.add_argument('what', choices=['run', 'verdict', 'one'])
    parser.add_argument('run', nargs='*', help='one: arm, rate, seed')
    told = parser.parse_args()
    plan = tomllib.loads(told.plan.read_text())
    told.out.mkdir(parents=True, exist_ok=True)
    if told.what == 'one': return one(plan, told.out, told.run[0], float(told.run[1]), int(told.run[2]))
    if told.what == 'verdict': return verdict(plan, told.out)
    def each(runs):      # each in a process of its own
        for run in runs: subprocess.run([sys.executable, __file__, str(told.plan), str(told.out), 'one', *map(str, run)], check=True)
    each([('start', 0, 0), *((arm, rate, plan['tuning_seed']) for arm in plan['arms'] for rate in plan['rates'])])
    runs = read(told.out)
    rates = chosen(plan, runs, next(r for r in runs if r['arm'] == 'start'))
    print(rates, flush=True)
    each([(arm, rates[arm], seed) for seed in plan['seeds'] for arm in plan['arms']])


if __name__ == '__main__': main()
