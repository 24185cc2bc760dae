"""Every choice reaches the formula it is meant for: values so unequal that a swap, a sign or a
factor shows, at the place where the choice is read."""
import inspect
import json
import math
from dataclasses import asdict, replace
from types import SimpleNamespace
from unittest.mock import patch
import numpy as np
import pytest
import torch
from rookworld_nb.apps import cli, play
from rookworld_nb.measure import evaluate, exam
from rookworld_nb.chess import unlabelled
from rookworld_nb.grpo import experience, ranks, step as learning
from rookworld_nb.run import held_out, recovery
from rookworld_nb.run.train import train
from rookworld_nb.config import EvalConfig, TrainConfig
from rookworld_nb.task import TaskError
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.grpo.experience import PromptSource, StepFacts, collect, gather
from rookworld_nb.fast.generate import completion_logits
from rookworld_nb.lm.loader import save_model
from rookworld_nb.lm.model import GPT, PRESETS
from rookworld_nb.lm.plain import uniform_draws
from rookworld_nb.chess.quick_rules import legal_moves
from rookworld_nb.reward.reward_scorer import WEIGHTS, parse_weights, score
from rookworld_nb.reward.scoring import Scorer, make_scorer
from rookworld_nb.grpo.step import Learner, Targets, backward_pass, make_targets, train_step, update
from rookworld_nb.chess.tasks import EnvTask, PolicyAnswer
from rookworld_nb.lm.tokenizer import load_tokenizer
from rookworld_nb.grpo.value import gae
from runs import some_positions

TOKENIZER = load_tokenizer('chess')
ROWS = load_rows('positions', 0.5, 0, 'train', 40)[:]
CONFIG = TrainConfig(env_temperature=None, data='positions', kl_coef=0.0, prompts_per_step=2,
                     group_size=4, env_ratio=0.5, max_new_tokens=12, temperature=0.3,
                     learning_rate=1e-2, warmup_steps=0, dynamic_sampling=False,
                     mask_truncated=False, min_lr_ratio=1.0, grad_clip=1e9, threads=1, device='cpu')
# two groups whose means and stds differ
REWARDS = torch.tensor([[0.0, 0.1, 0.2, 0.3], [-0.3, 1.0, 0.4, 1.0]])


def tiny():
    torch.manual_seed(0)
    model = GPT(replace(PRESETS['tiny'], vocab_size=TOKENIZER.vocab_size, n_positions=192)).eval()
    with torch.no_grad(): model.wte.weight.mul_(8)      # far from uniform
    return model


def made(seed=3, **choices):
    """A learner, and an experience whose completions have unequal lengths and whose rewards are
    those above."""
    config = replace(CONFIG, **choices)
    learner, examples = Learner(tiny(), TOKENIZER,
                                config), [next(r for r in ROWS if r.kind == kind) for kind in 'PA']
    batch, _ = collect(learner.model, TOKENIZER, examples, config, seed)
    mask = torch.arange(batch.rollouts.completion_ids.shape[1]) < torch.tensor(
        [[12, 3, 5, 9, 2, 12, 7, 4]]).T
    batch.rollouts = replace(batch.rollouts, completion_mask=mask,
                             logprobs=batch.rollouts.logprobs*mask)
    batch.rewards = REWARDS.clone()
    return learner, batch


def updated(learner, batch):
    "What a step measures that learns from this batch."
    targets, found = make_targets(learner, batch, 2)
    return StepFacts(2, **found, **update(learner, batch, targets, 2))


class Spy:
    """Stands for a function, works like it, and remembers every call: name of a parameter -> what
    was given."""
    def __init__(self, module, name):
        self.work, self.calls = getattr(module, name), []
        self.patch = patch.object(module, name, self)

    def __call__(self, *args, **kw):
        given = inspect.signature(self.work).bind(*args, **kw)
        given.apply_defaults()
        self.calls.append(given.arguments | given.kwargs)   # and what **more takes, by its names
        return self.work(*args, **kw)

    def __enter__(self):
        self.patch.start()
        return self

    def __exit__(self, *_): self.patch.stop()
    def given(self, name): return [c[name] for c in self.calls]


