"""Does GRPO beat supervision and rejection sampling at equal CPU? `python claim_arms.py PLAN.toml OUT STAGE [STAGE ...] [--seeds 0 ...] [--steps arms.csv]`
makes what is missing of some stages, in their order.

The plan (TOML) has a table [base] (see `BASE` in claim_plan.py), a table [stages] (seeds, budgets, which arms and rates, how much is measured) and a
table [arms], one line an arm; a run is one arm with one learning rate and one seed. All arms start from the same model, take the same
prompts in the same order, use the same optimizer (AdamW, constant after ten steps) and stop at the same CPU-seconds of this process
and the engines it started; sampling, scoring and labelling count, starting processes and measuring do not. Only where a stage has `steps`, an arm
makes as many, and its rate falls along a cosine to a tenth over them, as in `rookworld_train`: what they cost is recorded all the same. The arms of a seed run in
one process, and the one that has spent least makes the next step: a CPU-second does less on a busy machine, and so does so for all.

OUT/ARM-RATE-SEED/state.pt is where a run is, so the same command goes on after a kill; at-STAGE-BUDGET.csv there are the measures at a
budget, written at once when all of them are known; judged-STAGE-BUDGET-SET.csv the answers prompt by prompt, for paired tests.
OUT/arms.csv collects the measures. Several commands may work in one OUT, each with its `--seeds`.
`--steps` takes the number of steps at each budget from an earlier arms.csv instead of the clock: then the weights are the same bits
(column `weights`, the start of a SHA-256) on a machine of the same kind, one arm at a time (`--arms`) or all. `--device cuda` runs the same plan on a card; a second is then one of the clock on the wall, in which
the card, the CPU and the engines work side by side.
`rookworld_sweep candidates_card.toml --sampler grid` makes everything on a card.
`candidates_measured.csv` beside this file is what has been measured. `--known candidates_measured.csv` goes on from it in another OUT, and
`keep FILE.csv` in place of a stage writes such a file, with a .parquet beside it: the single answers that a verdict compares.

Kinds of arms: `labels` (rows as Stockfish labelled them; `charged` true adds `label_cost` CPU-seconds for each new position;
`python claim_arms.py PLAN.toml OUT label_cost` measures it), `rejection` (sample, keep what is coherent or, in A, right, learn it), `grpo` (all other fields are those of `TrainConfig`), `start` (no step). With `env_ratio` (and `rare_share`, `rare_twins`) `labels`, `rejection` and `grpo` meet A prompts too, as a run does."""
import argparse, contextlib, csv, hashlib, importlib.resources, io, json, os, pickle, random, resource, time
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
import torch
from rookworld_nb.apps.play import self_play, summarize_play
from rookworld_nb.chess.dataset import load_rows, parse_row, policy_example
from rookworld_nb.chess.engine import EnginePool
from rookworld_nb.chess.positions import generate_positions, position_key
from rookworld_nb.chess.synthetic import generate_transitions, special_rows
from rookworld_nb.config import TrainConfig
from rookworld_nb.files import file_sha256, write_at_once
from rookworld_nb.grpo.experience import PromptSource, collect, rollout_seed, task_counts
from rookworld_nb.grpo.step import Learner, learning_rate_at, make_optimizer, train_step
from rookworld_nb.lm.device import set_numbers
from rookworld_nb.lm.generate import generate
from rookworld_nb.lm.loader import load_model, pick_device
from rookworld_nb.measure.evaluate import judge_rows, summarize
from rookworld_nb.measure.strange import mean_run, right_states
from rookworld_nb.measure.measures import bootstrap
from rookworld_nb.measure.suites import held_out
from rookworld_nb.reward.scoring import Scorer
from rookworld_nb.run.checkpoint import only_writer
from rookworld_nb.run.pretrain import supervised_step
from rookworld_nb.run.targets import TokenRow, TokenRows, best_first, tokenize
from claim_plan import GUARDED, SCORED, collected, conclusion, keep, measures, read_plan, read_steps, run_folder, runs, take_over, verdict

RECIPE = dict(spread=0.01, legal_share=0.05, eval_weight=0.3, repeat_weight=0.5)   # of a labelled row: that of `nano` itself
LIMITS = dict(P=24, A=64)   # tokens of an answer in the chess vocabulary
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


def seconds(device):
    "What is spent so far: CPU-seconds; on a card, seconds."
    return cpu_seconds() if device == 'cpu' else time.perf_counter()


