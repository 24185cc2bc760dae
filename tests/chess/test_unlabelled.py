"""Unlabelled prompts from the command line: a killed run goes on with the same prompts; what cannot
be meant is refused in one sentence; a seed gives the same prompts for ever; how many prompts a
second one core makes (-s prints it)."""
import time
from hashlib import sha256
from itertools import islice
from unittest.mock import patch
import chess
import pytest
from rookworld_nb.chess.positions import position_hash, reserved_positions, split_of
from rookworld_nb.chess.unlabelled import MOVE_KINDS, POSITIONS, position_kinds, unlabelled_prompts
from rookworld_nb.grpo.mixture import unlabelled_mixture
from rookworld_nb.measure.probes import PROBES, probe_rows
from rookworld_nb.run.run_log import RunLog
from runs import contents, die, in_child

CHOICES = (
    '--model nano --max_steps 5 --prompts_per_step 4 --group_size 2 --env_ratio 0.5 '
    '--warmup_steps 2 --threads 1 --max_refills 1 '
    '--save_every 2 --check_every 0 --eval_prompts 2 --max_new_tokens 24').split()


@pytest.mark.parametrize('data', ['unlabelled:games,endings,visited',
                                  pytest.param('unlabelled:games', marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_with_the_same_prompts(tmp_path, data):
    run = [*CHOICES, '--data', data, '--output_dir']
    assert in_child([*run, tmp_path/'whole'], measured=False) == 0
    append = RunLog.append
    def dying(self, to, rows):
        append(self, to, rows := list(rows))
        if (to, rows[0]['step']) == ('metrics', 3): die()

    assert in_child([*run, tmp_path/'killed'], patch.object(RunLog, 'append', dying),
                    measured=False) == -9
    assert in_child(['--resume', tmp_path/'killed'], measured=False) == 0
    whole, resumed = contents(tmp_path/'whole'), contents(tmp_path/'killed')
    assert resumed == whole and {row['step'] for row in whole['completions.jsonl']} == {1, 2, 3, 4, 5}
    shares = [{k: v for k, v in row.items() if k.startswith('share_')} for row in whole['metrics.jsonl']]
    assert shares[0] != shares[-1] and abs(
        sum(v for k, v in shares[-1].items() if k.startswith('share_a_')) - 1) < 1e-3


@pytest.mark.parametrize('args, words', [
    ('--reward_source row',
     'reward_source must be rules or engine with data unlabelled, whose positions have no labels'),
    ('--data unlabelled:games,knights',
     "there are no positions 'knights', only games, deep, shuffled, armies, endings, visited"),
    ('--data unlabelled:visited', 'visited positions begin where others end'),
    ('--rare_share 0.2',
     'rare_share must be left out with data unlabelled: it is about rows of a file')
])
def test_refused_in_one_sentence(tmp_path, args, words):
    assert in_child([*CHOICES, '--output_dir', tmp_path/'run', *args.split()],
                    err=tmp_path/'err') == 2
    said = (tmp_path/'err').read_text()
    assert words in said and len(said.splitlines()) == 1 and not (tmp_path/'run').exists()


def test_max_positions_is_answered(tmp_path):
    "The documents that this project grew from give it in every command."
    assert in_child([
        *CHOICES, '--max_steps', '1', '--data', 'unlabelled:games', '--max_positions', '256',
        '--output_dir', tmp_path/'run'
    ], err=tmp_path/'err', measured=False) == 0
    assert 'max_positions has no effect with data unlabelled:games: such prompts have no end' in (
        tmp_path/'err').read_text()


def test_no_prompt_is_held_out():
    reserved = reserved_positions()
    asked = {position_hash(e.fen) for name in PROBES for e in probe_rows(name)}
    source = unlabelled_mixture(position_kinds('unlabelled'), 0, reserved)
    for task in 'PA':
        for e in source.take(task, 1500):
            h = position_hash(e.fen)
            assert split_of(h) == 'train' and h not in reserved and h not in asked


FIRST_HUNDRED = { # the figures in results and README come from these prompts
    'A': dict(quiet='cdd9db0e0ac0', mates='454685746b25', draws='a9bd36df1032',
              illegal='6499a71d1e4d', into_check='b3375c7a8a89'),
    'P': dict(games='ca10dfe98afb', deep='5219e3c3cedd', shuffled='f5a9db54dd81',
              armies='331a476a7475', endings='99d61e669f27')
}


@pytest.mark.parametrize('task, kind', [(task, kind) for task, kinds in FIRST_HUNDRED.items() for kind in kinds])
def test_a_seed_gives_the_same_prompts_for_ever(task, kind):
    rows = (e.prompt() + (e.completion() if task == 'A' else '')
            for e in islice(unlabelled_prompts(task, kind, 0), 100))
    assert sha256('\n'.join(rows).encode()).hexdigest()[:12] == FIRST_HUNDRED[task][kind]


def test_mates_are_looked_for_before_they_are_played():
    "Random play alone takes about 110 half-moves for a row; to try every check took 360 more."
    played, push = 0, chess.Board.push
    def counted(board, move):
        nonlocal played
        played += 1
        push(board, move)

    with patch.object(chess.Board, 'push', counted):
        assert len(list(islice(unlabelled_prompts('A', 'mates', 0), 100))) == 100
    assert played < 100*200


def test_prompts_a_second():
    found = {}
    for task, kinds in (('P', POSITIONS), ('A', MOVE_KINDS)):
        for kind in kinds:
            began, n = time.process_time(), 300
            assert len(list(islice(unlabelled_prompts(task, kind, 0), n))) == n
            found[task, kind] = n/(time.process_time() - began)
    print(
        '',
        *(f'{task} {kind:9} {rate:7.0f} prompts a CPU-second'
          for (task, kind), rate in found.items()), sep='\n')
