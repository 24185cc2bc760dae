"""Does reinforcement beat every supervised control at equal CPU? `python claim_arms.py PLAN.toml OUT STAGE [STAGE ...] [--arms S1 R1 ...] [--steps arms.csv]`
makes what is missing of some stages, in their order.

The plan (TOML) has a table [base] (see `BASE`), a table [stages] (seeds, budgets, which arms and rates, how much is measured) and a
table [arms], one line an arm; a run is one arm with one learning rate and one seed. All arms start from the same model, take the same
prompts in the same order, use the same optimizer (AdamW, constant after ten steps) and stop at the same CPU-seconds of this process
and the engines it started; sampling, scoring and labelling count, starting processes and measuring do not.

OUT/ARM-RATE-SEED/state.pt is where a run is, so the same command goes on after a kill; STAGE-BUDGET.csv there are the measures at a
budget, written at once when all of them are known; judged-STAGE-BUDGET-SET.csv the answers prompt by prompt, for paired tests.
OUT/arms.csv collects the measures. Several commands may work in one OUT: a run that another one is at is left out.
`--steps` takes the number of steps at each budget from an earlier arms.csv instead of the clock: then the weights are the same bits
(column `weights`, the start of a SHA-256) on a machine of the same kind. `python claim_arms.py PLAN.toml OUT label_cost` measures that.
`claim_measured.csv` beside this file is what has been measured so far. `--known claim_measured.csv` goes on from it in another OUT, and
`keep claim_measured.csv` in place of a stage writes it anew, with a .parquet beside it: the single answers that a verdict compares.

Kinds of arms: `labels` (rows as Stockfish labelled them; `charged` true adds `label_cost` CPU-seconds for each new position),
`uniform` (the rules' labels: any legal move), `rejection` (sample, keep what is coherent, learn it), `dagger` (half of it rows, half
positions that the policy visits, labelled by Stockfish), `grpo` (all other fields are those of `TrainConfig`), `start` (no step)."""
import argparse, csv, hashlib, importlib.resources, io, json, os, random, resource, time, tomllib
from dataclasses import replace
from itertools import islice
from pathlib import Path
import numpy as np
import pandas as pd
import torch
from rookworld_nb.apps.play import self_play, summarize_play
from rookworld_nb.chess.board import START_FEN
from rookworld_nb.chess.dataset import load_rows, policy_example
from rookworld_nb.chess.engine import EnginePool
from rookworld_nb.chess.positions import generate_positions, position_key
from rookworld_nb.chess.quick_rules import legal_moves
from rookworld_nb.chess.synthetic import generate_transitions, special_rows
from rookworld_nb.config import TrainConfig
from rookworld_nb.files import file_sha256, write_at_once
from rookworld_nb.grpo.experience import PromptSource, collect, rollout_seed
from rookworld_nb.grpo.step import Learner, make_optimizer, train_step
from rookworld_nb.lm.generate import generate
from rookworld_nb.lm.loader import load_model
from rookworld_nb.measure.evaluate import judge_rows, summarize
from rookworld_nb.measure.strange import STRANGE, judge_by_rules, mean_run, right_states, strange_positions, visited_positions
from rookworld_nb.measure.measures import bootstrap, wilson
from rookworld_nb.measure.suites import held_out
from rookworld_nb.report.report import holm
from rookworld_nb.reward.scoring import Scorer
from rookworld_nb.run.checkpoint import only_writer
from rookworld_nb.run.pretrain import supervised_step
from rookworld_nb.run.targets import TokenRow, TokenRows, best_first, tokenize

BASE = dict(model='nano', sha256='',   # of the weights of nano that the plan was made for; others are refused
            data='positions', learning_rates=[1e-4], batch_size=64,
            replay=0.25,         # share of a supervised batch that the starting model wrote itself, sampled at 1
            replay_rows=512,     # of such rows, made once and charged
            label_cost=0.007,    # CPU-seconds of one label, measured with `python claim_arms.py PLAN.toml OUT label_cost`
            nodes=1000, checkpoint=60.0, chain=100, temperature=0.7, threads=1,
            margin=0.03)         # a rate that loses more than this of a guard in its stage is chosen only if all do