# ---- sampling

def test_max_new_tokens_and_settings_reach_the_sampler():
    config = replace(CONFIG, max_new_tokens=7, temperature=0.3, env_temperature=1.7, top_k=3,
                     top_p=0.6)
    examples = [next(r for r in ROWS if r.kind == kind) for kind in 'PA']
    with Spy(experience, 'generate') as spy: found, _ = collect(tiny(), TOKENIZER, examples, config, 11)
    assert found.rollouts.completion_ids.shape[1] <= 7
    assert {
        k: spy.given(k)
        for k in ('max_new_tokens', 'group_size', 'seed', 'temperature', 'top_k', 'top_p')
    } == dict(max_new_tokens=[7], group_size=[4], seed=[11], temperature=[[0.3, 1.7]],
              top_k=[[3, 3]], top_p=[[0.6, 0.6]])


BOUNDS = dict(max_new_tokens=5, env_max_new_tokens=11)   # so unequal that a swap shows
ASKED = dict(P=5, A=11)


def test_each_task_is_sampled_to_its_own_length():
    config, examples = replace(
        CONFIG, **BOUNDS), [next(r for r in ROWS if r.kind == kind) for kind in 'APPA']
    with Spy(experience, 'generate') as spy: found, _ = collect(tiny(), TOKENIZER, examples, config, 11)
    lengths = found.rollouts.completion_mask.sum(1)
    assert spy.given('limits') == [[11, 5, 5, 11]] and lengths.view(
        4, 4).max(1).values.tolist() == [11, 5, 5, 11]


@pytest.mark.parametrize('bounds, longest', [(BOUNDS, 11),
                                             (dict(max_new_tokens=11, env_max_new_tokens=5), 11),
                                             (dict(max_new_tokens=7), 7)])
def test_the_loss_divides_by_the_longer_of_both_lengths(bounds, longest):
    learner = Learner(tiny(), TOKENIZER, replace(CONFIG, **bounds))
    batch, _ = collect(learner.model, TOKENIZER,
                       [next(r for r in ROWS if r.kind == kind) for kind in 'PA'], learner.config,
                       3)
    batch.rewards = REWARDS.clone()
    with Spy(learning, 'loss_denominator') as spy: updated(learner, batch)
    assert spy.given('max_length') == [longest]


def test_a_bound_that_is_not_reached_changes_nothing():
    "Neither the samples of a task nor the loss, whichever task the bound is of."
    learner, _ = made()
    examples = [next(r for r in ROWS if r.kind == kind) for kind in 'PA']
    plain, _ = collect(learner.model, TOKENIZER, examples, CONFIG, 3)
    for bound in (3, 12, 30):
        other, _ = collect(learner.model, TOKENIZER, examples,
                           replace(CONFIG, env_max_new_tokens=bound), 3)
        assert other.rollouts.completions[:4] == plain.rollouts.completions[:4]
        both = min(bound, 12)
        assert all(
            torch.equal(a[:both][m[:both]], b[:both][m[:both]])
            for a, b, m in zip(plain.rollouts.completion_ids[4:], other.rollouts.completion_ids[4:],
                               plain.rollouts.completion_mask[4:]))


def test_no_two_steps_runs_or_refills_share_their_noise():
    with Spy(experience, 'generate') as spy:
        for seed in (0, 1):
            for step in (1, 2, 3):
                gather(
                    tiny(), TOKENIZER, PromptSource(ROWS),
                    replace(CONFIG, seed=seed, dynamic_sampling=True, max_refills=2,
                            max_new_tokens=1), step)
    # a token is no answer, all rewards are equal, so there are refills
    assert len(set(spy.given('seed'))) == len(spy.calls) > 6


# ---- the loss

def test_clips_reach_the_loss():
    learner, batch = made(clip_low=0.1, clip_high=0.7, loss_type='grpo')
    with Spy(learning, 'policy_loss') as spy: updated(learner, batch)
    assert set(spy.given('clip')) == {(0.1, 0.7)}


