"""Tasks of one's own: those that the tutorials define go through a whole run, K alone and beside P
and A, S with a vocabulary and a model of its own."""
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
import pytest
import torch
from execnb.shell import CaptureShell
from transformers import AutoTokenizer
from rookworld_nb.apps.cli import eval_command
from rookworld_nb.apps.export import export_model
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.chess.tasks import parse_prompt
from rookworld_nb.config import EvalConfig, ExportConfig, PretrainConfig, TrainConfig
from rookworld_nb.lm.loader import load_model, save_model
from rookworld_nb.lm.model import GPT, GPTConfig
from rookworld_nb.lm.tokenizer import ListTokenizer
from rookworld_nb.measure.exam import run_evaluation
from rookworld_nb.report.report import headlines, report_html
from rookworld_nb.report.run_files import load_run
from rookworld_nb.run.pretrain import pretrain
from rookworld_nb.run.train import train
from rookworld_nb.task import TASKS

TUTORIALS = Path(__file__).resolve().parents[1]/'nbs/tutorials'
SMALL = dict(data='unlabelled:games', prompts_per_step=4, group_size=2, max_new_tokens=24,
             warmup_steps=1, threads=1, eval_prompts=8, save_every=1)


def defined(page):
    "Everything that a page says before it registers its task, and no more."
    shell = CaptureShell()
    for cell in json.loads((TUTORIALS/page).read_text('utf-8'))['cells']:
        source = ''.join(cell['source'])
        if cell['cell_type'] == 'code': shell.run(source)
        if re.search(r'register\(\s*Task\(', source): break
    assert shell.exc is None


@pytest.fixture(scope='module', autouse=True)
def task():
    defined('attackers.ipynb')
    yield TASKS['K']
    del TASKS['K']


@pytest.fixture
def sums(tmp_path):
    """The directory of a tiny model with a vocabulary of its own, and a file of right rows; S is
    registered."""
    defined('sums.ipynb')
    torch.manual_seed(0)
    tokenizer = ListTokenizer(['S: ', '+', '=', *'0123456789'])
    save_model(
        GPT(
            GPTConfig(n_layer=1, n_embd=16, n_head=2, n_positions=20,
                      vocab_size=tokenizer.vocab_size)), tokenizer, tmp_path/'start')
    (tmp_path/'rows.txt').write_text('\n'.join(
        e.prompt() + e.completion()
        for e, _ in zip(TASKS['S'].prompts((), frozenset())['sums']('rows'), range(200))))
    yield tmp_path
    del TASKS['S']


def rows(out, name):
    return [json.loads(line) for line in (out/f'{name}.jsonl').read_text('utf-8').splitlines()]


def test_a_run_on_one_task(tmp_path, capsys):
    out = train(
        TrainConfig(tasks='K:1', max_steps=2, output_dir=str(tmp_path/'run'), check_every=1,
                    **SMALL))
    metrics, said = rows(out, 'metrics'), capsys.readouterr().out
    assert all({'reward_k', 'format_share_k', 'part_k_found', 'part_k_clean', 'share_k_games'} <=
               row.keys() and row['prompts_k'] == 4 for row in metrics)
    assert not [
        name for name in metrics[0]
        if name.endswith(('_p', '_a')) or name.startswith(('part_p', 'part_a'))
    ]
    assert '| K: 4 |' in said and 'The rules pay 1 for an exact K answer.' in said and 'Check   1 | Greedy reward: K' in said
    assert {(r['task'], r['metric'])
            for r in rows(out, 'eval')} == {('K', m)
                                            for m in ('reward', 'format_valid', 'exact')}
    run = load_run(out)
    assert headlines(run)[0].startswith('K: right answers') and any('K right' in line
                                                                    for line in headlines(run))
    assert 'reward_k' in (page := report_html(run)) and 'K, attackers' in page


def test_beside_p_and_a_and_resumed(tmp_path):
    choices = dict(tasks='P:0.25 A:0.25 K:0.5', output_dir=str(tmp_path/'run'), check_every=0,
                   **SMALL)
    out = train(TrainConfig(max_steps=1, **choices))
    assert train(TrainConfig(max_steps=2, **choices), resume=out) == out
    assert [(r['prompts_p'], r['prompts_a'], r['prompts_k']) for r in rows(out, 'metrics')] == [(1, 1, 2)]*2
    assert {r['task'] for r in rows(out, 'eval')} == {'P', 'A', 'K', 'all'}
    with pytest.raises(ValueError, match='tasks .* -> '):
        train(TrainConfig(max_steps=3, **choices | dict(tasks='K:1')), resume=out)


def test_a_letter_that_nobody_registered():
    with pytest.raises(
            ValueError, match=
            "nobody has registered 'Q', there are P, A, K; a task of your own is known in the notebook"
    ):
        train(TrainConfig(tasks='K:0.5 Q:0.5'))
    with pytest.raises(ValueError,
                       match="neither 'P: <fen>' nor 'A: .*' nor 'K: <FEN>[+]<square>'"):
        parse_prompt('K: nowhere+e4')


def test_a_file_has_no_rows_of_it():
    with pytest.raises(
            ValueError,
            match='positions has no training rows of task K, but tasks K:1 asks for some'):
        train(TrainConfig(tasks='K:1', data='positions', max_positions=100, max_steps=1))


def weights(run): return load_model(run)[0].state_dict()


