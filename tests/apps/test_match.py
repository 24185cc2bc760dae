"""rookworld_eval --opponent as a shell sees it: every kind of opponent, and what is said when there
is none."""
import json
import os
import shutil
import sys
import chess.pgn
import pandas as pd
import pytest
from rookworld_nb.apps import match
from rookworld_nb.chess.engine import find_engine
from rookworld_nb.config import EvalConfig
from runs import call, call_unread, make_model

INSTALLED = {
    'path': True, 'stockfish:0': find_engine(), 'fairymax:1': shutil.which('fairymax')
    or shutil.which('/usr/games/fairymax')
}


@pytest.mark.parametrize('opponent', INSTALLED)
def test_opponents(opponent, tmp_path):
    if not INSTALLED[opponent]: pytest.skip(f'{opponent} is not installed')
    model = make_model(tmp_path/'m')
    name = tmp_path/'engine' if opponent == 'path' else opponent
    (tmp_path/'engine').write_text(
        f'#!/bin/sh\nPYTHONPATH={os.pathsep.join(sys.path)} exec {sys.executable} -c "from '
        f'test_uci import serve_fake; serve_fake()"\n'
    )
    (tmp_path/'engine').chmod(0o755)
    code, out, err = call('eval', '--model', model, '--games', 4, '--opponent', name, '--max_plies',
                          14, '--nodes', 100, '--output', tmp_path/'out', cwd=tmp_path)
    assert code == 0, err
    assert 'from 2 pairs' in out and 'the rules chose' in out   # random weights name no legal move
    found = json.loads((tmp_path/'out/match.json').read_text())
    table = pd.read_csv(tmp_path/'out/match.csv')
    assert found['result']['games'] == len(table) == 4 and found['result']['helped'] > 0.9
    with open(tmp_path/'out/match.pgn') as f: games = [chess.pgn.read_game(f) for _ in range(4)]
    assert [' '.join(m.uci() for m in g.mainline_moves())
            for g in games] == table.moves.tolist() and not any(g.errors for g in games)
    assert [g.headers['White'] == str(model) for g in games] == [True, False]*2


ODD = {'null': '0000', 'none': '(none)', 'empty': '', 'illegal': 'a1a8', 'nonsense': 'z9'}

def odd_engine(folder, does):
    """A UCI engine that plays the first legal move it finds, unless a line of Python does something
    else. It counts the games that it was told of, one after the other."""
    (program := folder/'odd').write_text(f'''#!{sys.executable}
import os, sys, time, chess
games = 0
for line in sys.stdin:
    word, _, rest = line.strip().partition(' ')
    if word == 'uci': print('uciok', flush=True)
    if word == 'isready': print('readyok', flush=True)
    if word == 'ucinewgame': games += 1
    if word == 'quit': break
    if word == 'position':
        board = chess.Board()
        for uci in rest.split()[2:]: board.push_uci(uci)
    if word == 'go':
        move = next(iter(board.legal_moves))
        {does}
        print('bestmove', move, flush=True)
''')
    program.chmod(0o755)
    return program


@pytest.mark.parametrize('kind', ODD)
def test_an_opponent_without_a_legal_move_loses_the_game(kind, tmp_path):
    program = odd_engine(tmp_path, f'if board.turn: move = {ODD[kind]!r}')
    code, out, err = call('eval', '--model', 'nano', '--games', 4, '--opponent', program,
                          '--max_plies', 8, '--output', tmp_path/'out', cwd=tmp_path)
    assert code == 0 and 'ended by ' in out and 'no_legal_move 2' in out, (out, err)
    table = pd.read_csv(tmp_path/'out/match.csv')
    assert table.ended_by.tolist() == ['max_plies', 'no_legal_move']*2 and table.points.tolist() == [0.5, 1]*2
    with open(tmp_path/'out/match.pgn') as f: games = [chess.pgn.read_game(f) for _ in range(4)]
    assert [(g.headers['Result'], g.headers['Termination'])
            for g in games] == [('1/2-1/2', 'max_plies'), ('0-1', 'no_legal_move')]*2


