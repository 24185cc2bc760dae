"""A run that is watched in a notebook: a real kernel draws it in place, and its stop button saves
the step."""
import json
import queue
import time
from pathlib import Path
import pytest
from rookworld_nb.report.live import live_html
from runs import SECONDS, some_positions

jupyter_client = pytest.importorskip('jupyter_client')
SMALL_RUN = Path(__file__).parents[2]/'nbs/report/small_run'
CELL = '''
import rookworld_nb as rw
config = rw.TrainConfig(data={data!r}, output_dir={out!r}, max_steps=1000, save_every=1000, prompts_per_step=2, group_size=2, max_refills=0, eval_prompts=4, threads=1)
rw.train(config, watch=True)
'''


def messages(client, until):
    "What the kernel sends, until some message is the last one."
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try: m = client.get_iopub_msg(timeout=5)
        except queue.Empty: continue
        yield m['msg_type'], m['content']
        if until(m['msg_type'], m['content']): return
    raise AssertionError('it did not come')


def test_watched_and_stopped(tmp_path):
    manager, client = jupyter_client.manager.start_new_kernel(kernel_name='python3',
                                                              cwd=str(tmp_path))
    try:
        client.execute(CELL.format(data=some_positions(tmp_path), out=str(tmp_path/'run')))
        seen = list(
            messages(
                client, lambda kind, content: kind == 'error' or kind == 'update_display_data' and
                'Step ' in content['data']['text/html']))
        assert seen[-1][0] == 'update_display_data', seen[-1]
        manager.interrupt_kernel()
        seen += messages(
            client, lambda kind, content: kind == 'status' and content['execution_state'] == 'idle')
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    drawn = [
        (kind, content) for kind, content in seen if kind in ('display_data', 'update_display_data')
        # tqdm's bar, where ipywidgets is
        and 'application/vnd.jupyter.widget-view+json' not in content['data']
    ]
    assert [kind
            for kind, _ in drawn] == ['display_data'] + ['update_display_data']*(len(drawn) - 1)
    assert len({content['transient']['display_id'] for _, content in drawn}) == 1
    # they stand in the view
    assert not [content for kind, content in seen if kind == 'stream' and 'Step' in content['text']]
    error, = [content for kind, content in seen if kind == 'error']
    done = [
        json.loads(line)['step']
        for line in (tmp_path/'run/metrics.jsonl').read_text().splitlines()
    ]
    assert (error['ename'], error['evalue']) == ('KeyboardInterrupt', f'saved at step {done[-1]}')
    assert (tmp_path/f'run/checkpoints/step-{done[-1]}/state.json').exists()
    last = drawn[-1][1]['data']['text/html']
    # however it ended, the end is drawn
    assert f'{done[-1]} of 1000 steps' in last and last == live_html(tmp_path/'run')


def test_the_page_around_it_does_not_move_its_parts(browser):
    """JupyterLab floats the words of every list of facts; the site stacks what is in a card. The
    facts and cards of a run stand as they should all the same."""
    page = browser.new_page(viewport=dict(width=1100, height=900))
    page.set_content('<style>.around dt{float:left;width:20%}.around '
                     'dd{float:left;width:80%}.card{flex-direction:column}</style>'
                     f'<div class="around">{live_html(SMALL_RUN)}</div>')

    def boxes(first):
        return page.evaluate(
            "first => [...document.querySelectorAll(first)].map(e => [e, "
            "e.nextElementSibling].map(e => e.getBoundingClientRect().toJSON()))",
            first)
    facts, cards = boxes('.facts dt'), boxes('.card .boards')
    assert len(facts) > 5 and all(
        word['bottom'] <= value['top'] and abs(word['left'] - value['left']) < 1
        for word, value in facts)
    assert len(cards) == 2 and all(board['right'] <= said['left'] for board, said in cards)
    page.close()
