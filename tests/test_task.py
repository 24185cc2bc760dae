"A task of one's own: the one that the tutorial defines goes through a whole run, alone and beside P and A."
import json
from pathlib import Path
import pytest
from execnb.shell import CaptureShell
from rookworld_nb.chess.tasks import parse_prompt
from rookworld_nb.config import TrainConfig
from rookworld_nb.report.report import headlines, report_html
from rookworld_nb.report.run_files import load_run
from rookworld_nb.run.train import train
from rookworld_nb.task import TASKS

PAGE = Path(__file__).resolve().parents[1]/'nbs/tutorials/attackers.ipynb'
SMALL = dict(data='unlabelled:games', prompts_per_step=4, group_size=2, max_new_tokens=24, warmup_steps=1, threads=1, eval_prompts=8, save_every=1)


@pytest.fixture(scope='module', autouse=True)
def task():
    "Everything that the page says before it registers K, and no more."
    shell = CaptureShell()
    for cell in json.loads(PAGE.read_text('utf-8'))['cells']:
        source = ''.join(cell['source'])
        if cell['cell_type'] == 'code': shell.run(source)
        if 'register(Task(' in source: break
    assert shell.exc is None
    yield TASKS['K']
    del TASKS['K']


def rows(out, name): return [json.loads(line) for line in (out/f'{name}.jsonl').read_text('utf-8').splitlines()]


def test_a_run_on_one_task(tmp_path, capsys):
    out = train(TrainConfig(tasks='K:1', max_steps=2, output_dir=str(tmp_path/'run'), check_every=1, **SMALL))
    metrics, said = rows(out, 'metrics'), capsys.readouterr().out
    assert all({'reward_k', 'format_share_k', 'part_k_found', 'part_k_clean', 'share_k_games'} <= row.keys() and row['prompts_k'] == 4 for row in metrics)
    assert not [name for name in metrics[0] if name.endswith(('_p', '_a')) or name.startswith(('part_p', 'part_a'))]
    assert '| K: 4 |' in said and 'The rules pay 1 for an exact K answer.' in said and 'Check   1 | Greedy reward: K' in said
    assert {(r['task'], r['metric']) for r in rows(out, 'eval')} == {('K', m) for m in ('reward', 'format_valid', 'exact')}
    run = load_run(out)
    assert headlines(run)[0].startswith('K: right answers') and any('K right' in line for line in headlines(run))
    assert 'reward_k' in (page := report_html(run)) and 'K, attackers' in page


def test_beside_p_and_a_and_resumed(tmp_path):
    choices = dict(tasks='P:0.25 A:0.25 K:0.5', output_dir=str(tmp_path/'run'), check_every=0, **SMALL)
    out = train(TrainConfig(max_steps=1, **choices))
    assert train(TrainConfig(max_steps=2, **choices), resume=out) == out
    assert [(r['prompts_p'], r['prompts_a'], r['prompts_k']) for r in rows(out, 'metrics')] == [(1, 1, 2)]*2
    assert {r['task'] for r in rows(out, 'eval')} == {'P', 'A', 'K', 'all'}
    with pytest.raises(ValueError, match='tasks .* -> '): train(TrainConfig(max_steps=3, **choices | dict(tasks='K:1')), resume=out)


def test_a_letter_that_nobody_registered():
    with pytest.raises(ValueError, match="nobody has registered 'Q', there are P, A, K"): train(TrainConfig(tasks='K:0.5 Q:0.5'))
    with pytest.raises(ValueError, match="neither 'P: <fen>' nor 'A: .*' nor 'K: <FEN>[+]<square>'"): parse_prompt('K: nowhere+e4')


def test_a_file_has_no_rows_of_it():
    with pytest.raises(ValueError, match='positions has no training rows of task K, but tasks K:1 asks for some'):
        train(TrainConfig(tasks='K:1', data='positions', max_positions=100, max_steps=1))
