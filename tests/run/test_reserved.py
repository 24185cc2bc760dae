"The positions of the probes train nothing, whatever file they stand in."
import json
import pytest

from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.chess.positions import reserved_positions, split_of
from rookworld_nb.config import TrainConfig
from rookworld_nb.grpo.experience import task_counts
from rookworld_nb.measure.probes import probe_rows
from rookworld_nb.run.held_out import load_prompts
from rookworld_nb.task import TASKS, Task, TextAnswer, TextQuestion, register


def people():
    return list(dict.fromkeys(e.fen for e in probe_rows('people')))


def games(n):
    "FENs that no probe asks."
    rows = load_rows('positions', 0.0, limit=n)
    return [e.fen for e in rows[:]]


@pytest.mark.parametrize('suffix', ['fen', 'jsonl'])
def test_a_file_with_probed_positions(tmp_path, suffix):
    fens, file = people()[:300] + games(300), tmp_path/f'mixed.{suffix}'
    file.write_text('\n'.join(json.dumps(fen) if suffix == 'jsonl' else fen for fen in fens))
    assert sum(split_of(fen) == 'train' for fen in people()[:300]) > 250
    source, _ = load_prompts(TrainConfig(data=str(file), reward_source='rules', eval_prompts=20))
    trained = {e.position for rows in source.rows.values() for e in rows}
    assert len(trained) > 250 and not trained & reserved_positions()


@pytest.fixture
def k_task():
    register(Task(letter='K', name='k', form='K: <n>', ask=lambda text: TextQuestion('K', text),
                  read=lambda text, strict: TextAnswer(text)))
    yield
    del TASKS['K']


@pytest.mark.parametrize('mix, asked, idle', [('P:0.5 K:0.5', 'P', 'A'), ('A:0.5 K:0.5', 'A', 'P')])
def test_positions_become_what_the_tasks_ask(tmp_path, k_task, mix, asked, idle):
    "Before, three of four positions of a file became questions of A, which nobody asked."
    file = tmp_path/'mix.jsonl'
    file.write_text('\n'.join([json.dumps(fen) for fen in games(400)] + [
        json.dumps(dict(prompt=f'K: {i}', completion=str(i))) for i in range(200)]))
    source, _ = load_prompts(TrainConfig(tasks=mix, data=str(file), reward_source='rules', eval_prompts=100))
    assert len(source.rows[asked]) > 350 and not source.rows[idle]


@pytest.mark.parametrize('mix, name, value', [('P:0.5 K:0.5', 'rare_share', 0.2), ('A:0.5 K:0.5', 'engine_nodes', 7),
                                              ('A:0.5 K:0.5', 'coherence_share', 0.1)])
def test_a_choice_about_a_task_that_is_not_in_the_mix(mix, name, value):
    source = 'engine' if name == 'engine_nodes' else 'auto'
    with pytest.warns(UserWarning, match=f'{name} has no effect where no prompt is of'):
        TrainConfig(tasks=mix, data='positions', reward_source=source, **{name: value})


def test_counts_of_a_mix_with_letters_that_nobody_asks():
    assert [task_counts(s, 16, dict(P=0., A=0., K=1.)) for s in (1, 9)] == [dict(P=0, A=0, K=16)]*2