def gone_on(out, run, config, resume):
    "A run that was interrupted after its first step and goes on."
    shutil.copytree(out, run)
    for n in (2, 3): shutil.rmtree(run/f'checkpoints/step-{n}')
    (run/'comparison.json').unlink(missing_ok=True)
    return resume(config, resume=run)


def same_run(a, b):
    ours, theirs = weights(a), weights(b)
    assert all(torch.equal(ours[k], theirs[k]) for k in ours | theirs) and load_model(a)[1].name == load_model(b)[1].name
    kept = ('step', 'loss', 'grad_norm', 'reward_mean')
    assert [[r.get(k) for k in kept] for r in rows(a, 'metrics')] == [[r.get(k) for k in kept]
                                                                      for r in rows(b, 'metrics')]
    assert rows(a, 'eval') == rows(b, 'eval')


COPY = dict(tasks='S:1', max_steps=3, batch_size=8, block_rows=16, eval_prompts=6, save_every=1,
            keep_last=3, warmup_steps=1, threads=1)


def test_rows_of_a_task_are_copied_and_the_run_resumes(sums):
    config = PretrainConfig(init=str(sums/'start'), data=str(sums/'rows.txt'), output_dir=str(sums/'copied'), **COPY)
    out = pretrain(config)
    assert [r['task']
            for r in rows(out, 'metrics')] == ['S']*3 and {(r['task'], r['n'])
                                                           for r in rows(out, 'eval')} == {('S', 6)}
    assert json.loads((out/'pretrain.json').read_text())['rows_s'] == 24
    same_run(out, gone_on(out, sums/'again', config, pretrain))
    (sums/'rows.jsonl').write_text('\n'.join(
        json.dumps(dict(prompt=e.prompt(), completion=e.completion()))
        for e in load_rows(sums/'rows.txt')))
    assert load_rows(sums/'rows.jsonl') == load_rows(sums/'rows.txt')
    with pytest.raises(ValueError, match='has no training rows of task K'):
        pretrain(replace(config, tasks='K:1', output_dir=str(sums/'none')))


def test_rows_without_a_cut_come_in_two_parts(sums):
    told, TASKS['S'] = load_rows(sums/'rows.txt')[:], replace(TASKS['S'], cut=None)
    (sums/'apart.jsonl').write_text('\n'.join(json.dumps(dict(prompt=e.prompt(), completion=e.completion())) for e in told))
    assert load_rows(sums/'apart.jsonl') == told
    with pytest.raises(
            ValueError,
            match='task S has no cut, so its rows must have prompt and completion apart'):
        load_rows(sums/'rows.txt')


@pytest.mark.parametrize('data', ['unlabelled', 'rows.txt'])
def test_its_own_vocabulary_goes_through_a_run(sums, data):
    data = data if data == 'unlabelled' else str(sums/data)
    config = TrainConfig(model=str(sums/'start'), data=data, tasks='S:1',
                         output_dir=str(sums/'run'), max_steps=3, prompts_per_step=4, group_size=4,
                         max_new_tokens=6, warmup_steps=1, eval_prompts=6, check_every=0,
                         save_every=1, keep_last=3, threads=1)
    out = train(config)
    assert {(r['task'], r['metric'], r['n'])
            for r in rows(out, 'eval')
            if r['decoding'] == 'greedy'} == {('S', m, 6)
                                              for m in ('reward', 'format_valid', 'exact')}
    assert json.loads((out/'checkpoints/step-3/rookworld_tokenizer.json').read_text()) == dict(
        tokens=['S: ', '+', '=', *'0123456789'])
    same_run(out, gone_on(out, sums/'again', config, train))


def test_export_and_evaluation(sums, capsys):
    shown = export_model(ExportConfig(run=str(sums/'start'), output=str(sums/'export')))
    ours, theirs = load_model(shown)[1], AutoTokenizer.from_pretrained(shown)
    assert theirs('S: 478+356=').input_ids == ours.encode('S: 478+356=') and theirs.decode(
        ours.encode('S: 478+356=')) == 'S: 478+356='
    assert 'text of its own vocabulary' in (shown/'README.md').read_text('utf-8')
    asked = run_evaluation(
        EvalConfig(model=str(shown), data=str(sums/'rows.txt'), prompts=20, threads=1))
    assert {*asked.task} == {'S'} and {'exact', 'reward'} <= {*asked.metric}
    assert eval_command(['--model', str(shown), '--prompts', '5', '--threads', '1']) == 2
    assert 'positions: ' in (
        said := capsys.readouterr().err) and 'the vocabulary of the model has no token for' in said


@pytest.mark.parametrize('which, letter, steps', [(0, 'W', (150, 100)), (1, 'C', (40, 20))])
def test_the_recipes_of_the_page(tmp_path, monkeypatch, which, letter, steps):
    page = json.loads((TUTORIALS.parent/'04_task.ipynb').read_text('utf-8'))
    recipe = [
        ''.join(c['source']).split('```python\n')[1].split('```')[0] for c in page['cells']
        if '```python' in ''.join(c['source'])
    ][which]
    monkeypatch.chdir(tmp_path)
    copies, last = (f'max_steps={n}' for n in steps)
    assert copies in recipe and last in recipe
    try:
        exec(
            recipe.replace(last, 'max_steps=1, eval_prompts=4, check_every=0').replace(
                copies, 'max_steps=2'), {})
    finally: del TASKS[letter]
    assert {(r['task'], r['n'])
            for r in rows(tmp_path/'runs/grpo-001', 'eval') if r['slice'] == 'all'} == {(letter, 4)}
