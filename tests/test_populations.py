"""Which rows, tokens or steps a number is about. Every test here is red when the number is right
and the population is another."""
from dataclasses import replace
from types import SimpleNamespace
import chess
import pytest
import torch
from rookworld_nb.chess.board import transition
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.chess.quick_rules import quick_transition
from rookworld_nb.config import TINY, TrainConfig
from rookworld_nb.grpo.experience import Experience, PromptSource
from rookworld_nb.grpo.step import Learner, make_targets, train_step
from rookworld_nb.grpo.value import explained_variance
from rookworld_nb.lm.loader import load_model
from rookworld_nb.measure.evaluate import compare, judge_texts
from rookworld_nb.run.health import HealthMonitor

ROWS = load_rows('positions', 0.1, 0, 'train', 40)


@pytest.fixture(scope='module')
def learner():
    model, tokenizer = load_model('nano')
    return Learner(
        model, tokenizer,
        replace(TINY, baseline='value', gae=True, gamma=1.0, gae_lambda=0.5, data='positions',
                max_new_tokens=8, max_refills=0))


def test_each_recovery_lowers_the_learning_rate_again(learner):
    rates = []
    for learner.recoveries in range(3):
        rates.append(train_step(learner, PromptSource(ROWS, 0), 1)[0]['learning_rate'])
    factor = learner.config.recovery_lr_factor
    assert 0 < factor < 1 and rates == pytest.approx([rates[0]*factor**n for n in range(3)])
    learner.recoveries = 0


def test_explained_variance_is_of_what_came(learner, monkeypatch):
    """Returns with lambda below 1 hold the head's own forecast, and would be explained by it in
    part."""
    T, rewards = 4, torch.tensor([[0., 1.]])
    mask = torch.ones(2, T, dtype=torch.bool)
    values = torch.tensor([[.9, .1, .8, .2], [.3, .7, .2, .6]])
    r = SimpleNamespace(logprobs=torch.zeros(2, T), completion_mask=mask,
                        truncated=torch.zeros(2, dtype=torch.bool), group_size=2)
    from rookworld_nb.grpo import step
    monkeypatch.setattr(step, '_look_back', lambda learner, part: None)
    monkeypatch.setattr(step, '_fitting', lambda work, learner, r: (values, torch.zeros(2, T)))
    _, found = make_targets(learner, Experience([ROWS.of_kind('P')[0]], r, [], rewards), 1)
    # with gamma 1 every token is followed by the whole reward
    came = rewards.T.expand(2, T)
    assert found['explained_variance'] == pytest.approx(float(explained_variance(values, came, mask)))


def test_before_and_after_are_about_the_same_prompts():
    """The error of evaluations is known where an answer names moves of the label: its mean before
    must be over the prompts that have one after, too."""
    rows = ROWS.of_kind('P')[:2]
    worse = [
        replace(e, target=replace(e.target, evals=tuple(v + shift
                                                        for v in e.target.evals))).completion()
        for e, shift in zip(rows, (0.5, 3.0))
    ]
    before = judge_texts(rows, [[text] for text in worse])
    after = judge_texts(rows, [[rows[0].completion()], ['nothing']])
    line = compare(before, after, resamples=50).query("metric == 'eval_error' and slice == 'all' "
                                                      "and task == 'P'").iloc[0]
    assert line.n == 1 and line.before == pytest.approx(
        before.eval_error[0]) and line.before != pytest.approx(before.eval_error.mean())
    assert line.difference == pytest.approx(line.after - line.before)


def row(step, reward=0.5, **more):
    return (
        dict(step=step, skipped=False, loss=0.1, grad_norm=1.0, weight_norm=1.0, reward_mean=reward,
             reward_max=1.0, entropy_nats=1.0, clip_share_low=0.0, clip_share_high=0.0,
             zero_signal_share=0.1, time_s=1.0, memory_gb=0.5, memory_gpu_gb=None) | more)


def test_the_best_reward_is_that_of_a_window_not_of_a_step():
    config = TrainConfig(max_steps=100)
    monitor, w = HealthMonitor(config), 20
    for n in range(1, 3*w): monitor.check(row(n, 0.95 if n == w else 0.5))
    assert monitor.best_reward == pytest.approx(0.5 + 0.45/w)


def test_readable_is_what_several_steps_were_not_one():
    config = TrainConfig(max_steps=100)
    monitor, shares = HealthMonitor(config), [0.1, 1.0, 0.1, 0.1, 0.1, 0.1]
    for n, share in enumerate(shares, 1): monitor.check(row(n, format_share_p=share))
    recent = [shares[max(0, n - 3):n] for n in range(1, len(shares) + 1)]
    assert monitor.readable['P'] == pytest.approx(max(
        sum(r)/len(r) for r in recent)) and monitor.readable['P'] < 0.6


@pytest.mark.parametrize('turn', [chess.WHITE, chess.BLACK])
def test_every_double_push_beside_a_pawn(turn):
    "With and without a pawn that may take, on every file."
    told = 0
    for file in range(8):
        for beside in (file - 1, file + 1, (file + 3) % 8):
            if not 0 <= beside < 8: continue
            board = chess.Board('4k3/8/8/8/8/8/8/R3K3 w - - 0 1')
            start, end, there = ((chess.square(file, 1), chess.square(file, 3),
                                  chess.square(beside, 3)) if turn else
                                 (chess.square(file, 6), chess.square(file, 4),
                                  chess.square(beside, 4)))
            board.set_piece_at(start, chess.Piece(chess.PAWN, turn))
            board.set_piece_at(there, chess.Piece(chess.PAWN, not turn))
            board.turn = turn
            fen, uci = board.fen(), chess.Move(start, end).uci()
            quick, slow = quick_transition(fen, uci, uci), transition(fen, uci, uci)
            assert quick in (None, slow), (fen, uci, quick)
            told += slow.fen.split()[3] != '-'
    assert told == 14                                   # the push beside a pawn, from either side