def gradient_free_loss(**choices):
    learner, batch = made(**choices)
    r = batch.rollouts
    return backward_pass(learner, r, Targets(torch.zeros(8), 0.0), 8*12,
                         int(r.completion_mask.sum()))


def test_the_entropy_bonus_is_a_bonus():
    plain, paid = gradient_free_loss(), gradient_free_loss(entropy_coef=0.5)
    assert plain.entropy_nats > 1
    assert paid.loss - plain.loss == pytest.approx(-0.5 * plain.entropy_nats / (8*12), rel=1e-4)


def test_the_logged_entropy_is_that_of_the_sampler():
    learner, batch = made(temperature=0.3)
    r = batch.rollouts
    with torch.no_grad(): p = (completion_logits(learner.model, r) / 0.3).double().softmax(-1)
    by_hand = -(p * p.clamp(min=1e-300).log()).sum(-1)[r.completion_mask].mean().item()
    logged = updated(learner, batch).entropy_nats
    assert logged == pytest.approx(by_hand, rel=1e-4)


def test_the_norm_that_is_clipped_has_every_gradient():
    learner, batch = made(baseline='value', grad_clip=0.01)
    with Spy(torch.nn.utils, 'clip_grad_norm_') as spy: facts = updated(learner, batch)
    clipped, = spy.calls
    assert {id(p)
            for p in clipped['parameters']} >= {
                id(p)
                for p in [*learner.model.parameters(), *learner.value_head.parameters()]
            } and clipped['max_norm'] == 0.01
    assert math.hypot(*(p.grad.norm().item()
                        for p in learner.parameters() if p.grad is not None)) == pytest.approx(
                            0.01, rel=1e-3) and facts.grad_norm > 0.01


# ---- the value head

def test_gamma_lambda_and_the_scale_reach_the_advantages():
    learner, batch = made(baseline='value', gamma=0.9, gae_lambda=0.4, advantage_scale='batch')
    with torch.no_grad():
        learner.value_head.linear.weight.normal_(generator=torch.Generator().manual_seed(1))
    with Spy(learning, 'gae') as spy: targets, _ = make_targets(learner, batch, 2)
    first = spy.calls[0]
    assert (first['gamma'], first['lam']) == (0.9, 0.4)
    raw, _ = gae(first['rewards'], first['values'], first['mask'], 0.9, 0.4)
    assert torch.allclose(targets.advantages, raw/(REWARDS.std() + 1e-4),
                          atol=1e-5) and not torch.allclose(targets.advantages, raw, atol=0.1)


# ---- the KL

def test_kl_per_token_and_per_sequence():
    learner, batch = made(kl_coef=0.1)
    with torch.no_grad(): learner.reference.wte.weight.mul_(1.3)
    r = batch.rollouts
    facts = updated(learner, batch)
    with torch.no_grad():
        p, q = ((completion_logits(m, r)/0.3).double().log_softmax(-1)
                for m in (tiny(), learner.reference))
    total = (p.exp() * (p - q)).sum(-1)[r.completion_mask].sum().item()
    assert total > 1
    assert facts.kl_nats_per_sequence == pytest.approx(
        total/8, rel=1e-3) and facts.kl_nats_per_token == pytest.approx(total/54, rel=1e-3)


def test_the_controller_is_told_completions_and_the_reference_is_refreshed_in_time():
    learner, mixed = Learner(
        tiny(), TOKENIZER,
        replace(CONFIG, kl_coef=0.1, kl_controller='ziegler', reference_refresh_steps=3)), []
    with Spy(learner.kl, 'update') as told, patch.object(learning, 'mix_reference',
                                                         lambda *args: mixed.append((step, *args))):
        for step in range(1, 8):
            # where policy and reference are equal the gradient is exactly 0
            if step == 2: learner.reference.wte.weight.data.mul_(1.3)
            row, _ = train_step(learner, PromptSource(ROWS), step)
    assert told.given('completions') == [8]*7 and told.given('step') == list(range(1, 8))
    assert told.given(
        'kl_nats_per_sequence')[-1] == row['kl_nats_per_sequence'] != row['kl_nats_per_token']
    assert mixed == [(step, learner.reference, learner.model, 0.6) for step in (3, 6)]