STAGE = dict(seeds=[0], budgets=[20.0],
             arms='all',         # or 'chosen': S1, the best other S and the best R of the stage `after`
             rates='all',        # or 'best': that of the stage `tuned`
             tuned='tuning', after='screening',
             exam='shipped',     # P prompts: the eval split of the data; or 'fresh': new ones, see `fresh_rows`
             P=1000, A=0, special=0, strange=0, chains=0, games=0)   # how many are measured
RECIPE = dict(spread=0.01, legal_share=0.05, eval_weight=0.3, repeat_weight=0.5)   # of a labelled row: that of `nano` itself
LIMITS = dict(P=24, A=64)   # tokens of an answer in the chess vocabulary
SCORED = ('legal_best', 'coherence')                              # what rates and arms are chosen by, on P
GUARDED = dict(best_move=1, top5_overlap=1, regret=-1)            # and what must not be lost there; the sign of better
SHOWN = dict(P=['format_valid', *SCORED, *GUARDED], A=['exact', 'fen_exact', 'recall_illegal', 'recall_mate'])


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
        fields = {k: v for k, v in plan['arms'][arm].items() if k not in ('kind', 'charged')}
        self.charged, self.out = plan['arms'][arm].get('charged', False), run_folder(out, arm, rate, seed)
        self.out.mkdir(parents=True, exist_ok=True)
        self.step, self.spent, self.seen, self.collected, self.replay, self.rows, self.learner = 0, 0.0, set(), [], [], [], None
        b = self.base
        self.config = TrainConfig(**(dict(seed=seed, env_ratio=0.0, learning_rate=rate or 1e-4, warmup_steps=10, min_lr_ratio=1.0, max_steps=10**6, temperature=b['temperature'],
                                          reward_source='rules', max_new_tokens=LIMITS['P'], kl_every=0, engine_workers=1, engine_nodes=b['nodes']) | fields))
        self.model, self.tokenizer = load_model(b['model'])
        self.start, _ = load_model(b['model'])
        self.source = PromptSource(load_rows(b['data'], 0.0, 0, 'train'), seed)
        if self.kind == 'grpo': self.learner = Learner(self.model, self.tokenizer, self.config)
        self.scorer, self.optimizer = Scorer('rules'), self.learner.optimizer if self.learner else make_optimizer(list(self.model.parameters()), self.config)
        self.pool = EnginePool(b['nodes'], workers=1) if self.kind == 'dagger' else self.learner and self.learner.scorer.pool
        if self.pool: self.pool.analyse([START_FEN])   # its processes start here, and are not charged

    def token_row(self, prompt, text): return TokenRow(self.tokenizer.encode(prompt), [*self.tokenizer.encode(text), self.tokenizer.eot])

    def labelled(self, example): return tokenize(best_first(example), self.tokenizer, **RECIPE)

    def replayed(self, rows):
        "How many answers of the starting model go with so many rows; they are made once, and their making is charged."
        share = self.base['replay']
        if share and not self.replay:
            asked = PromptSource(self.source.rows['P'], 10**6).take('P', self.base['replay_rows'])
            for at in range(0, len(asked), 128):
                some = asked[at:at+128]
                said = generate(self.start, self.tokenizer, [e.prompt(self.tokenizer.style) for e in some], 1, LIMITS['P'], 1.0, seed=at)
                # the ids that were drawn: one answer in fourteen has a token in the wrong place, and its text would be read as other, most unlikely, ids
                self.replay += [TokenRow(self.tokenizer.encode(e.prompt()), ids[known].tolist())
                                for e, ids, known, cut in zip(some, said.completion_ids, said.completion_mask, said.truncated.tolist()) if not cut]
        return round(rows*share/(1 - share)) if share else 0

    def learn(self, rows):
        "A supervised step on some rows and on replayed ones."
        if not rows: return
        n = self.replayed(len(rows))
        replay = random.Random(f'replay {self.seed} {self.step}').sample(self.replay, min(n, len(self.replay)))
        batch = TokenRows([*rows, *replay]).batch(torch.arange(len(rows) + len(replay)))
        self.model.train()
        loss, norm = supervised_step(self.model, self.optimizer, batch, [self.rate]*len(self.optimizer.param_groups), min(1, self.step/10))
        self.model.eval()
        return dict(loss=loss, grad_norm=norm, rows=len(rows), replay=len(replay))

    def labels(self):
        "S1, S2: rows as they were labelled, by the recipe of the starting model: the best move first, softly, and a little of every legal one."
        taken = self.source.take('P', self.base['batch_size'])
        new = {e.fen for e in taken} - self.seen
        self.seen |= new
        if self.charged: self.spent += self.base['label_cost']*len(new)
        return self.learn([self.labelled(e) for e in taken])

    def uniform(self):
        "S3: at each candidate's place any legal move not named before, B the first of them; what evaluations should be the rules do not say."
        rng = random.Random(f'uniform {self.seed} {self.step}')
        return self.learn([row for e in self.source.take('P', self.base['batch_size']) if (row := uniform_row(e.fen, self.tokenizer, rng))])

    def rejection(self):
        "S4: sample eight answers a prompt as R1 does, learn what is coherent, each answer once."
        c = self.config
        batch, _ = collect(self.model, self.tokenizer, self.source.take('P', c.prompts_per_step), c, rollout_seed(self.seed, self.step, 0), self.scorer)
        kept = {(batch.examples[i//c.group_size].prompt(), text) for i, (text, s) in enumerate(zip(batch.rollouts.completions, batch.scores)) if s.total == 1}
        return self.learn([self.token_row(*pair) for pair in sorted(kept)])

    def dagger(self):
        "S5: every 20 steps 128 positions of the policy's own games are labelled. Half of a batch are of these, half are rows as S1 has them."
        b, half = self.base, self.base['batch_size']//2
        if self.step % 20 == 1:   # eight games side by side, so that they are played on and not only begun
            met = visited_positions(self.model, self.tokenizer, 128, f'{self.seed} {self.step}', 'train', b['temperature'], 8, max_new_tokens=LIMITS['P'])
            self.collected += [(a.fen, a.moves, a.evals) for a in self.pool.analyse([p.fen for p in met])]
        some = random.Random(f'dagger {self.seed} {self.step}').choices(self.collected, k=half)
        return self.learn([self.labelled(e) for e in [*self.source.take('P', b['batch_size'] - half), *(policy_example(*row) for row in some)]])

    def grpo(self):
        "R arms: one step of the trainer."
        return train_step(self.learner, self.source, self.step)[0]

    def advance(self):
        "One step, charged."
        began = cpu_seconds()
        self.step += 1
        found = getattr(self, self.kind)()
        self.spent += cpu_seconds() - began
        self.rows.append(dict(found or {}, step=self.step, cpu_s=round(self.spent, 2)))

    def save(self):
        "Everything that the next step depends on; the answers of the engine too, so that a killed run pays for them again."
        state = dict(step=self.step, spent=self.spent, source=self.source.state_dict(), seen=sorted(self.seen), collected=self.collected,
                     replay=[(r.prompt, r.completion) for r in self.replay], rows=self.rows,
                     model=self.model.state_dict(), optimizer=self.optimizer.state_dict(), learner=self.learner and self.learner.state_dict(),
                     engine=self.pool and torch.frombuffer(bytearray(self.pool.cache.db.serialize()), dtype=torch.uint8))
        write_at_once(self.out/'state.pt', lambda path: torch.save(state, path))
        write_at_once(self.out/'steps.jsonl', ''.join(json.dumps(row) + '\n' for row in self.rows))

    def restore(self):
        "Go on where the last `save` was."
        if not (self.out/'state.pt').exists(): return
        state = torch.load(self.out/'state.pt', weights_only=True)
        for name in ('step', 'spent', 'collected', 'rows'): setattr(self, name, state[name])
        self.seen, self.replay = set(state['seen']), [TokenRow(*ids) for ids in state['replay']]
        self.source.load_state_dict(state['source'])
        self.model.load_state_dict(state['model'])
        self.optimizer.load_state_dict(state['optimizer'])
        if self.learner: self.learner.load_state_dict(state['learner'])
        if self.pool: self.pool.cache.db.deserialize(state['engine'].numpy().tobytes())

    def weights(self):
        "The start of a SHA-256 over all weights."
        h = hashlib.sha256()
        for p in self.model.state_dict().values(): h.update(p.contiguous().numpy().tobytes())
        return h.hexdigest()[:16]

    def close(self):
        if self.pool: self.pool.close()


def uniform_row(fen, tokenizer, rng):
    "A P row by the rules: None where there are fewer than five legal moves."
    legal = sorted(legal_moves(fen))
    if len(legal) < 5: return None
    moves = tuple(rng.sample(legal, 5))
    row = tokenize(policy_example(fen, moves, (0.5, 0.4, 0.3, 0.2, 0.1)), tokenizer, eval_weight=0.0)
    ids = {m: tokenizer.encode(m)[0] for m in legal}
    soft = {1 + j: [(ids[m], 1/(len(legal) - j)) for m in legal if m not in moves[:j]] for j in range(5)}
    return replace(row, soft=soft)


# ---- the exam

def kept(file, make):
    "What `make` gives, made once for all runs of an OUT."
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_at_once(file, json.dumps(make()))
        print(f'{file.name}: sha256 {file_sha256(file)}', flush=True)
    return json.loads(file.read_text())


def fresh_fens(n):
    "New positions of the kind of the shipped ones, in the eval split and not among those."
    known = {position_key(e.fen) for e in load_rows('positions', 0.0, 0, 'eval')}
    return list(islice((p.fen for p in generate_positions(10**7, 'claim') if held_out(p.fen) and position_key(p.fen) not in known), n))


def fresh_rows(out, base, n):
    "With labels as the shipped ones have them; best move, top-5 and regret need these."
    def make():
        with EnginePool(1000, workers=1) as pool: return [(a.fen, a.moves, a.evals) for a in pool.analyse(fresh_fens(n))]
    return [policy_example(fen, tuple(moves), tuple(evals)) for fen, moves, evals in kept(out/'exam'/f'fresh-{n}.json', make)]


def visited_by_start(out, base, n):
    "Positions of the eval split that the starting model visits: the same for all arms."
    def make():
        model, tokenizer = load_model(base['model'])
        return [p.fen for p in visited_positions(model, tokenizer, n, 'claim', 'eval', base['temperature'], 256, max_new_tokens=LIMITS['P'])]
    return kept(out/'exam'/f'visited-{n}.json', make)


def if_legal(judged):
    "Best move and regret among the answers whose B is legal."
    legal = judged[judged.legal_best == 1]
    for metric in ('best_move', 'regret'):
        values = legal[metric].dropna().to_numpy(float)[:, None]
        (low,), (high,) = bootstrap(values) if len(values) else ([float('nan')],)*2
        yield dict(metric=f'{metric}_if_legal', value=values.mean() if len(values) else float('nan'), low=low, high=high, n=len(values))


def labelled_sets(stage, base, out):
    "Name -> Examples, held out."
    if stage['P']: yield 'P', fresh_rows(out, base, stage['P']) if stage['exam'] == 'fresh' else load_rows(base['data'], 0.0, 0, 'eval', stage['P'])[:]
    if stage['exam'] == 'fresh' and base['published']: yield 'P published', load_rows(base['published'])[:]
    if n := stage['A']: yield 'A random games', list(islice((e for e in generate_transitions(40*n, 'claim', 'eval', ordinary=1.0) if held_out(e.fen)), n))
    if n := stage['special']:
        for kind in ('illegal', 'mates'): yield f'A {kind}', list(islice((e for e in special_rows(kind, n + n//5, 'claim', 'eval') if held_out(e.fen)), n))


def measured(model, tokenizer, stage, base, out):
    "Rows of the CSV, and the judged prompts by set."
    found, judged = [], {}
    def add(name, table): found.extend(dict(set=name, **{k: r[k] for k in ('metric', 'value', 'low', 'high', 'n')}) for r in table)
    for name, rows in labelled_sets(stage, base, out):
        judged[name] = judge_rows(model, tokenizer, rows, limits=LIMITS)
        table = summarize(judged[name])
        add(name, table[(table.slice == 'all') & table.metric.isin(SHOWN[name[0]])].to_dict('records'))
        if name == 'P': add(name, if_legal(judged[name]))
    if n := stage['strange']:
        for name, fens in {**{name: strange_positions(name)[:n] for name in STRANGE}, 'visited': visited_by_start(out, base, n)}.items():
            judged[name] = judge_by_rules(model, tokenizer, list(fens), LIMITS['P'])
            for metric in ('format_valid', *SCORED):
                value = float(judged[name][metric].mean())
                low, high = wilson(value, len(fens))
                add(name, [dict(metric=metric, value=value, low=low, high=high, n=len(fens))])
    if stage['chains']:
        judged['chain'] = right_states(model, tokenizer, stage['chains'], base['chain'], max_new_tokens=LIMITS['A'])
        add('chain', [mean_run(judged['chain'])])
    if stage['games']: add('self-play', summarize_play(self_play(model, tokenizer, stage['games'], world='rules', limits=LIMITS)).to_dict('records'))
    return found, judged


# ---- runs

def run_folder(out, arm, rate, seed): return Path(out)/f'{arm}-{rate:g}-{seed}'


def as_csv(rows):
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def collected(out):
    "All measures so far, (rows,) of a frame; and OUT/arms.csv is that."
    parts = [pd.read_csv(f) for f in sorted(Path(out).glob('*/at-*.csv'))]
    if not parts: return pd.DataFrame(columns=['stage', 'arm', 'learning_rate', 'seed', 'budget', 'steps', 'weights', 'set', 'metric', 'value'])
    table = pd.concat(parts, ignore_index=True).sort_values(['stage', 'budget', 'arm', 'learning_rate', 'seed'], kind='stable')
    write_at_once(Path(out)/'arms.csv', lambda path: table.to_csv(path, index=False, lineterminator='\n'))
    return table


def keep(out, plan, file):
    "What another OUT needs to go on: FILE, the measures; and beside it as .parquet the answers that a verdict compares, of the stages with a fresh exam."
    collected(out).to_csv(file, index=False, lineterminator='\n')
    fresh, parts = [name for name, how in plan['stages'].items() if how['exam'] == 'fresh'], []
    for where in dict.fromkeys([*PRIMARY.values(), *GUARDS.values()]):
        columns = [COLUMN.get(m, m) for m, w in {**PRIMARY, **GUARDS}.items() if w == where]
        for f in sorted(f for name in fresh for f in Path(out).glob(f'*/judged-{name}-*-{where.replace(" ", "-")}.csv')):
            parts.append(pd.read_csv(f)[columns].astype('float32').assign(run=f.parent.name, file=f.name))
    if parts: pd.concat(parts, ignore_index=True).to_parquet(Path(file).with_suffix('.parquet'), compression='zstd', index=False)


def take_over(out, plan, table):
    "What `keep` wrote of an earlier OUT is not made again. States are not in there."
    answers = Path(table).with_suffix('.parquet')
    for (run, file), rows in pd.read_parquet(answers).groupby(['run', 'file'], sort=False) if answers.exists() else ():
        (Path(out)/run).mkdir(parents=True, exist_ok=True)
        if not (Path(out)/run/file).exists(): rows.drop(columns=['run', 'file']).to_csv(Path(out)/run/file, index=False)
    for (stage, budget, arm, rate, seed), rows in pd.read_csv(table).groupby(['stage', 'budget', 'arm', 'learning_rate', 'seed'], sort=False):
        if stage not in plan['stages']: continue
        file = run_folder(out, arm, rate, seed)/f'at-{stage}-{budget or min(plan["stages"][stage]["budgets"]):g}.csv'
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists(): write_at_once(file, lambda path: rows.to_csv(path, index=False, lineterminator='\n'))


def run(arm, plan, rate, seed, stage, out, steps=None):
    "Train to every budget of a stage that has not been measured yet, and measure there; steps: (arm, rate, seed, budget) -> number, instead of the clock."
    how, folder = plan['stages'][stage], run_folder(out, arm, rate, seed)
    files = {b: folder/f'at-{stage}-{b:g}.csv' for b in sorted(how['budgets']) if arm != 'start' or b == min(how['budgets'])}
    if all(f.exists() for f in files.values()): return
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with only_writer(folder): _run(arm, plan, rate, seed, stage, out, files, steps)
    except ValueError as e:
        if 'another process' not in str(e): raise
        print(e, flush=True)


def _run(arm, plan, rate, seed, stage, out, files, steps):
    it = Run(arm, plan, rate, seed, out)
    it.restore()
    saved = it.spent
    for budget, file in files.items():
        while arm != 'start' and (it.step < steps[arm, rate, seed, budget] if steps else it.spent < budget):
            it.advance()
            if it.spent - saved > plan['base']['checkpoint']:
                it.save()
                saved = it.spent
        if file.exists(): continue
        it.save()
        rows, judged = measured(it.model, it.tokenizer, plan['stages'][stage], plan['base'], Path(out))
        for name, frame in judged.items(): frame.to_csv(it.out/f'judged-{stage}-{budget:g}-{name.replace(" ", "-")}.csv', index=False, lineterminator='\n')
        about = dict(stage=stage, arm=arm, learning_rate=rate, seed=seed, budget=0.0 if arm == 'start' else budget, spent=round(it.spent, 1), steps=it.step, weights=it.weights())
        write_at_once(file, as_csv([about | {k: round(float(v), 5) if k in ('value', 'low', 'high') else v for k, v in r.items()} for r in rows]))
        print(f'{stage}: {arm} {rate:g} {seed}: {it.step} steps, {it.spent:.1f} CPU-seconds, {it.spent/max(1, it.step):.2f} a step', flush=True)
    it.close()
    collected(out)


# ---- what a stage runs

def standing(table, stage, arm, rate, margin):
    "How good a rate of an arm is in a stage, to be compared: are its guards kept, then the mean of `SCORED`; else how little is lost. At the largest budget."
    def mean(who):
        part = table[(table.stage == stage) & (table['set'] == 'P') & who]
        return part[part.budget == part.budget.max()].groupby('metric').value.mean()
    now, start = mean((table.arm == arm) & (table.learning_rate == rate)), mean(table.arm == 'start')
    if now.empty or start.empty: raise SystemExit(f'the stage {stage} has to be complete first: nothing of {"start" if start.empty else arm}')
    lost = max(sign*(start[m] - now[m]) for m, sign in GUARDED.items())
    return (1, sum(now[m] for m in SCORED)/len(SCORED)) if lost <= margin else (0, -lost)


def best_rate(table, stage, arm, base):
    "The rate with the highest standing; of equals the lowest."
    rates = sorted(table[(table.stage == stage) & (table.arm == arm)].learning_rate.unique().tolist())   # plain numbers: a state with others is not read again
    if rates != sorted(base['learning_rates']): raise SystemExit(f'the stage {stage} has to be complete first: {arm} has rates {rates}')
    return max(rates, key=lambda r: (standing(table, stage, arm, r, base['margin']), -r))


def chosen(table, stage, plan):
    "S1, the best other S and the best R."
    def best(letter):
        arms = [a for a in plan['arms'] if a[0] == letter and a != 'S1']
        return max(arms, key=lambda a: standing(table, stage, a, best_rate(table, plan['stages'][stage]['tuned'], a, plan['base']), plan['base']['margin']))
    return ['S1', best('S'), best('R')]


def runs(plan, stage, out, arms=None):
    "(arm, rate, seed) of a stage, in order: the start, then seed by seed."
    how, base = plan['stages'][stage], plan['base']
    named = [a for a in plan['arms'] if plan['arms'][a]['kind'] != 'start'] if how['arms'] == 'all' else chosen(collected(out), how['after'], plan)
    yield 'start', 0.0, 0
    for seed in how['seeds']:
        for arm in named:
            if arms and arm not in arms: continue
            for rate in base['learning_rates'] if how['rates'] == 'all' else [best_rate(collected(out), how['tuned'], arm, base)]: yield arm, rate, seed


def label_cost(base, n=100):
    "CPU-seconds of one label."
    rows = load_rows(base['data'], 0.0, 0, 'train', n)[:]
    with EnginePool(base['nodes'], workers=1) as pool:
        pool.analyse([rows[0].fen])
        began = cpu_seconds()
        pool.analyse([e.fen for e in rows[1:]])
        return (cpu_seconds() - began)/(n - 1)


# ---- what follows

PRIMARY = dict(legal_best='P', coherence='P', right_states='chain')
GUARDS = dict(best_move='P', top5_overlap='P', regret='P', exact='A random games', recall_illegal='A illegal', recall_mate='A mates')
COLUMN = dict(right_states='right')   # of a judged file, where it is not the name of the metric


def answers(out, stage, budget, arm, rate, seeds, metric, where):
    "One value a prompt, (seeds, n); the start is the same for all seeds."
    folders = [run_folder(out, arm, rate, s) for s in (seeds if arm != 'start' else [0])]
    name = f'judged-{stage}-{budget:g}-{where.replace(" ", "-")}.csv'
    found = np.array([pd.read_csv(f/name)[COLUMN.get(metric, metric)].to_numpy(float) for f in folders])
    return np.broadcast_to(found, (len(seeds), found.shape[1]))


def paired(d, family=1, resamples=4000):
    "Mean of the differences (seeds, n), NaN where nothing was asked; a bootstrap over seeds and prompts gives the interval, 95 % for a whole family, and p."
    rng, known, d = np.random.default_rng(0), ~np.isnan(d), np.nan_to_num(d)
    means = []
    for _ in range(resamples//250):
        seeds, prompts = (rng.multinomial(k, np.full(k, 1/k), 250) for k in d.shape)
        means.append(np.einsum('bn,bn->b', seeds @ d, prompts)/np.einsum('bn,bn->b', seeds @ known.astype(float), prompts))
    means = np.concatenate(means)
    low, high = np.quantile(means, [0.025/family, 1 - 0.025/family])
    p = min(1, 2*(1 + min((means <= 0).sum(), (means >= 0).sum()))/(1 + len(means)))
    return dict(difference=d.sum()/known.sum(), low=low, high=high, p=p, seeds_ahead=int((d.sum(1) > 0).sum()))


def verdict(plan, stage, out):
    "The best R arm against every S arm of a stage on the primaries, `holm` where the difference stands among all of them; and against the start on the guards."
    how, base, table, found = plan['stages'][stage], plan['base'], collected(out), []
    arms = chosen(table, how['after'], plan)
    rates, first = {a: best_rate(table, how['tuned'], a, base) for a in arms} | dict(start=0.0), min(how['budgets'])
    def values(budget, arm, metric, where): return answers(out, stage, first if arm == 'start' else budget, arm, rates[arm], how['seeds'], metric, where)
    for budget in how['budgets']:
        part, pairs = [], [(m, w, arm) for m, w in PRIMARY.items() for arm in arms[:-1]]
        for metric, where, arm in [*pairs, *((m, w, 'start') for m, w in {**PRIMARY, **GUARDS}.items())]:
            family = len(pairs) if arm != 'start' else 1
            part.append(dict(budget=budget, arm=arms[-1], against=arm, metric=metric) | paired(values(budget, arms[-1], metric, where) - values(budget, arm, metric, where), family))
        part = pd.DataFrame(part)
        found.append(part.assign(holm=holm(part.p.where(part.index < len(pairs)))))
    found = pd.concat(found, ignore_index=True)
    write_at_once(Path(out)/f'verdict-{stage}.csv', lambda path: found.round(5).to_csv(path, index=False, lineterminator='\n'))
    return found


def read_plan(file):
    plan = tomllib.loads(Path(file).read_text())
    for table, known in [(plan['base'], BASE), *((s, STAGE) for s in plan['stages'].values())]:
        if unknown := table.keys() - known.keys(): raise SystemExit(f'the plan has an unknown line {min(unknown)}')
    return dict(base=BASE | dict(published='') | plan['base'], stages={name: STAGE | s for name, s in plan['stages'].items()}, arms=dict(start=dict(kind='start')) | plan['arms'])


def check_start(base):
    "Refuse another starting model than the plan's."
    file = importlib.resources.files('rookworld_nb')/'assets'/'nano'/'model.safetensors'
    if base['sha256'] and base['model'] == 'nano' and (found := file_sha256(file)) != base['sha256']:
        raise SystemExit(f'the plan was made for another nano: sha256 {base["sha256"][:12]}…, not {found[:12]}…')


def read_steps(file):
    return {(r.arm, r.learning_rate, r.seed, r.budget): r.steps for r in pd.read_csv(file).itertuples()}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('plan')
    parser.add_argument('out', type=Path)
    parser.add_argument('stages', nargs='+', help='names of stages, or label_cost; or verdict and the name of a stage, or keep and a file')
    parser.add_argument('--arms', nargs='*', help='only these')
    parser.add_argument('--published', default='', help='a file of published rows, asked as it is where the exam is fresh')
    parser.add_argument('--steps', help='arms.csv of an earlier run')
    parser.add_argument('--known', help='what `keep` wrote of an earlier OUT: it is not made again')
    asked = parser.parse_args(argv)
    plan = read_plan(asked.plan)
    plan['base']['published'] = asked.published
    check_start(plan['base'])
    torch.set_num_threads(plan['base']['threads'])
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.stages == ['label_cost']: return print(f'label_cost = {label_cost(plan["base"]):.4f}')
    if asked.stages[0] == 'keep': return keep(asked.out, plan, asked.stages[1])
    if asked.stages[0] == 'verdict': return print(verdict(plan, asked.stages[1], asked.out).round(4).to_string())
    if unknown := (set(asked.stages) - set(plan['stages'])) | (set(asked.arms or []) - set(plan['arms'])): raise SystemExit(f'the plan has no {min(unknown)}')
    steps = asked.steps and read_steps(asked.steps)
    if asked.known: take_over(asked.out, plan, asked.known)
    for stage in asked.stages:
        for arm, rate, seed in runs(plan, stage, asked.out, asked.arms): run(arm, plan, rate, seed, stage, asked.out, steps)


if __name__ == '__main__': main()
