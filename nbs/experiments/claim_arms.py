"""Does reinforcement beat every supervised control at equal CPU? `python claim_arms.py PLAN.toml OUT [ARM ...]` runs what is missing.

The plan has a table [base] (see `BASE`) and a table [arms], one line an arm; a run is one arm with one learning rate and one seed.
All arms start from the same model, take the same prompts in the same order, use the same optimizer (AdamW, constant after ten
steps) and stop at the same CPU-seconds of this process and the engines it started; sampling, scoring and labelling count,
measuring does not. OUT/ARM-RATE-SEED/ holds the state of a run, so the same command goes on after a kill; OUT/arms.csv has the
measures at each budget, OUT/ARM-RATE-SEED/judged-BUDGET.csv the answers prompt by prompt for paired tests.

Kinds of arms: `labels` (rows as Stockfish labelled them; `charged` true adds `label_cost` CPU-seconds for each new position),
`uniform` (the rules' labels: any legal move), `rejection` (sample, keep what is coherent, learn it), `dagger` (positions that the
policy visits, labelled by Stockfish), `grpo` (all other fields are those of `TrainConfig`)."""
import csv, json, os, random, resource, sys, time, tomllib
from dataclasses import replace
from itertools import islice
from pathlib import Path
import torch
from rookworld_nb.chess.dataset import load_rows, policy_example
from rookworld_nb.chess.engine import EnginePool
from rookworld_nb.chess.quick_rules import legal_moves
from rookworld_nb.chess.synthetic import generate_transitions, special_rows
from rookworld_nb.config import TrainConfig
from rookworld_nb.grpo.experience import PromptSource, collect, rollout_seed
from rookworld_nb.grpo.step import Learner, make_optimizer, train_step
from rookworld_nb.lm.generate import generate
from rookworld_nb.lm.loader import load_model
from rookworld_nb.measure.evaluate import judge_rows, summarize
from rookworld_nb.measure.strange import STRANGE, judge_by_rules, mean_run, right_states, strange_positions, visited_positions
from rookworld_nb.measure.measures import wilson
from rookworld_nb.measure.suites import held_out
from rookworld_nb.reward.scoring import Scorer
from rookworld_nb.run.pretrain import supervised_step
from rookworld_nb.run.targets import TokenRow, TokenRows, best_first, tokenize

BASE = dict(model='nano', data='positions', seeds=[0], budgets=[20.0], learning_rates=[1e-4], batch_size=64,
            replay=0.25,         # share of a supervised batch that the starting model wrote itself, sampled at 1
            replay_rows=512,     # of such rows, made once and charged
            label_cost=0.007,    # CPU-seconds of one label, measured with `python claim_arms.py PLAN.toml OUT label_cost`
            nodes=1000, checkpoint=60.0, questions=5000, strange=2000, chains=300, chain=100, temperature=0.7, threads=1)
SHOWN = dict(P=['format_valid', 'legal_best', 'coherence', 'best_move', 'top5_overlap', 'regret'], A=['exact', 'fen_exact', 'recall_illegal', 'recall_mate'])
LIMITS = dict(P=24, A=64)   # tokens of an answer in the chess vocabulary


def cpu_seconds():
    "Of this process and of all that it started, the living included."
    def stat(pid):
        try: return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()
        except (FileNotFoundError, ProcessLookupError): return None
    children, spent = {}, 0
    stats = {int(p.name): s for p in Path('/proc').iterdir() if p.name.isdigit() and (s := stat(p.name))}
    for pid, s in stats.items(): children.setdefault(int(s[1]), []).append(pid)
    below = list(children.get(os.getpid(), []))
    while below:
        pid = below.pop()
        spent += sum(map(int, stats[pid][11:15]))
        below += children.get(pid, [])
    gone = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + gone.ru_utime + gone.ru_stime + spent/os.sysconf('SC_CLK_TCK')