def test_numbers_that_are_handed_on_when_a_run_begins():
    learner = Learner(
        tiny(), TOKENIZER,
        replace(CONFIG, kl_coef=0.11, kl_controller='ziegler', kl_target=2.5, kl_warmup_steps=3,
                kl_warmup_factor=0.4, ema_momentum=0.37, learning_rate=0.003, weight_decay=0.07,
                micro_batch_size=5))
    k, (matrices, vectors) = learner.kl, learner.optimizer.param_groups
    assert (k.kind, k.coef, k.target, k.horizon, k.low, k.high, k.warmup_steps,
            k.warmup_factor) == ('ziegler', 0.11, 2.5, 10_000, 1e-5, 10.0, 3, 0.4)
    assert (learner.reward_moments.momentum, learner.baseline_moments.momentum, learner.micro_batch_size) == (0.37, 0.37, 5)
    assert (matrices['lr'], matrices['weight_decay'], vectors['weight_decay']) == (0.003, 0.07, 0)
    scorer = make_scorer(
        replace(CONFIG, reward_source='row', reward_shaping='linear', reward_weights='regret=0.9',
                reward_warmup_steps=7))
    assert (scorer.source, scorer.shaping, scorer.weights,
            scorer.warmup_steps) == ('row', 'linear', parse_weights('regret=0.9'), 7)


def test_weights_of_the_parts_of_the_loss():
    learner, batch = made(baseline='value', kl_coef=0.7, entropy_coef=0.2, loss_type='dr_grpo')
    with torch.no_grad():
        learner.value_head.linear.weight.normal_(generator=torch.Generator().manual_seed(1))
    with torch.no_grad(): learner.reference.wte.weight.mul_(1.3)
    r, (targets, _) = batch.rollouts, make_targets(learner, batch, 2)
    with Spy(learning, 'policy_loss') as policy, Spy(learning, 'value_loss') as value:
        sums = backward_pass(learner, r, targets, 8*12, 54)
    given = value.calls[0]
    assert (given['clip'], given['old_values'] is targets.values, given['returns']
            is targets.returns) == (0.2, True, True)
    own = learning.policy_loss(**policy.calls[0])[0].item()
    assert sums.loss == pytest.approx(
        own + 0.7*sums.kl_nats/96 - 0.2*sums.entropy_nats/96 + 0.1*sums.value_loss, rel=1e-4)
    assert min(map(abs, (sums.kl_nats, sums.entropy_nats, sums.value_loss))) > 1e-3


# ---- the scorer

def test_castling_and_en_passant_have_their_own_receipts():
    task = EnvTask('r3k2r/8/8/8/8/8/4P3/R3K2R w KQkq - 3 5', 'e2e4', 'e2e4')
    right = 'r3k2r/8/8/8/4P3/8/8/R3K2R b KQkq - 0 5+0.001+0+0'
    assert score(task.prompt(), right).total == 1
    wrong = {
        'castling': right.replace('KQkq', 'KQ'), 'en passant': right.replace('KQkq -', 'KQkq e3')
    }
    for name, text in wrong.items():
        parts = score(task.prompt(), text).parts
        assert {n: parts[n]
                for n in wrong
                } == pytest.approx({n: 0 if n == name else WEIGHTS['A'][n]
                                    for n in wrong})


def test_an_unlisted_move_is_worth_no_more_than_the_worst_listed():
    row = next(r for r in ROWS if r.kind == 'P' and len(r.target.moves) == 5)
    moves, evals = row.target.moves[:2], (0.5, -0.4)
    best = next(m for m in sorted(legal_moves(row.fen)) if m not in row.target.moves)
    pool = SimpleNamespace(
        restarts=0,
        analyse=lambda fens: [SimpleNamespace(fen=fen, moves=moves, evals=evals) for fen in fens],
        values=lambda pairs: [9.0 for _ in pairs])
    text = PolicyAnswer(moves, evals, best).text()
    found, = Scorer('engine', pool=pool).score([row], [text])
    at = lambda value: score(row.prompt(), text, PolicyAnswer(moves, evals, moves[0]), values=
                             {best: value}).total
    assert found.total == at(-0.4) < at(9.0) - 0.005


