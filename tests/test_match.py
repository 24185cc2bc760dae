"rookworld_eval --opponent as a shell sees it: every kind of opponent, and what is said when there is none."
import json
import os
import shutil
import sys
import chess.pgn
import pandas as pd
import pytest
from rookworld_nb.chess.engine import find_engine
from runs import call
from test_eval import make_model

INSTALLED = {'path': True, 'stockfish:0': find_engine(), 'fairymax:1': shutil.which('fairymax') or shutil.which('/usr/games/fairymax')}


@pytest.mark.parametrize('opponent', INSTALLED)
def test_opponents(opponent, tmp_path):
    if not INSTALLED[opponent]: pytest.skip(f'{opponent} is not installed')
    model = make_model(tmp_path/'m')
    name = tmp_path/'engine' if opponent == 'path' else opponent
    (tmp_path/'engine').write_text(f'#!/bin/sh\nPYTHONPATH={os.pathsep.join(sys.path)} exec {sys.executable} -c "from test_uci import serve_fake; serve_fake()"\n')
    (tmp_path/'engine').chmod(0o755)
    code, out, err = call('eval', '--model', model, '--games', 4, '--opponent', name, '--max_plies', 14, '--nodes', 100, '--output', tmp_path/'out', cwd=tmp_path)
    assert code == 0, err
    assert 'from 2 pairs' in out and 'the rules chose' in out   # random weights name no legal move
    found = json.loads((tmp_path/'out/match.json').read_text())
    table = pd.read_csv(tmp_path/'out/match.csv')
    assert found['result']['games'] == len(table) == 4 and found['result']['helped'] > 0.9
    with open(tmp_path/'out/match.pgn') as f: games = [chess.pgn.read_game(f) for _ in range(4)]
    assert [' '.join(m.uci() for m in g.mainline_moves()) for g in games] == table.moves.tolist() and not any(g.errors for g in games)
    assert [g.headers['White'] == str(model) for g in games] == [True, False]*2


BAD = {'odd': (['--games', '3', '--opponent', 'random'], 'games must be an even number, 2 or more, with opponent'), 'none': (['--opponent', 'random'], 'not 0'),
       'rows': (['--games', '2', '--opponent', 'random', '--suite', 'quick'], 'suite must be left out with opponent'),
       'not installed': (['--games', '2', '--opponent', 'stockfish:0', '--stockfish_path', '/nowhere'], "opponent 'stockfish:0': stockfish is not installed")}

@pytest.mark.parametrize('case', BAD)
def test_bad_usage_is_one_line(case, tmp_path):
    args, said = BAD[case]
    code, out, err = call('eval', *args, cwd=tmp_path)
    assert code == 2 and err.startswith('rookworld_eval: ') and err.count('\n') == 1 and said in err, err
