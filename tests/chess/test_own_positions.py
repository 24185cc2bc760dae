"""Positions of one's own, without labels, from the command line: a PGN file is trained on and
evaluated, a run on it can be killed, and what needs labels says so."""
import json
import random
from unittest.mock import patch
import chess
import pytest
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.chess.positions import split_of
from rookworld_nb.run.run_log import RunLog
from runs import call, contents, die, in_child


def write_games(path, n=25, seed=0):
    "Random games with comments and variations; the last breaks off at a word that is no move."
    rng, games = random.Random(seed), []
    for _ in range(n):
        board, words = chess.Board(), []
        while len(words) < 160 and (moves := list(board.legal_moves)):
            move = rng.choice(moves)
            words += [
                f'{board.fullmove_number}{"." if board.turn else "..."}',
                f'{board.san(move)} {{ [%clk 0:00:07] }}', f'({board.san(moves[0])} $2)'
            ]
            board.push(move)
        games.append(f'[Event "{len(games)}"]\n[Result "*"]\n\n{" ".join(words)} *\n')
    path.write_text('\ufeff' + '\n'.join([*games, '[Event "broken"]\n\n1. e4 e5 2. Qxh9 *\n']),
                    encoding='utf-8')
    return path


SMALL = '--model nano --max_steps 3 --prompts_per_step 2 --group_size 4 --env_ratio 0.5 --threads 1 --max_refills 0 --save_every 1 --eval_prompts 12'.split(
)

def test_a_killed_run_on_games_goes_on_as_if_nothing_had_happened(tmp_path):
    args = [*SMALL, '--data', write_games(tmp_path/'games.pgn'), '--output_dir']
    assert in_child([*args, tmp_path/'whole']) == 0
    append = RunLog.append
    def dying(self, to, rows):
        append(self, to, rows := list(rows))
        if to == 'metrics' and rows[0]['step'] == 2: die()
    assert in_child([*args, tmp_path/'killed'], patch.object(RunLog, 'append', dying)) == -9
    assert in_child(['--resume', tmp_path/'killed']) == 0
    whole = contents(tmp_path/'whole')
    assert contents(tmp_path/'killed') == whole and len(whole['metrics.jsonl']) == 3
    assert {r['metric']
            for r in whole['eval.jsonl']
            if r['task'] == 'P'} >= {'format_valid', 'legal_best', 'coherence'}
    assert not {r['metric']
                for r in whole['eval.jsonl']
                if r['task'] == 'P'} & {'reward', 'best_move', 'regret'}


def test_a_run_with_its_report_and_an_evaluation(tmp_path):
    write_games(tmp_path/'games.pgn')
    code, out, err = call('train', *SMALL, '--data', 'games.pgn', '--output_dir', 'run',
                          cwd=tmp_path)
    assert code == 0 and (tmp_path/'run'/'report.html').exists(), err
    assert "games.pgn: 1 of " in err and "game 26, move 2: illegal SAN 'Qxh9'" in err
    code, out, err = call('eval', '--data', 'games.pgn', '--prompts', 30, '--compare', 'run',
                          '--output', 'found', cwd=tmp_path)
    assert code == 0 and 'of the P rows have no label' in out, err
    found = json.loads((tmp_path/'found'/'eval.json').read_text('utf-8'))
    assert found['rows']['n'] == 30 and {m['task'] for m in found['metrics']} == {'P', 'A', 'all'}


@pytest.mark.parametrize('command, args, said', [
    ('train', ['--reward_source', 'auto'], 'own.fen has positions without labels, the first is '),
    ('train', ['--reward_source', 'row'
               ], 'reward_source row compares P with labels; rules needs none'),
    ('pretrain', [], 'supervised training learns P from labels'),
    ('train', ['--data', 'empty.pgn'], 'empty.pgn has no rows'),
    ('train', ['--data', 'few.fen'], 'has no training rows of task '),
    ('train', ['--data', 'none.pgn'], ".epd or .pgn)"),
])
def test_what_needs_labels_or_positions_says_so_in_one_line(command, args, said, tmp_path):
    rng, board = random.Random(1), chess.Board()
    fens = []
    while len(fens) < 100 and not board.is_game_over():
        fens.append(board.fen())
        board.push(rng.choice(list(board.legal_moves)))
    for name, text in {'own.fen': '\n'.join(fens), 'empty.pgn': '\n', 'few.fen': fens[0]}.items():
        (tmp_path/name).write_text(text, encoding='utf-8')
    code, _, err = call(command, '--data', 'own.fen', *args, '--output_dir', 'run', cwd=tmp_path)
    assert code == 2 and err.count('\n') == 1 and said in err, err
    assert not (tmp_path/'run').exists()


@pytest.fixture(scope='module')
def one_overlong():
    """Published rows of random games, one of them with a game's whole history instead of ten
    half-moves, in each split."""
    rows = [e.prompt() + e.completion() for e in load_rows('positions', 0.5, 0, None, 100)]
    def overlong(split):
        fen, move, history, answer = next(
            r for r in rows
            if r.startswith('A: ') and split_of(r[3:].split('+')[0]) == split).split('+', 3)
        return '+'.join([fen, move, 'g1f3 g8f6 f3g1 f6g8 '*40 + history, answer])
    return rows + [overlong('train'), overlong('eval')]


@pytest.mark.parametrize('command, args', [
    ('train', [
        '--prompts_per_step', 34, '--max_steps', 3, '--group_size', 2, '--max_refills', 0,
        '--eval_prompts', 12, '--env_ratio', 0.5
    ]), ('eval', ['--prompts', 200, '--split', 'all', '--compare', 'nano']),
    ('pretrain',
     ['--max_steps', 4, '--batch_size', 8, '--block_rows', 64, '--workers', 0, '--eval_prompts', 8])
])
def test_a_row_that_is_longer_than_the_model_reads_is_left_out(command, args, one_overlong,
                                                               tmp_path):
    (tmp_path/'rows.txt').write_text('\n'.join(one_overlong) + '\n', encoding='utf-8')
    where = [] if command == 'eval' else ['--output_dir', 'run', '--threads', 1]
    code, _, err = call(command, '--data', 'rows.txt', *args, *where, cwd=tmp_path)
    assert code == 0, err
    assert 'rows.txt: 2 of 102 rows left out: 2 × longer than the ' in err and "row 101: 'A: " in err and "row 102: 'A: " in err, err