# ---- evaluation

def test_the_mean_over_samples_counts_not_the_first():
    part = [next(r for r in ROWS if r.kind == kind) for kind in 'PA']
    bad = [['?'] for r in part]
    three = evaluate.judge_texts(part, [[r.completion(), '?', '?'] for r in part])
    worth = lambda frame, task: evaluate.summarize(frame, 50).set_index(['task', 'slice', 'metric']).value[task, 'all', 'reward']
    for task in 'PA': assert worth(three, task) == pytest.approx((1 + 2*worth(evaluate.judge_texts(part, bad), task)) / 3)
    change = evaluate.compare(evaluate.judge_texts(part, bad), three,
                              50).set_index(['task', 'slice', 'metric']).loc['P', 'all', 'reward']
    assert change.difference == pytest.approx(
        worth(three, 'P') - worth(evaluate.judge_texts(part, bad), 'P'))


def test_the_seed_of_an_evaluation_reaches_the_sampler():
    model = tiny()
    with Spy(evaluate, 'generate') as spy:
        said = [
            evaluate.judge_rows(model, TOKENIZER, ROWS[:4], temperature=1.0, seed=seed,
                                batch_size=3).completion.tolist() for seed in (5, 5, 6)
        ]
    assert spy.given('seed') == [5, 8, 5, 8, 6, 9] and said[0] == said[1] != said[2]
    settings = dict(temperature=dict(P=0.2, A=0.9), top_k=dict(P=3, A=0), top_p=dict(P=0.5, A=0.8))
    with Spy(evaluate, 'generate') as spy:
        evaluate.judge_rows(model, TOKENIZER, [next(r for r in ROWS if r.kind == k) for k in 'PA'],
                            **settings)
    assert {k: spy.given(k)
            for k in settings} == dict(temperature=[[0.9, 0.2]], top_k=[[0, 3]],
                                            top_p=[[0.8, 0.5]])


def test_the_choices_of_an_exam_reach_the_sampler():
    config = EvalConfig(seed=9, temperature=0.7, batch_size=17, **BOUNDS)
    with patch.object(exam, 'load_model', lambda *args:
                      (tiny(), TOKENIZER)), Spy(exam, 'judge_rows') as spy:
        exam.model_answers(config, 'any', ROWS[:2])
    asked, = spy.calls
    assert (asked['how'].temperature, asked['how'].seed, asked['batch_size'],
            asked['limits']) == (0.7, 9, 17, ASKED)


def test_each_task_is_evaluated_at_its_own_length():
    examples, log = [next(r for r in ROWS if r.kind == kind)
                     for kind in 'PAP'], SimpleNamespace(append=lambda name, rows: None)
    with Spy(evaluate, 'generate') as spy:
        evaluate.judge_rows(tiny(), TOKENIZER, examples, limits=ASKED)
    assert spy.given('limits') == [[11, 5, 5]]                                   # A comes first
    with Spy(evaluate, 'judge_rows') as spy: evaluate.evaluate(tiny(), TOKENIZER, examples, limits=ASKED)
    assert spy.given('limits') == [ASKED]
    with Spy(held_out, 'judge_rows') as spy:
        held_out.evaluate_run(tiny(), TOKENIZER, examples, log, 0, replace(CONFIG, **BOUNDS))
    assert spy.given('limits') == [ASKED]*3


def test_self_play_asks_each_task_at_its_own_length(monkeypatch):
    for name in ('load_model', 'pick_device'):
        monkeypatch.setattr(f'rookworld_nb.lm.loader.{name}', lambda *args: (tiny(), TOKENIZER))
    with Spy(play, 'self_play') as spy, Spy(play, 'generate') as asked: cli._played('any', EvalConfig(games=1, **BOUNDS))
    assert spy.given('limits') == [ASKED]*2 and set(map(tuple, asked.given('limits'))) == {(5,)}
    with patch.object(play.Game, 'hear_move',
                      lambda self, text: self.moves.append('e2e4')), Spy(play, 'generate') as asked:
        play.self_play(tiny(), TOKENIZER, games=2, limits=ASKED)
    assert [(c['prompts'][0][0], c['limits']) for c in asked.calls[:2]] == [('P', [5, 5]),
                                                                            ('A', [11, 11])]
    with Spy(play, 'generate') as asked:
        play.play_move(tiny(), TOKENIZER, ROWS[0].fen, max_new_tokens=9)
    assert asked.given('max_new_tokens') == [9]