LOST = {
    'crash': ('os._exit(3)', 'was lost: engine process died unexpectedly (exit code: 3)'),
    'hang': ('time.sleep(1000)', 'gave no move in 6 s')
}

@pytest.mark.parametrize('kind', LOST)
@pytest.mark.parametrize('ended', [0, 1])
def test_an_opponent_that_is_lost_is_one_sentence(kind, ended, tmp_path):
    does, said = LOST[kind]
    program = odd_engine(tmp_path, f'if games > 4: {does}\n        if games < 3: move = 0000' if ended else does)
    code, out, err = call('eval', '--model', 'nano', '--games', 4, '--opponent', program, '--output', tmp_path/'out', cwd=tmp_path,
                          before='import rookworld_nb.apps.match as match; match._PATIENCE = 6')
    lines = [line for line in err.splitlines() if 'Games' not in line]
    assert code == 1 and len(
        lines
    ) == 1 and f'rookworld_eval: failed with EngineLost: {program} {said}; {ended} of 2 pairs had ended{f": see {tmp_path}/out"*ended}' == lines[
        0], err
    assert ('from 1 pairs' in out) == bool(ended) and sorted(
        f.suffix for f in (tmp_path/'out').iterdir()) == ['.csv', '.json', '.pgn']*ended
    if ended: assert pd.read_csv(tmp_path/'out/match.csv').ended_by.tolist() == ['no_legal_move']*2


BAD = {
    'odd': (['--games', '3', '--opponent',
             'random'], 'games must be an even number, 2 or more, with opponent'),
    'none': (['--opponent', 'random'], 'not 0'),
    'rows': (['--games', '2', '--opponent', 'random', '--suite',
              'quick'], 'suite must be left out with opponent'),
    'not installed': (['--games', '2', '--opponent', 'stockfish:0', '--stockfish_path',
                       '/nowhere'], "opponent 'stockfish:0': stockfish is not installed")
}

@pytest.mark.parametrize('case', BAD)
def test_bad_usage_is_one_line(case, tmp_path):
    args, said = BAD[case]
    code, out, err = call('eval', *args, cwd=tmp_path)
    assert code == 2 and err.startswith('rookworld_eval: ') and err.count(
        '\n') == 1 and said in err, err


def test_a_match_that_nobody_reads_is_written(tmp_path):
    code, err = call_unread('eval', '--model', 'nano', '--games', 2, '--opponent', 'random',
                            '--max_plies', 4, '--output', 'out', cwd=tmp_path)
    assert code == 0 and 'Error' not in err and sorted(
        f.suffix for f in (tmp_path/'out').iterdir()) == ['.csv', '.json', '.pgn']


@pytest.mark.parametrize('begun', [True, False])
def test_what_has_ended_is_kept_where_somebody_interrupts(begun, tmp_path, monkeypatch):
    "Also where no game has begun: the message is the interruption."
    def interrupted(boards, games):
        if not begun or boards[0].ply() > 6: raise KeyboardInterrupt
        return [None if game < 2 else next(iter(board.legal_moves)) for board, game in zip(boards, games)], [False]*len(boards)
    monkeypatch.setattr(match, 'model_side', lambda player: interrupted)
    if not begun: monkeypatch.setattr(match, '_openings', lambda seed: interrupted([], []))
    with pytest.raises(KeyboardInterrupt) as stopped:
        match.run_match(EvalConfig(model='nano', opponent='random', games=4, output=str(tmp_path/'out')))
    assert stopped.value.__notes__[0].startswith(f'{int(begun)} of 2 pairs had ended')
    tables = [*tmp_path.rglob('*.csv')]
    assert [len(pd.read_csv(table)) for table in tables] == [2]*begun