@cache
def train_rows(data, env_ratio=0.0): return load_rows(data, env_ratio, 0, 'train')


class Run:
    "One arm with one learning rate and one seed."
    def __init__(self, arm, plan, rate, seed, out, length=None):   # length: steps, after which the rate has fallen; None where it does not
        self.arm, self.base, self.rate, self.seed, self.kind = arm, plan['base'], rate, seed, plan['arms'][arm]['kind']
        fields = {k: v for k, v in plan['arms'][arm].items() if k not in ('kind', 'charged')}
        if fields.get('reward_source', 'rules') != 'rules': fields = dict(coherence_share=0.) | fields   # the default came after the plan
        self.charged, self.out = plan['arms'][arm].get('charged', False), run_folder(out, arm, rate, seed)
        self.out.mkdir(parents=True, exist_ok=True)
        self.step, self.spent, self.before, self.saved = 0, 0.0, 0.0, 0.0
        self.seen, self.replay, self.rows, self.learner = set(), [], [], None
        b = self.base
        self.config = TrainConfig(**(dict(data=b['data'], prompts_per_step=8, kl_coef=0.6, seed=seed, env_ratio=0.0, learning_rate=rate or 1e-4, warmup_steps=10, min_lr_ratio=0.1 if length else 1.0, max_steps=length or 10**6, temperature=b['temperature'],
                                          reward_source='rules', max_new_tokens=LIMITS['P'], kl_every=0, max_refills=2) | fields))    # max_refills: the default when most plans were made
        self.model, self.tokenizer = load_model(b['model'], pick_device(b['device']))
        self.start, _ = load_model(b['model'], pick_device(b['device']))
        for model in (self.model, self.start): set_numbers(model, fixed_shapes=None)      # on a GPU all arms sample, and are asked, in fixed shapes
        self.source = PromptSource(train_rows(b['data'], self.config.env_ratio), seed, rare_share=self.config.rare_share, rare_twins=self.config.rare_twins, narrow_share=self.config.narrow_share)
        if self.kind == 'grpo': self.learner = Learner(self.model, self.tokenizer, self.config)
        self.scorer, self.optimizer = Scorer('rules'), self.learner.optimizer if self.learner else make_optimizer(list(self.model.parameters()), self.config)

    def token_row(self, prompt, text): return TokenRow(self.tokenizer.encode(prompt), [*self.tokenizer.encode(text), self.tokenizer.eot])

    def labelled(self, example): return tokenize(best_first(example), self.tokenizer, **RECIPE) if example.kind == 'P' else tokenize(example, self.tokenizer)

    def prompts(self, n):
        "The next ones, of the tasks in turn."
        return [e for kind, k in task_counts(self.step, n, self.config.env_ratio).items() for e in self.source.take(kind, k)]

    def replayed(self, rows):
        "How many answers of the starting model go with so many rows; they are made once, and their making is charged."
        share = self.base['replay']
        if share and not self.replay:
            asked = PromptSource(self.source.rows['P'], 10**6 + self.seed).take('P', self.base['replay_rows'])
            for at in range(0, len(asked), 128):
                some = asked[at:at+128]
                said = generate(self.start, self.tokenizer, [e.prompt(self.tokenizer.style) for e in some], 1, LIMITS['P'], 1.0, seed=at + 10**5*self.seed)
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
        share = learning_rate_at(self.step, replace(self.config, learning_rate=1.0))
        loss, norm = supervised_step(self.model, self.optimizer, batch, [self.rate]*len(self.optimizer.param_groups), share)
        self.model.eval()
        return dict(loss=loss, grad_norm=norm, rows=len(rows), replay=len(replay))

    def labels(self):
        "S6: rows as they were labelled, by the recipe of the starting model: the best move first, softly, and a little of every legal one."
        taken = self.prompts(self.base['batch_size'])
        new = {e.fen for e in taken if e.kind == 'P'} - self.seen
        self.seen |= new
        if self.charged: self.spent += self.base['label_cost']*len(new)
        return self.learn([self.labelled(e) for e in taken])

    def rejection(self):
        "S7: sample eight answers a prompt as the R arm does, learn what is coherent or right, each answer once."
        c = self.config
        batch, _ = collect(self.model, self.tokenizer, self.prompts(c.prompts_per_step), c, rollout_seed(self.seed, self.step, 0), self.scorer)
        kept = {(batch.examples[i//c.group_size].prompt(), text) for i, (text, s) in enumerate(zip(batch.rollouts.completions, batch.scores)) if s.total == 1}
        return self.learn([self.token_row(*pair) for pair in sorted(kept)])

    def grpo(self):
        "R arms: one step of the trainer."
        row, _ = train_step(self.learner, self.source, self.step)
        return row

    def advance(self):
        "One step, charged."
        began, self.before = seconds(self.base['device']), self.spent
        self.step += 1
        found = getattr(self, self.kind)()
        self.spent += seconds(self.base['device']) - began
        self.rows.append(dict(found or {}, step=self.step, cpu_s=round(self.spent, 2)))

    def save(self):
        "Everything that the next step depends on."
        state = dict(step=self.step, spent=self.spent, before=self.before, source=self.source.state_dict(), seen=sorted(self.seen),
                     replay=[(r.prompt, r.completion) for r in self.replay], rows=self.rows,
                     model=self.model.state_dict(), optimizer=self.optimizer.state_dict(), learner=self.learner and self.learner.state_dict())
        write_at_once(self.out/'state.pt', lambda path: torch.save(state, path))
        write_at_once(self.out/'steps.jsonl', ''.join(json.dumps(row) + '\n' for row in self.rows))
        self.saved = self.spent

    def restore(self):
        "Go on where the last `save` was."
        if not (file := self.out/'state.pt').exists(): return
        try:
            state = torch.load(file, map_location='cpu', weights_only=True)
            for name in ('step', 'spent', 'before', 'rows'): setattr(self, name, state[name])
        except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError) as e:
            raise SystemExit(f'{file} cannot be read; without it this run begins again ({type(e).__name__})') from None
        self.saved = self.spent
        self.seen, self.replay = set(state['seen']), [TokenRow(*ids) for ids in state['replay']]
        self.source.load_state_dict(state['source'])
        self.model.load_state_dict(state['model'])
        self.optimizer.load_state_dict(state['optimizer'])
        if self.learner: self.learner.load_state_dict(state['learner'])

    def short_of(self, budget, steps):
        "Is there a step to make, up to a budget of CPU-seconds or up to a known step?"
        if self.kind == 'start': return False
        last = steps and steps[self.arm, self.rate, self.seed, budget]
        if self.step > last if steps else self.before >= budget:
            raise SystemExit(f'{self.out} is at step {self.step} and {self.spent:.1f} CPU-seconds, past {budget:g}, which was not measured on the way; without its state.pt it begins again')
        return self.step < last if steps else self.spent < budget

    def weights(self):
        "The start of a SHA-256 over all weights."
        h = hashlib.sha256()
        for p in self.model.state_dict().values(): h.update(p.cpu().contiguous().numpy().tobytes())
        return h.hexdigest()[:16]


# ---- the exam

def kept(file, make):
    "What `make` gives, made once for all runs of an OUT."
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_at_once(file, json.dumps(make()))
        print(f'{file.name}: sha256 {file_sha256(file)}', flush=True)
    return json.loads(file.read_text())


def fresh_fens(n, seed='claim'):
    "New positions of the kind of the shipped ones, in the eval split and not among those."
    known = {position_key(e.fen) for e in load_rows('positions', 0.0, 0, 'eval')}
    return list(islice((p.fen for p in generate_positions(10**7, seed) if held_out(p.fen) and position_key(p.fen) not in known), n))


def fresh_rows(out, base, n, seed='claim'):
    "With labels as the shipped ones have them; best move, top-5 and regret need these. One OUT has the positions of one seed."
    def make():
        with EnginePool(1000, workers=1) as pool: return [(a.fen, a.moves, a.evals) for a in pool.analyse(fresh_fens(n, seed))]
    return [policy_example(fen, tuple(moves), tuple(evals)) for fen, moves, evals in kept(out/'exam'/f'fresh-{n}.json', make)]


def a_rows(out, n, seed, kind=None):
    "Held-out rows of A: moves of random games, or of a special kind. A thousand mates take two minutes."
    def make():
        rows = special_rows(kind, n + n//5, seed, 'eval') if kind else generate_transitions(40*n, seed, 'eval', ordinary=1.0)
        return [e.prompt() + e.completion() for e in islice((e for e in rows if held_out(e.fen)), n)]
    return [parse_row(text) for text in kept(out/'exam'/f'{kind or "games"}-{seed}-{n}.json', make)]


def if_legal(judged):
    "Best move and regret among the answers whose B is legal."
    legal = judged[judged.legal_best == 1]
    for metric in ('best_move', 'regret'):
        values = legal[metric].dropna().to_numpy(float)[:, None]
        (low,), (high,) = bootstrap(values) if len(values) else ([float('nan')],)*2
        yield dict(metric=f'{metric}_if_legal', value=values.mean() if len(values) else float('nan'), low=low, high=high, n=len(values))


def exam_seed(stage): return {'fresh': 'claim', 'shipped': 'claim shipped'}.get(stage['exam'], stage['exam'])   # what a choice was made on is not asked again


def digest(texts): return hashlib.sha256('\n'.join(texts).encode()).hexdigest()[:16]


def labelled_sets(stage, base, out):
    "Name -> Examples, held out."
    if stage['P']: yield 'P', load_rows(base['data'], 0.0, 0, 'eval', stage['P'])[:] if stage['exam'] == 'shipped' else fresh_rows(out, base, stage['P'], exam_seed(stage))
    seed = exam_seed(stage)
    if n := stage['A']: yield 'A random games', a_rows(out, n, seed)
    if n := stage['special']:
        for kind in ('illegal', 'mates'): yield f'A {kind}', a_rows(out, n, seed, kind)


def measured(model, tokenizer, stage, base, out):
    "Rows of the CSV, and the judged prompts by set; their column `asked` is a hash of what was asked, with its labels."
    found, judged = [], {}
    def add(name, table): found.extend(dict(set=name, **{k: r[k] for k in ('metric', 'value', 'low', 'high', 'n')}) for r in table)
    for name, rows in labelled_sets(stage, base, out):
        judged[name] = judge_rows(model, tokenizer, rows, limits=LIMITS).assign(asked=digest([e.prompt() + e.completion() for e in rows]))
        table = summarize(judged[name])
        add(name, table[(table.slice == 'all') & table.metric.isin(SHOWN[name[0]])].to_dict('records'))
        if name == 'P': add(name, if_legal(judged[name]))
    if stage['chains']:
        judged['chain'] = right_states(model, tokenizer, stage['chains'], base['chain'], exam_seed(stage), LIMITS['A']).assign(asked=digest([f'{stage["chains"]} {base["chain"]} {exam_seed(stage)}']))
        add('chain', [mean_run(judged['chain'])])
    if stage['games']: add('self-play', summarize_play(self_play(model, tokenizer, stage['games'], world='rules', limits=LIMITS)).to_dict('records'))
    return found, judged


# ---- runs

def as_csv(rows):
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def run_seed(pairs, plan, stage, out, seed, steps=None):
    """Train some (arm, rate) of a seed to every budget of a stage, and measure each there. Who has spent least makes the next step.
    steps: (arm, rate, seed, budget) -> number, instead of the clock. Returns a sentence where another process does it."""
    left = [(arm, rate) for arm, rate in pairs if not all(f.exists() for f in measures(plan, stage, out, arm, rate, seed).values())]
    length = plan['stages'][stage]['steps']
    if length: steps = {(arm, rate, seed, budget): length[arm] for arm, rate in left if arm != 'start' for budget in plan['stages'][stage]['budgets']}
    for earlier in list(plan['stages'])[:list(plan['stages']).index(stage)]:
        for arm, rate in left:
            if arm != 'start' and seed in plan['stages'][earlier]['seeds'] and not all(f.exists() for f in measures(plan, earlier, out, arm, rate, seed).values()):
                raise SystemExit(f'the stage {stage} goes on from {earlier}, where {arm} {rate:g} {seed} has to be measured first')
    with contextlib.ExitStack() as held:
        its = []
        for arm, rate in left:
            folder = run_folder(out, arm, rate, seed)
            folder.mkdir(parents=True, exist_ok=True)
            try: held.enter_context(only_writer(folder))
            except ValueError as e:
                if 'another process' not in str(e): raise
                print(e, flush=True)
                return str(e)
            its.append(Run(arm, plan, rate, seed, out, length.get(arm)))
            its[-1].restore()
        for budget in sorted(plan['stages'][stage]['budgets']):
            going = [it for it in its if (f := measures(plan, stage, out, it.arm, it.rate, seed).get(budget)) and not f.exists()]
            while todo := [it for it in going if it.short_of(budget, steps)]:
                it = min(todo, key=lambda it: it.spent)
                it.advance()
                if it.spent - it.saved > plan['base']['checkpoint']: it.save()
            for it in going: it.save()
            for it in going: measure(it, plan, stage, budget, out)
    collected(out)


def measure(it, plan, stage, budget, out):
    rows, judged = measured(it.model, it.tokenizer, plan['stages'][stage], plan['base'], Path(out))
    for name, frame in judged.items():
        write_at_once(it.out/f'judged-{stage}-{budget:g}-{name.replace(" ", "-")}.csv', lambda path: frame.to_csv(path, index=False, lineterminator='\n'))
    about = dict(stage=stage, arm=it.arm, learning_rate=it.rate, seed=it.seed, budget=0.0 if it.kind == 'start' else budget, spent=round(it.spent, 1), steps=it.step, weights=it.weights())
    write_at_once(it.out/f'at-{stage}-{budget:g}.csv', as_csv([about | {k: round(float(v), 5) if k in ('value', 'low', 'high') else v for k, v in r.items()} for r in rows]))
    print(f'{stage}: {it.arm} {it.rate:g} {it.seed}: {it.step} steps, {it.spent:.1f} CPU-seconds, {it.spent/max(1, it.step):.2f} a step', flush=True)


def label_cost(base, n=100):
    "CPU-seconds of one label."
    rows = load_rows(base['data'], 0.0, 0, 'train', n)[:]
    with EnginePool(base['nodes'], workers=1) as pool:
        pool.analyse([rows[0].fen])
        began = cpu_seconds()
        pool.analyse([e.fen for e in rows[1:]])
        return (cpu_seconds() - began)/(n - 1)


def check_start(base):
    "Refuse another starting model than the plan's."
    file = importlib.resources.files('rookworld_nb')/'assets'/'nano'/'model.safetensors'
    if base['sha256'] and base['model'] == 'nano' and (found := file_sha256(file)) != base['sha256']:
        raise SystemExit(f'the plan was made for another nano: sha256 {base["sha256"][:12]}…, not {found[:12]}…; git log rookworld_nb/assets/nano has the commits')


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('plan')
    parser.add_argument('out', type=Path)
    parser.add_argument('stages', nargs='+', help='names of stages, or label_cost; or verdict and the name of a stage, or keep and a file')
    parser.add_argument('--seeds', nargs='*', type=int, help='only these')
    parser.add_argument('--arms', nargs='*', help='only these, where the number of steps is known; by the clock, all arms of a seed take turns')
    parser.add_argument('--steps', help='arms.csv of an earlier run')
    parser.add_argument('--known', help='what `keep` wrote of an earlier OUT: it is not made again')
    parser.add_argument('--device', default='cpu', help='where the models are: cpu, or cuda')
    asked = parser.parse_args(argv)
    plan = read_plan(asked.plan)
    plan['base'] |= dict(device=asked.device)
    check_start(plan['base'])
    torch.set_num_threads(plan['base']['threads'])
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.known: take_over(asked.out, plan, asked.known)
    if asked.stages == ['label_cost']: return print(f'label_cost = {label_cost(plan["base"]):.4f}')
    if asked.stages[0] == 'keep': return keep(asked.out, plan, asked.stages[1])
    if asked.stages[0] == 'verdict':
        found = verdict(plan, asked.stages[1], asked.out)
        return print(found.round(4).to_string(), conclusion(plan, asked.stages[1], asked.out, found).round(4).to_string(), sep='\n')
    if unknown := (set(asked.stages) - set(plan['stages'])) | (set(asked.arms or []) - set(plan['arms'])): raise SystemExit(f'the plan has no {min(unknown)}')
    if asked.arms and not asked.steps and not all(plan['stages'][s]['steps'] for s in asked.stages): raise SystemExit('--arms needs --steps: by the clock, the arms of a seed have to take turns')
    steps = asked.steps and read_steps(asked.steps)
    left = [said for stage in asked.stages for seed, pairs in runs(plan, stage, asked.out, asked.arms, asked.seeds)
            if (said := run_seed(pairs, plan, stage, asked.out, seed, steps)) and pairs[0][0] != 'start']
    if left: raise SystemExit(f'not all is made: {left[-1]}')


if __name__ == '__main__': main()