# ---- a whole run

def test_before_is_before_and_everybody_is_asked_alike(tmp_path):
    """Garbage before the first step, the truth after the last: the comparison says so, and which
    way each evaluation sampled."""
    save_model(tiny(), TOKENIZER, tmp_path/'tiny')
    config = replace(CONFIG, model=str(tmp_path/'tiny'), data=some_positions(tmp_path, 800),
                     output_dir=str(tmp_path/'run'), seed=5, max_steps=1, temperature=0.3,
                     env_temperature=0.6, top_k=4, eval_prompts=20, max_new_tokens=2,
                     env_max_new_tokens=3)
    asked = []

    def answers(model, tokenizer, rows, temperature, top_k, top_p, limits, vocabulary, seed=0):
        assert limits == dict(P=2, A=3)
        asked.append((seed, {k: (temperature[k], top_k[k]) for k in temperature}))
        return evaluate.judge_texts(rows,
                                    [['?' if len(asked) <= 3 else r.completion()] for r in rows])
    with patch.object(held_out, 'judge_rows', answers): out = train(config)
    # the same samples for every seed of a run
    assert asked == [(0, dict.fromkeys('PA', (0.0, 0))), (0, dict.fromkeys('PA', (1.0, 0))), (0, dict(P=(0.3, 4), A=(0.6, 4)))] * 2
    rows = [r for r in json.loads((out/'comparison.json').read_text()) if (r['metric'], r['slice']) == ('reward', 'all')]
    assert len(rows) == 9 and {r['decoding'] for r in rows} == {'greedy', 'sampled', 'tempered'}
    for r in rows: assert r['before'] < 0 < r['after'] == 1 and r['difference'] == pytest.approx(1 - r['before']) and 0.1 < r['trivial'] < 0.5


@pytest.mark.parametrize('tokens', [pytest.param(144, marks=pytest.mark.slow), 12])
def test_a_run_from_before_the_second_length_goes_on_as_it_was(tmp_path, tokens):
    "Its files do not know the field. Two steps in one go, or one and one more: the same weights."
    save_model(tiny(), TOKENIZER, tmp_path/'tiny')
    # its answers all earn the same
    config = replace(CONFIG, model=str(tmp_path/'tiny'), data=some_positions(tmp_path), max_new_tokens=tokens, eval_prompts=4, entropy_coef=0.1)
    def weights(out): return (sorted(out.glob('checkpoints/step-*'))[-1]/'model.safetensors').read_bytes()
    whole = train(replace(config, max_steps=2, output_dir=str(tmp_path/'whole')))
    def older(c): return {k: v for k, v in asdict(c).items() if k != 'env_max_new_tokens'}
    with patch.object(recovery, 'asdict', older): out = train(replace(config, max_steps=1, output_dir=str(tmp_path/'run')))
    (out/'config.json').write_text(json.dumps(older(replace(config, max_steps=1, output_dir=str(out)))))
    assert weights(out) != weights(whole)
    train(replace(TrainConfig.from_json((out/'config.json').read_text()), max_steps=2, output_dir='elsewhere'), out)
    # it stays where it is
    assert weights(out) == weights(whole) and TrainConfig.from_json((out/'config.json').read_text()).output_dir == str(out)
    # evaluations let an answer have 144 tokens then
    assert (out/'eval-step-1.jsonl').exists() == (tokens != 144)