class Run:
    "One arm with one learning rate and one seed."
    def __init__(self, arm, plan, rate, seed, out):
        self.arm, self.base, self.rate, self.seed, self.kind = arm, plan['base'], rate, seed, plan['arms'][arm]['kind']
        self.fields = {k: v for k, v in plan['arms'][arm].items() if k not in ('kind', 'charged', 'learning_rates')}
        self.charged, self.out = plan['arms'][arm].get('charged', False), Path(out)/f'{arm}-{rate:g}-{seed}'
        self.out.mkdir(parents=True, exist_ok=True)
        self.step, self.spent, self.seen, self.collected, self.replay, self.learner = 0, 0.0, set(), [], [], None
        b, grpo = self.base, self.fields if self.kind == 'grpo' else {}
        self.config = TrainConfig(**(dict(seed=seed, env_ratio=0.0, learning_rate=rate, warmup_steps=10, min_lr_ratio=1.0, max_steps=10**6, temperature=b['temperature'],
                                          reward_source='rules', max_new_tokens=LIMITS['P'], kl_every=0, engine_workers=1, engine_nodes=b['nodes'],
                                          engine_cache=str(self.out/'engine.sqlite')) | grpo))
        self.model, self.tokenizer = load_model(b['model'])
        self.start, _ = load_model(b['model'])
        self.source = PromptSource(load_rows(b['data'], 0.0, 0, 'train'), seed)
        self.pool = EnginePool(b['nodes'], workers=1, cache=self.out/'labels.sqlite') if self.kind == 'dagger' else None
        if self.kind == 'grpo': self.learner = Learner(self.model, self.tokenizer, self.config)
        self.scorer, self.optimizer = Scorer('rules'), self.learner.optimizer if self.learner else make_optimizer(list(self.model.parameters()), self.config)

    def token_row(self, prompt, text): return TokenRow(self.tokenizer.encode(prompt), [*self.tokenizer.encode(text), self.tokenizer.eot])

    def replayed(self, rows):
        "How many answers of the starting model go with so many rows; they are made once, and their making is charged."
        share = self.base['replay']
        if share and not self.replay:
            asked = PromptSource(self.source.rows['P'], 10**6).take('P', self.base['replay_rows'])
            for at in range(0, len(asked), 128):
                some = asked[at:at+128]
                said = generate(self.start, self.tokenizer, [e.prompt(self.tokenizer.style) for e in some], 1, LIMITS['P'], 1.0, seed=at)
                self.replay += [self.token_row(e.prompt(), text) for e, text, cut in zip(some, said.completions, said.truncated.tolist()) if not cut]
        return round(rows*share/(1 - share)) if share else 0

    def learn(self, rows):
        "A supervised step on some rows and on replayed ones."
        if not rows: return
        n = self.replayed(len(rows))
        replay = random.Random(f'replay {self.seed} {self.step}').sample(self.replay, min(n, len(self.replay)))
        batch = TokenRows([*rows, *replay]).batch(torch.arange(len(rows) + len(replay)))
        self.model.train()
        supervised_step(self.model, self.optimizer, batch, [self.rate]*len(self.optimizer.param_groups), min(1, self.step/10))
        self.model.eval()

    def labels(self):
        "S1, S2: rows as they were labelled, the best move first."
        taken = self.source.take('P', self.base['batch_size'])
        new = [e for e in taken if e.fen not in self.seen]
        self.seen |= {e.fen for e in new}
        if self.charged: self.spent += self.base['label_cost']*len(new)
        self.learn([tokenize(best_first(e), self.tokenizer) for e in taken])

    def uniform(self):
        "S3: at each candidate's place any legal move not named before, B the first of them; what evaluations should be the rules do not say."
        rng = random.Random(f'uniform {self.seed} {self.step}')
        self.learn([row for e in self.source.take('P', self.base['batch_size']) if (row := uniform_row(e.fen, self.tokenizer, rng))])

    def rejection(self):
        "S4: sample eight answers a prompt as R1 does, learn what is coherent, each answer once."
        c = self.config
        batch, _ = collect(self.model, self.tokenizer, self.source.take('P', c.prompts_per_step), c, rollout_seed(self.seed, self.step, 0), self.scorer)
        kept = {(batch.examples[i//c.group_size].prompt(), text) for i, (text, s) in enumerate(zip(batch.rollouts.completions, batch.scores)) if s.total == 1}
        self.learn([self.token_row(*pair) for pair in sorted(kept)])

    def dagger(self):
        "S5: every 20 steps 128 positions of the policy's own games are labelled; batches come from all labelled so far."
        if self.step % 20 == 1:
            met = list(visited_positions(self.model, self.tokenizer, 128, f'{self.seed} {self.step}', 'train', self.base['temperature'], max_new_tokens=LIMITS['P']))
            self.collected += [(a.fen, a.moves, a.evals) for a in self.pool.analyse([p.fen for p in met])]
        some = random.Random(f'dagger {self.seed} {self.step}').choices(self.collected, k=self.base['batch_size'])
        self.learn([tokenize(best_first(policy_example(*row)), self.tokenizer) for row in some])

    def grpo(self):
        "R arms: one step of the trainer."
        row, _ = train_step(self.learner, self.source, self.step)
        with open(self.out/'metrics.jsonl', 'a') as f: f.write(json.dumps(row | dict(cpu_s=round(self.spent, 2))) + '\n')

    def advance(self):
        "One step, charged."
        began = cpu_seconds()
        self.step += 1
        getattr(self, self.kind)()
        self.spent += cpu_seconds() - began

    def save(self):
        "Everything that the next step depends on."
        state = dict(step=self.step, spent=self.spent, source=self.source.state_dict(), seen=self.seen, collected=self.collected, replay=self.replay,
                     model=self.model.state_dict(), optimizer=self.optimizer.state_dict(), learner=self.learner and self.learner.state_dict())
        torch.save(state, self.out/'state.tmp')
        os.replace(self.out/'state.tmp', self.out/'state.pt')

    def restore(self):
        "Go on where the last `save` was."
        if not (self.out/'state.pt').exists(): return
        state = torch.load(self.out/'state.pt', weights_only=False)
        for name in ('step', 'spent', 'seen', 'collected', 'replay'): setattr(self, name, state[name])
        self.source.load_state_dict(state['source'])
        self.model.load_state_dict(state['model'])
        self.optimizer.load_state_dict(state['optimizer'])
        if self.learner: self.learner.load_state_dict(state['learner'])

    def close(self):
        for x in (self.pool, self.learner and self.learner.scorer): x and x.close()


def uniform_row(fen, tokenizer, rng):
    "A P row by the rules: None where there are fewer than five legal moves."
    legal = sorted(legal_moves(fen))
    if len(legal) < 5: return None
    moves = tuple(rng.sample(legal, 5))
    row = tokenize(policy_example(fen, moves, (0.5, 0.4, 0.3, 0.2, 0.1)), tokenizer, eval_weight=0.0)
    ids = {m: tokenizer.encode(m)[0] for m in legal}
    soft = {1 + j: [(ids[m], 1/(len(legal) - j)) for m in legal if m not in moves[:j]] for j in range(5)}
    return replace(row, soft=soft)


def measured(model, tokenizer, base, start):
    "Rows of the CSV, and the judged prompts by set."
    n, found, judged = base['questions'], [], {}
    def add(name, table): found.extend(dict(set=name, **{k: r[k] for k in ('metric', 'value', 'low', 'high', 'n')}) for r in table)
    sets = {'P held out': load_rows(base['data'], 0.0, 0, 'eval', n)[:],
            'A random games': list(islice((e for e in generate_transitions(20*n, 'claim', 'eval', ordinary=1.0) if held_out(e.fen)), n)),
            **{f'A {kind}': list(special_rows(kind, max(1, n//5), 'claim', 'eval')) for kind in ('illegal', 'mates')}}
    for name, rows in sets.items():
        judged[name] = judge_rows(model, tokenizer, rows, limits=LIMITS)
        table = summarize(judged[name])
        add(name, table[(table.slice == 'all') & table.metric.isin(SHOWN[name[0]])].to_dict('records'))
    strange = {name: list(strange_positions(name)[:base['strange']]) for name in STRANGE}
    strange['visited'] = [p.fen for p in visited_positions(start, tokenizer, base['strange'], 'claim', 'eval', base['temperature'], 512, max_new_tokens=LIMITS['P'])]
    for name, fens in strange.items():
        judged[name] = judge_by_rules(model, tokenizer, fens, LIMITS['P'])
        for metric in ('format_valid', 'legal_best', 'coherence'):
            value = float(judged[name][metric].mean())
            low, high = wilson(value, len(fens))
            add(name, [dict(metric=metric, value=value, low=low, high=high, n=len(fens))])
    judged['chain'] = right_states(model, tokenizer, base['chains'], base['chain'], max_new_tokens=LIMITS['A'])
    add('chain', [mean_run(judged['chain'])])
    return found, judged


def write(out, rows):
    new = not (out/'arms.csv').exists()
    with open(out/'arms.csv', 'a', newline='') as f:
        writer = csv.DictWriter(f, list(rows[0]), lineterminator='\n')
        if new: writer.writeheader()
        writer.writerows(rows)


def done(out):
    "Which (arm, learning rate, seed, budget) have been measured."
    if not (out/'arms.csv').exists(): return set()
    with open(out/'arms.csv', newline='') as f: return {(r['arm'], float(r['learning_rate']), int(r['seed']), float(r['budget'])) for r in csv.DictReader(f)}


def run(arm, plan, rate, seed, out):
    "Train to every budget that has not been measured yet, and measure there."
    wanted = [b for b in sorted(plan['base']['budgets']) if (arm, rate, seed, b) not in done(out)]
    if not wanted: return
    it = Run(arm, plan, rate, seed, out)
    it.restore()
    saved = it.spent
    for budget in wanted:
        while it.spent < budget:
            it.advance()
            if it.spent - saved > plan['base']['checkpoint']:
                it.save()
                saved = it.spent
        it.save()
        rows, judged = measured(it.model, it.tokenizer, plan['base'], it.start)
        for name, frame in judged.items(): frame.to_csv(it.out/f'judged-{budget:g}-{name.replace(" ", "-")}.csv', index=False, lineterminator='\n')
        write(out, [dict(arm=arm, learning_rate=rate, seed=seed, budget=budget, spent=round(it.spent, 1), steps=it.step,
                         **{k: round(v, 5) if isinstance(v, float) else v for k, v in r.items()}) for r in rows])
        print(f'{arm} {rate:g} {seed}: {it.step} steps, {it.spent:.1f} CPU-seconds, {it.spent/it.step:.2f} a step', flush=True)
    it.close()


def label_cost(base, n=100):
    "CPU-seconds of one label."
    rows = load_rows(base['data'], 0.0, 0, 'train', n)[:]
    with EnginePool(base['nodes'], workers=1) as pool:
        pool.analyse([rows[0].fen])
        began = cpu_seconds()
        pool.analyse([e.fen for e in rows[1:]])
        return (cpu_seconds() - began)/(n - 1)


def main(file, out, *arms):
    plan, out = tomllib.loads(Path(file).read_text()), Path(out)
    if unknown := plan['base'].keys() - BASE.keys(): raise SystemExit(f'[base] has no {min(unknown)}')
    plan['base'] = BASE | plan['base']
    torch.set_num_threads(plan['base']['threads'])
    out.mkdir(parents=True, exist_ok=True)
    if arms == ('label_cost',): return print(f'label_cost = {label_cost(plan["base"]):.4f}')
    for seed in plan['base']['seeds']:
        for arm in arms or plan['arms']:
            for rate in plan['arms'][arm].get('learning_rates', plan['base']['learning_rates']): run(arm, plan, rate, seed, out)


if __name__ == '__main__': main(*sys.argv[1:])