@pytest.mark.parametrize('choices, third', [(dict(temperature=1.0), False), (dict(temperature=1.0, top_p=0.9), True), (dict(temperature=0.3, top_k=4), True), (dict(temperature=1.0, vocabulary='task'), True)])
def test_a_third_column_where_training_samples_otherwise(choices, third):
    log, both = SimpleNamespace(append=lambda name, rows: None), [next(r for r in ROWS if r.kind == kind) for kind in 'PA']
    with patch.object(held_out, 'judge_rows', lambda model, tokenizer, rows, **kw: evaluate.judge_texts(rows, [['?']]*len(rows))):
        judged = held_out.evaluate_run(None, TOKENIZER, both, log, 1, replace(CONFIG, **choices))
    assert ('tempered' in judged) == third and all(table['index'].tolist() == [0, 1] for table in judged.values())


def test_held_out_prompts_are_the_same_for_every_seed(tmp_path):
    config = replace(CONFIG, data=some_positions(tmp_path, 800), eval_prompts=30)
    (one, first), (two, second) = (held_out.load_prompts(replace(config, seed=seed)) for seed in (0, 7))
    assert first == second and {r.kind for r in first} == {'P', 'A'}
    assert [e.fen for e in one.take('P', 5)] != [e.fen for e in two.take('P', 5)]


def noise_seeds(seed, recoveries=0):
    """What the generator reads, which is 32 bits, in 500 steps with 50 refills and 50 orders of
    minibatches each."""
    sampling = learning._sampling(SimpleNamespace(config=replace(CONFIG, seed=seed), recoveries=recoveries)).seed
    return experience.rollout_seed(sampling, np.arange(1, 501)[:, None], np.arange(101)).ravel()


# `unique` takes ten times as long
def all_differ(*seeds): return np.diff(np.sort(np.concatenate(seeds).astype(np.uint32))).all()


def test_no_two_streams_start_alike():
    """Of a seed, PyTorch's generator on a CPU reads 32 bits: two streams are one where these are
    the same."""
    seeds, laps = [*range(100), 2**31, 2**32 - 1], np.arange(101)
    # of answers up to three times as long as max_new_tokens
    assert all_differ(*(noise_seeds(seed) + k*0x9E3779B9 for seed in seeds for k in range(3)))
    for seed in seeds:      # one run, which may go back three times
        assert all_differ(experience._order_seed(seed, laps), *(noise_seeds(seed, recoveries) for recoveries in range(4))), seed
    orders = {experience._order_seed(seed, lap) % 2**32 for seed in seeds for lap in range(40)}
    assert len(orders) == len(seeds)*40
    firsts = {tuple(experience._shuffle(seed, lap, 1000)[:20].tolist()) for seed in seeds[::10] for lap in range(5)}
    assert len(firsts) == len(seeds[::10])*5


def test_every_kind_of_prompt_has_a_stream_for_each_seed_and_block():
    streams, kinds = [], unlabelled.position_kinds('unlabelled')
    with patch.object(unlabelled.random, 'Random', side_effect=lambda name: streams.append(name) or 1/0):
        for seed in range(100):
            # those that visit others' positions begin at some of their own
            for blocks in held_out.unlabelled_mixture(kinds, seed).streams.values():
                for number in range(30):
                    with pytest.raises(TaskError, match='ZeroDivisionError'): next(getattr(blocks, 'openings', blocks).make(number))
    assert len({*streams}) == len(streams) >= 100*30*len(kinds)


@pytest.mark.parametrize('world', range(2, 9))
def test_ranks_have_no_seed_of_their_own(world):
    """Each takes its rows of the draw of the whole batch, and every row has numbers of its own,
    from the first."""
    whole = uniform_draws(16*4, 40, 12, seed=7)
    assert len({*whole[:, 0].tolist()}) == 64
    taken = []
    for rank in range(world):
        with patch.object(ranks, 'rank', lambda: rank), patch.object(ranks, 'world', lambda: world): places = torch.tensor(ranks.my_share(range(16)))
        at = (places[:, None]*4 + torch.arange(4)).flatten()
        taken += at.tolist()
        assert torch.equal(uniform_draws(int(at.max()) + 1, 40, 12, seed=7)[at], whole[at])
    assert sorted(taken) == [*range(64)]
